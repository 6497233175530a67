"""A trace that questions are asked about: what it was made of, and what was computed of it so far."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from clearhead.circuits import Graph, Texts
from clearhead.errors import OptionError
from clearhead.experiments.tracing import encode_inputs
from clearhead.lru_cache import LRUCache
from clearhead.model.transformers import Transformer
from clearhead.serve.boxes import Boxes
from clearhead.serve.budget import AnswerBudget
from clearhead.serve.costs import ModelCosts, row_cost
from clearhead.serve.python_lines import load_lines, text_arguments
from clearhead.tracing.edits import Change
from clearhead.tracing.recording import recording
from clearhead.tracing.site import Head
from clearhead.tracing.trace import Candidate, Trace
from clearhead.training.run import Run

HeadChoice = int | Literal["mean"]
TEXT = "trace a shorter text"


@runtime_checkable
class TraceRequest(Protocol):
    """What a trace was asked for with: its text, and the name under which it is cached."""

    @property
    def id(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def target(self) -> str | list[int] | None: ...


Made = TypeVar("Made")
TILES = 96
"""The number of tiles of a trace in the cache."""


class Traced:
    """A trace, the run it was made with and the request it answers."""

    def __init__(self, request: TraceRequest, run: Run, trace: Trace, budget: AnswerBudget = AnswerBudget()) -> None:
        self.request, self.run, self.trace, self.budget = request, run, trace, budget
        self.costs = ModelCosts(run.model)
        self.lengths = {name: len(side.ids) for name, side in trace.sides.items()}
        self.cached: dict[str, Any] = {}
        self.tiles = LRUCache[tuple[object, ...], Tensor](most=TILES)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return a value that is computed when it is first asked for."""
        if name not in self.cached:
            self.cached[name] = make()
        return self.cached[name]

    @property
    def nbytes(self) -> int:
        """Return the bytes it holds: the trace, the answers at each token, and the cached tiles."""
        tiles = sum(tile.nbytes for tile in self.tiles.values.values())
        return self.costs.trace(self.lengths, self.trace.changes).memory + tiles

    @property
    def model(self) -> Transformer:
        return self.run.model

    @property
    def python(self) -> list[str]:
        """Return the lines of Python that make this trace."""
        return [*load_lines(self.run), f"trace = ch.trace(run, {self.arguments})"]

    @property
    def arguments(self) -> str:
        """Return its text and edits as calls of `ch` take them."""
        return text_arguments(self.request.source, self.request.target, self.trace.changes)

    @functools.cached_property
    def boxes(self) -> Boxes:
        return Boxes(self.trace)

    @functools.cached_property
    def graph(self) -> Graph:
        """Return the graph of its model, which holds names and no copy of the weights until these are asked for."""
        return Graph(self.model)

    def head(self, site: str, head: int) -> Head:
        found = self.trace[site]
        return found.head[check_below("head", head, found.n_heads)]

    def heads(self, site: str, head: HeadChoice) -> list[Head]:
        """Return the head that is asked for, or all of them for their mean."""
        return self.trace[site].head if head == "mean" else [self.head(site, head)]

    def check_box(self) -> None:
        """Check the cost of a box for one token. In a changed model it is computed for all tokens together."""
        rows = max(self.lengths.values()) if self.trace.changes else 1
        sites = [row_cost(site.head) for site in self.trace.sites.values()]
        row = max(sites, key=lambda cost: cost.memory)
        self.budget.check(self.costs.box(rows) + row, "the numbers of this box", TEXT)

    def with_names(self, row: Sequence[Candidate]) -> list[Candidate]:
        """Return candidates with their words in place of their numbers."""
        names = self.run.task.answer_names([candidate.id for candidate in row])
        return [candidate._replace(text=name) for candidate, name in zip(row, names, strict=True)]

    @functools.cached_property
    def texts(self) -> Texts:
        """Return its tokens as the model takes them."""
        device = next(self.model.parameters()).device
        segments = encode_inputs(self.run, self.request.source, self.request.target).segments
        return Texts(
            tokens={name: torch.tensor([side.ids], device=device) for name, side in self.trace.sides.items()},
            segments=None if segments is None else torch.tensor([segments], device=device),
        )

    def logits(self, changes: Sequence[Change]) -> Tensor:
        """Return the logits of the same tokens with other changes."""
        tokens, named = self.texts.arguments()
        with recording(self.model, changes):
            return self.model(*tokens, **named)


def name_heads(heads: Sequence[Head]) -> str:
    """Return the name of a head, or of all heads of a site."""
    site = heads[0].site.name
    return f"{site}, head {heads[0].index}" if len(heads) == 1 else f"all {len(heads)} heads of {site}"


def mean_of(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors)).mean(0)


def check_below(name: str, value: int, below: int) -> int:
    """Return a number that counts something, or raise OptionError where there are no more than `below`."""
    if value >= below:
        raise OptionError(f"{name} is {value:,}, and must be 0 to {below - 1:,}")
    return value
