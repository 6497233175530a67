"""Node patching: one value at one place of a model is set to what it is in another text, for every value and place.

It is the node case of patching edges: a node that is patched at all places gives what all its edges give (where no norm
stands on their way). Many patches run as one batch, each row with one of them; each is what one `Edit` does.

>>> import torch
>>> from clearhead.circuits import LogitDifference, Texts, list_nodes, patch_nodes, read_nodes
>>> from clearhead.model import presets
>>> from clearhead.tracing import trace_model
>>> model = presets.gpt2("tiny", vocabulary=20).build().eval()
>>> text = Texts(tokens={"decoder": torch.randint(20, (1, 5))})
>>> other = trace_model(model, torch.randint(20, (1, 5)))
>>> nodes = list_nodes(model, "head")
>>> nodes[0], len(nodes)
(NodePatch(name='decoder.0.attention.context', head=0, place=None), 8)
>>> metric = LogitDifference(answer=torch.tensor([3]), other=torch.tensor([7]), place=torch.tensor([4]))
>>> patched = patch_nodes(model, text, nodes, read_nodes(other, nodes), metric)
>>> patched.shape
torch.Size([8])
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.calls import public
from clearhead.circuits.metrics import LogitDifference
from clearhead.circuits.texts import Texts
from clearhead.decoding.generating import eval_mode
from clearhead.errors import OptionError, ShapeError
from clearhead.taps import replacing
from clearhead.tracing import Trace, recording
from clearhead.tracing.edits import Change, Edit
from clearhead.tracing.names import Names, names_of
from clearhead.tracing.recording import alone_with, check_stopped

NodeKind = Literal["layer", "attention", "feed_forward", "head"]
"""What is patched: the residual stream after each layer, what attentions or feed-forwards add to it, or heads."""
KINDS: tuple[NodeKind, ...] = ("layer", "attention", "feed_forward", "head")
MOST_NUMBERS = 1 << 24
"""That the widest values of one batch may hold: 64 MB of float32."""
Progress = Callable[[int, int], object]
"""Called with how much is done, and of how much."""


class NodePatch(NamedTuple):
    """A value that is taken from another text: all of it, or one head; at one place, or at all.

    Args:
        name: Name of the value.
        head: Number of the head; all if None.
        place: Number of the token; all if None.

    >>> from clearhead.circuits import NodePatch
    >>> node = NodePatch("decoder.0.attention.context", head=1)
    """

    name: str
    head: int | None = None
    place: int | None = None

    @property
    def row(self) -> str:
        """Return what the row of a map is called: a head as circuits name it."""
        return self.name if self.head is None else f"{self.name.removesuffix('.context')}.head.{self.head}"

    @property
    def side(self) -> str:
        return self.name.partition(".")[0]

    def edit(self, values: Mapping[str, Tensor]) -> Edit:
        """Return the edit that does the same in a trace."""
        at, _, step = self.name.rpartition(".")
        value = values[self.name]
        value = value if self.head is None else value[self.head]
        value = value if self.place is None else value[self.place]
        return Edit(at=at, step=step, head=self.head, query=self.place, to=value)


@public
def list_nodes(model: nn.Module, kind: NodeKind) -> list[NodePatch]:
    """Return the nodes of a kind, in the order of the forward pass, for all places at once.

    Args:
        model: The model.
        kind: `layer`, `attention`, `feed_forward` or `head`.

    Returns:
        The nodes.

    Raises:
        OptionError: If there is no such kind.

    >>> import clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build()
    >>> ch.circuits.list_nodes(model, "layer")[-1].name
    'decoder.1.feed_forward.residual'
    """
    names = names_of(model)
    if kind == "head":
        sites = names.sites.items()
        return [NodePatch(f"{at}.context", head) for at, layer in sites for head in range(layer.shape.n_heads)]
    if kind == "layer":
        return [NodePatch(name) for side in names.sides for name in layer_ends(names, side)]
    if kind not in KINDS:
        raise OptionError(f"by: expected one of {', '.join(KINDS)}; came {kind!r:.80}")
    slots = ("attention", "cross") if kind == "attention" else ("feed_forward",)
    boxes = [box.name for box in names.boxes.values() if box.name.rpartition(".")[2] in slots]
    return [NodePatch(f"{at}.out") for at in boxes]


def layer_ends(names: Names, side: str) -> list[str]:
    """Return the residual stream of a side before the first layer and after each."""
    stream = [name for name in names.stream.values() if name.startswith(f"{side}.")]
    # A later name of a block takes the place of the earlier ones, so the last is left.
    ends = {name.split(".")[1]: name for name in stream if name.split(".")[1].isdigit()}
    return [f"{side}.embedding.out", *ends.values()]


def at_places(nodes: Iterable[NodePatch], lengths: Mapping[str, int]) -> list[NodePatch]:
    """Return each node at each place of its side."""
    return [node._replace(place=place) for node in nodes for place in range(lengths[node.side])]


def paths_of(names: Names) -> dict[str, str]:
    """Return the names of all values that can be patched, by the paths of their taps."""
    contexts = {f"{path}.context": f"{at}.context" for at, path in names.paths.items()}
    return names.taps | contexts


@public
def read_nodes(trace: Trace, nodes: Iterable[NodePatch]) -> dict[str, Tensor]:
    """Return the values of these nodes in a traced text.

    Args:
        trace: The trace.
        nodes: The nodes.

    Returns:
        Values by name.

    Raises:
        OptionError: If the traced model has no such value.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> trace = ch.tracing.trace_model(model, torch.tensor([[3, 1, 4]]))
    >>> len(ch.circuits.read_nodes(trace, ch.circuits.list_nodes(model, "layer")))
    3
    """
    names = dict.fromkeys(node.name for node in nodes)
    if missing := [name for name in names if name not in trace.names]:
        raise OptionError(f"there is no {missing[0]} where values are taken from: the two models must be alike")
    return {name: trace.value(name) for name in names}


@public
def patch_nodes(
    model: nn.Module,
    texts: Texts,
    nodes: Sequence[NodePatch],
    values: Mapping[str, Tensor],
    metric: LogitDifference,
    *,
    changes: Sequence[Change] = (),
    progress: Progress | None = None,
) -> Float[Tensor, "node"]:
    """Return the metric of a text with each of these nodes patched alone, in as few passes as memory allows.

    Args:
        model: The model.
        texts: One text.
        nodes: The nodes.
        values: What `read_nodes` found in another text or another model.
        metric: What is measured.
        changes: Changes of the model itself.
        progress: Called with how much is done.

    Returns:
        A number for each node.

    >>> import torch, clearhead as ch
    >>> from clearhead.circuits import LogitDifference, Texts, list_nodes, patch_nodes, read_nodes
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> nodes = list_nodes(model, "head")
    >>> values = read_nodes(ch.tracing.trace_model(model, torch.tensor([[3, 2, 4]])), nodes)
    >>> last = LogitDifference(answer=torch.tensor([5]), other=torch.tensor([6]), place=torch.tensor([2]))
    >>> len(patch_nodes(model, Texts(tokens={"decoder": torch.tensor([[3, 1, 4]])}), nodes, values, last)) == len(nodes)
    True
    """
    check_values(model, texts, values)
    place = None if metric.place is None else int(metric.place)
    at_once = rows_at_once(model, texts)
    found = []
    for start in range(0, len(nodes), at_once):
        check_stopped()
        part = nodes[start : start + at_once]
        tokens, named = texts.repeat(len(part)).arguments()
        replace = replace_in_rows(part, paths_of(names_of(model)), values)
        with (
            alone_with(model),
            eval_mode(model),
            changed(model, changes),
            replacing(model, replace),
            output_at(model, place),
        ):
            logits = model(*tokens, **named).unsqueeze(1)
        found.append(measure(metric, logits, place))
        if progress is not None:
            progress(min(start + at_once, len(nodes)), len(nodes))
    return torch.cat(found)


def measure(metric: LogitDifference, logits: Tensor, place: int | None) -> Float[Tensor, "variant"]:
    """Return the metric of logits that are those of one place alone."""
    first = None if place is None else torch.zeros_like(metric.answer)
    return LogitDifference(answer=metric.answer, other=metric.other, place=first)(logits)[:, 0]


def replace_in_rows(
    nodes: Sequence[NodePatch], paths: Mapping[str, str], values: Mapping[str, Tensor]
) -> Callable[[str, Tensor], Tensor]:
    """Return what puts each node's value into its own row of a batch."""
    rows: dict[str, list[tuple[int, NodePatch]]] = {}
    for row, node in enumerate(nodes):
        rows.setdefault(node.name, []).append((row, node))

    def replace(path: str, value: Tensor) -> Tensor:
        here = rows.get(paths.get(path, ""), [])
        if not here:
            return value
        value = value.expand(len(nodes), *value.shape[1:]).clone()
        for row, node in here:
            place = slice(None) if node.place is None else node.place
            index = (place,) if node.head is None else (node.head, place)
            value[row, *index] = values[node.name][index].to(value)
        return value

    return replace


