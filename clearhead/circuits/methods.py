"""Methods that find circuits, behind one interface: each gives one number for every edge.

A method is a part, registered like any other, so one of your own is run and graded like ours:

    @ch.register
    @dataclass(frozen=True)
    class Mine(ch.circuits.Method):
        def score(self, contrast): ...
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead import registry, serialization
from clearhead.calls import CodeRepr, public
from clearhead.circuits.forward import Activations, EdgeSource, Listener, Patch, Statistics, run_graph
from clearhead.circuits.graph import Graph
from clearhead.circuits.metrics import Metric
from clearhead.circuits.texts import Texts, check_pair
from clearhead.errors import RunError, unreadable

Scores = Float[Tensor, "pair edge"]
Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""
MOST_NUMBERS = 1 << 23
"""That one pass over several variants may hold at a port: 32 MB of float32, which caches still help with."""


@final
@public
class Contrast:
    """Pairs of texts, clean and other, and a metric: what a method is given.

    It counts the passes that are made with it: `forwards` and `backwards`, each over all texts.

    Args:
        graph: The graph of the model.
        clean: The clean texts.
        other: The other (corrupted) texts, in the same order.
        metric: What is measured of the logits.
        source: What patched edges carry; the other texts' values if None.
        only: Mask of the edges that are asked for: a method that tries edges one by one may skip the others.

    >>> import torch, clearhead as ch
    >>> from clearhead.circuits import Contrast, EAP, Graph, LogitDifference, Texts, score_edges
    >>> graph = Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> clean, other = (Texts(tokens={"decoder": torch.tensor([row])}) for row in ([3, 1, 4], [3, 2, 4]))
    >>> last = LogitDifference(answer=torch.tensor([5]), other=torch.tensor([6]), place=torch.tensor([2]))
    >>> score_edges(EAP(), Contrast(graph, clean, other, last)).shape == (1, len(graph.edges))
    True
    """

    def __init__(
        self,
        graph: Graph,
        clean: Texts,
        other: Texts,
        metric: Metric,
        *,
        source: EdgeSource | None = None,
        only: Tensor | None = None,
    ) -> None:
        check_pair(graph.model, clean, other)
        self.graph, self.clean, self.other, self.metric = graph, clean, other, metric
        self.only = torch.ones(len(graph.edges), dtype=torch.bool) if only is None else only
        self.given_source = source
        self.forwards = self.backwards = 0
        self.progress: Progress = lambda done, of: None
        self.load: Callable[[], dict[str, Tensor]] = dict
        """Gives what `save` was last given, in this process or in one that was cut; nothing if it never was."""
        self.save: Callable[[dict[str, Tensor]], None] = lambda tensors: None
        """Keeps how far a long method is, in tensors; called after every step, it writes now and then."""

    def __len__(self) -> int:
        return len(self.clean)

    @cached_property
    def clean_run(self) -> Activations:
        self.forwards += 1
        return run_graph(self.graph, self.clean, keep=True)

    @cached_property
    def other_run(self) -> Activations:
        self.forwards += 1
        return run_graph(self.graph, self.other, keep=True)

    @property
    def source(self) -> EdgeSource:
        """Return what patched edges carry: the other texts' values, unless something else was given."""
        return self.other_run if self.given_source is None else self.given_source

    @cached_property
    def clean_value(self) -> Float[Tensor, "batch"]:
        return self.metric.measure(self.clean_run)[0]

    @cached_property
    def other_value(self) -> Float[Tensor, "batch"]:
        return self.metric.measure(self.other_run)[0]

    def patched(self, mask: Tensor, *, statistics: Statistics | None = None) -> Float[Tensor, "variant batch"]:
        """Return the metric with each of these sets of edges patched, in as many passes as memory asks for."""
        found = []
        for part in mask.split(self.variants_at_once):
            self.forwards += len(part)
            patch = Patch(part.to(self.clean.device), self.source)
            found.append(self.metric.measure(run_graph(self.graph, self.clean, patch=patch, statistics=statistics)))
        return torch.cat(found)

    @property
    def variants_at_once(self) -> int:
        """Return over how many variants one pass may go."""
        some = next(iter(self.clean_run.inputs.values()))
        heads = max(len(port.receivers) for port in self.graph.ports.values())
        return max(1, MOST_NUMBERS // (some.numel() * (heads + 8)))

    def listened(
        self, listener: Listener, *, patch: Patch | None = None, statistics: Statistics | None = None
    ) -> Float[Tensor, "variant batch"]:
        """Return the metric of the clean texts, with gradients; the listener keeps what they are wanted of."""
        variants = 1 if patch is None else len(patch.mask)
        self.forwards += variants
        self.backwards += variants
        run = run_graph(self.graph, self.clean, patch=patch, statistics=statistics, listener=listener)
        return self.metric.measure(run)

    def batches(self, size: int) -> Iterator["Contrast"]:
        """Return contrasts of up to so many pairs each."""
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            metric, source = self.metric.rows(rows), self.given_source
            yield Contrast(self.graph, self.clean[rows], self.other[rows], metric, source=source, only=self.only)


@registry.kind("circuit method")
class Method(CodeRepr, ABC):
    """Base class: finds how much each edge matters.

    >>> from clearhead.circuits import EAP, Method
    >>> issubclass(EAP, Method)
    True
    """

    by_pair: ClassVar[bool] = True
    """True if it gives a number for each pair of texts by itself, so that pairs may be looked at in batches."""

    @abstractmethod
    def score(self, contrast: Contrast) -> Scores:
        """Return, for each pair (or in one row for all), by how much the metric would change if an edge were patched.

        Edges are ranked by the size of the mean. What is not a change of the metric is given as a size.
        """


@public
def score_edges(
    method: Method,
    contrast: Contrast,
    *,
    batch: int = 32,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
) -> Float[Tensor, "pair edge"]:
    """Return a method's scores, a row for each pair.

    Args:
        method: The method.
        contrast: Pairs of texts and a metric.
        batch: Pairs at a time.
        progress: Called after each step with how much is done.
        checkpoint: File in which the state is saved every few seconds. A call that was interrupted continues from it
            with the same scores in every bit; the file is removed at the end.

    Returns:
        Scores, `(pair, edge)`.
    """
    progress = progress or (lambda done, of: None)
    saved = ScoreCheckpoint(checkpoint, "" if checkpoint is None else identity(method, contrast))
    parts = list(contrast.batches(batch)) if method.by_pair and len(contrast) > batch else [contrast]
    rows = []
    for number, part in enumerate(parts):
        key, done = f"step {number}", saved.load(f"scores {number}")
        if not done:
            part.progress = lambda inner, of, number=number: progress(number * of + inner, len(parts) * of)
            part.load, part.save = partial(saved.load, key), partial(saved.save, key)
            done = {"scores": method.score(part).detach()}
            saved.save(f"scores {number}", done, now=len(parts) > 1)
        rows.append(done["scores"].to(contrast.clean.device))
        if part is not contrast:
            contrast.forwards += part.forwards
            contrast.backwards += part.backwards
    saved.remove()
    return torch.cat(rows)


def identity(method: Method, contrast: Contrast) -> str:
    """Return a digest of all that scores depend on: method, model, texts, and what is measured."""
    measured = vars(contrast.metric)
    tensors = {name: value for name, value in measured.items() if isinstance(value, Tensor)}
    for role, texts in (("clean", contrast.clean), ("other", contrast.other)):
        tensors |= {f"{role} {side}": ids for side, ids in texts.tokens.items()}
    tensors |= contrast.graph.model.state_dict()
    words = [f"{name}={value!r}" for name, value in measured.items() if not isinstance(value, Tensor)]
    source = type(contrast.given_source).__name__
    return digest(repr(method), type(contrast.metric).__name__, source, *words, tensors={**tensors, "o": contrast.only})


@public
def find_method(name: str) -> Method:
    """Return the method of a name, as options of the command name it.

    Args:
        name: `eap-ig`, `eap-ig(steps=10)`, `mine:Mine`.

    Returns:
        The method.

    >>> from clearhead.circuits import find_method
    >>> find_method("eap-ig(steps=10)")
    EAPIGInputs(steps=10)
    """
    return registry.parse(name, "circuit method").make()


def method_names() -> list[str]:
    return list(registry.options("circuit method"))


HEADER = "clearhead-edge-scores"
PAUSE = 10.0
"""Seconds between two saves."""


class ScoreCheckpoint:
    """Tensors of a search by names, in a file: one that was cut goes on with the same result. Without a path there are
    none.

    `identity` says whose they are: model, texts and method. A file of another search is refused.
    """

    def __init__(
        self, path: Path | None = None, identity: str = "", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path, self.identity, self.clock = path, identity, clock
        self.saved: dict[str, Tensor] = {}
        self.last = clock()
        if path is not None and path.exists():
            with unreadable(path, after=": move it away"):
                owner, self.saved = serialization.load_tensors(path, header=HEADER)
            if owner != identity:
                raise RunError(f"{path} is of another search (model, texts or method): move it away")

    def load(self, key: str) -> dict[str, Tensor]:
        """Return the tensors that were last saved under a key; an empty dict if nothing was."""
        return {name.removeprefix(f"{key}/"): value for name, value in self.saved.items() if name.startswith(f"{key}/")}

    def save(self, key: str, tensors: Mapping[str, Tensor], *, now: bool = False) -> None:
        """Keep tensors under a key in place of those before; written every few seconds, or now."""
        if self.path is None or not (now or self.clock() - self.last >= PAUSE):
            return
        self.saved = {name: value for name, value in self.saved.items() if not name.startswith(f"{key}/")}
        self.saved |= {f"{key}/{name}": value for name, value in tensors.items()}
        serialization.save_tensors(self.path, self.saved, self.identity, header=HEADER)
        self.last = self.clock()

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def digest(*described: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of words and of every bit of some tensors."""
    made = hashlib.sha256("\n".join(described).encode())
    for name, tensor in tensors.items():
        made.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        plain = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).flatten()
        made.update(plain.view(torch.uint8).numpy().data)
    return made.hexdigest()
