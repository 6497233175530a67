"""Edits of edges: in a trace or in decoding, edges that carry another text's values, a mean, nothing or a constant.

Inside a model an edge is no value that could be replaced: what a receiver reads is made in one go. So for each text the
patched pass is run along the graph, and the receivers of patched edges are set to what they have in it: the queries,
keys and values of heads, the first maps of feed-forwards, the last value of the stream. The rest is the model's own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

from torch import Tensor, nn

from clearhead.attention.inputs import AttentionInputs
from clearhead.calls import public
from clearhead.circuits.forward import Activations, EdgeSource, Listener, Patch, run_graph
from clearhead.circuits.graph import Edge, Graph
from clearhead.circuits.texts import Texts
from clearhead.errors import OptionError
from clearhead.taps import watching
from clearhead.tracing.edits import Edit, TextChange


@dataclass
class KeptCalls(Listener):
    """Keeps the queries, keys and values of every attention."""

    calls: dict[str, AttentionInputs] = field(default_factory=dict)

    def context(self, at: str, call: object, context: Tensor) -> Tensor:
        assert isinstance(call, AttentionInputs)
        self.calls[at] = call
        return context


@final
@public
@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeEdit(TextChange):
    """Edges that carry the source's values, as a change in `ch.trace(run, text, edits=[…])` and in decoding.

    Values of another text are used place by place: places beyond its end stay unchanged.

    Args:
        graph: The graph of the model.
        edges: Edges, or `sender -> receiver`.
        source: What `record` returns for another text, or a MeanSource, ZeroSource or ConstantSource.

    Raises:
        OptionError: If there are no edges, or one is not in the graph.

    >>> import torch, clearhead as ch
    >>> from clearhead.circuits import EdgeEdit, Graph, ZeroSource
    >>> from clearhead.model import presets
    >>> model = presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> edges = ["decoder.0.attention.head.1 -> decoder.1.attention.query.0"]
    >>> edit = EdgeEdit(graph=Graph(model), edges=edges, source=ZeroSource())
    >>> [change.name for change in edit.edits_for(model, [torch.tensor([[3, 1, 4]])])]
    ['decoder.1.attention.query']
    """

    graph: Graph
    edges: Iterable[Edge | str]
    source: EdgeSource

    def __post_init__(self) -> None:
        found = [self.graph.edges[self.graph.find(edge)] for edge in self.edges]
        if not found:
            raise OptionError("EdgeEdit: expected one edge or more, as 'sender -> receiver'; came none")
        object.__setattr__(self, "edges", tuple(found))

    def edits_for(self, model: nn.Module, tokens: Sequence[Tensor], segments: Tensor | None = None) -> list[Edit]:
        """Return what each receiver of these edges is set to while these texts are read."""
        if model is not self.graph.model:
            raise OptionError("EdgeEdit: its graph is of another model: make it of the one that is traced")
        texts = Texts(tokens=dict(zip(self.graph.names.sides, tokens, strict=True)), segments=segments)
        mask = self.graph.select(self.edges).unsqueeze(0).to(texts.device)
        kept, seen = KeptCalls(), {}
        with watching(model, seen.setdefault):
            run = run_graph(self.graph, texts, patch=Patch(mask, self.source), listener=kept)
        named = {self.graph.names.taps[path]: value for path, value in seen.items() if path in self.graph.names.taps}
        receivers = dict.fromkeys(edge.receiver for edge in self.edges if isinstance(edge, Edge))
        return [edit for receiver in receivers for edit in self.edits_of(receiver, run, kept, named)]

    def edits_of(self, receiver: str, run: Activations, kept: KeptCalls, named: dict[str, Tensor]) -> list[Edit]:
        side = receiver.partition(".")[0]
        at, _, step = self.graph.names.ends[side].rpartition(".")
        if receiver == f"{side}.output":
            return [Edit(at=at, step=step, to=run.ends[side][0].detach())]
        if receiver == f"{side}.logits":
            share = float(self.graph.names.sides[side][1].output.wide.get_buffer("shares")[1])  # pyright: ignore
            value = run.ends[f"{side}.ngrams"][0, :, 0].detach() / (share or 1.0)
            return [Edit(at=f"{side}.output", step="wide_logits", to=value)]
        if receiver.endswith(".feed_forward"):
            block = self.graph.names.sides[side][1].stack.blocks[int(receiver.split(".")[1])]
            assert block.feed_forward is not None
            first = [step.name for step in block.feed_forward.steps if step.map and step.of == "x"] or ["out"]
            return [Edit(at=receiver, step=name, to=named[f"{receiver}.{name}"].detach()) for name in first]
        port, _, head = receiver.rpartition(".")
        site, _, role = port.rpartition(".")
        value: Tensor = getattr(kept.calls[site], role)
        return [Edit(at=site, step=role, head=int(head), to=value[:, int(head)].detach())]