@contextlib.contextmanager
def output_at(model: nn.Module, place: int | None) -> Iterator[None]:
    """Give logits of one place alone, where those of a place follow from its own vector."""
    part = names_of(model).sides[[*names_of(model).sides][-1]][1]
    if place is None or part.output is None or part.spec.output is None or not part.spec.output.by_position:
        yield
        return
    hook = part.output.register_forward_pre_hook(lambda _, given: (given[0][:, place : place + 1], *given[1:]))
    try:
        yield
    finally:
        hook.remove()


def changed(model: nn.Module, changes: Sequence[Change]) -> contextlib.AbstractContextManager[object]:
    return recording(model, changes) if changes else contextlib.nullcontext()


def rows_at_once(model: nn.Module, texts: Texts) -> int:
    """Return how many copies of a text one pass may have."""
    sides = names_of(model).sides
    widths = [4 * part.spec.d_model for _, part in sides.values()]
    widths += [
        block.feed_forward.d_ff for _, part in sides.values() for block in part.spec.blocks if block.feed_forward
    ]
    row = (
        max(widths) * max(tokens.shape[1] for tokens in texts.tokens.values())
        + [*sides.values()][-1][1].spec.vocabulary
    )
    return max(1, MOST_NUMBERS // row)


def check_values(model: nn.Module, texts: Texts, values: Mapping[str, Tensor]) -> None:
    """Raise where values are not of as many places as the text has, or not as wide as the model."""
    sides = names_of(model).sides
    for name, value in values.items():
        side = name.partition(".")[0]
        n, d_model = texts.tokens[side].shape[1], sides[side][1].spec.d_model
        if value.shape[-2] != n:
            raise ShapeError(
                f"{side}: patching goes place by place, so both texts need as many tokens; came {n} and "
                f"{value.shape[-2]}"
            )
        if value.ndim == 2 and value.shape[-1] != d_model:
            raise ShapeError(f"{name}: the model is {d_model} wide, and that of the source {value.shape[-1]}")
