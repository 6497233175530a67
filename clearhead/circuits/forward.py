"""One forward pass along the graph: the model's own modules, with every edge in reach.

The pass follows the steps that each connection declares (norm, branch, add), so it is the same code for pre-norm,
post-norm, the note's block and a user's own connection. It gives the model's own output; where edges are patched, the
receivers read what they would if those senders had sent something else.

Tensors of the stream are `(variant, batch, n, d_model)`: the same texts run once for each variant of the patch.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, final

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention import kernels, masks
from clearhead.attention.heads import WholeMap
from clearhead.attention.layer import Attention
from clearhead.attention.request import AttentionOptions
from clearhead.circuits.ports import Parts, Port, Term, Wiring
from clearhead.circuits.texts import Texts
from clearhead.errors import OptionError
from clearhead.model.arrangements import BranchConnection
from clearhead.model.blocks import Block
from clearhead.model.norms import FrozenNorm
from clearhead.model.outputs import ToClasses
from clearhead.model.transformers import Decoder, Encoder, apply_output
from clearhead.taps import watching

Statistics = Callable[[str, nn.Module, Tensor], FrozenNorm]
"""Gives a norm, by its name and its input, with statistics that do not follow the input."""


EDGES = "variant batch s r, s variant batch n d -> variant batch r n d"
"""Sums what senders s change, by a mask over the edges to receivers r."""
Norms = tuple[tuple[str, nn.Module], ...]
"""Norms before a branch, by name: a receiver's own, which are no part of an edge."""


class EdgeSource(ABC):
    """What patched edges carry in place of what their senders send."""

    @abstractmethod
    def contribution(self, port: Port, senders: Sequence[int] | None = None) -> Parts:
        """Return what each sender of a port gives it, or some of them, by number.

        Axes of size 1 stand for all variants, texts or places.
        """


@final
@dataclass(eq=False)
class Activations(EdgeSource):
    """What senders sent in a pass, the statistics of the norms, and the logits; what `record` returns.

    Attributes:
        vectors: By sender, what it sent.
        norms: By norm, its statistics.
        last_vectors: What the output reads, after the last norm.

    >>> import torch, clearhead as ch
    >>> graph = ch.circuits.Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> texts = ch.circuits.Texts(tokens={"decoder": torch.tensor([[3, 1, 4]])})
    >>> ch.circuits.record(graph, texts).logits.shape[-2:]
    torch.Size([3, 20])
    """

    vectors: dict[str, Tensor] = field(default_factory=dict)
    norms: dict[str, FrozenNorm] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    """By port, what it read, before its norm."""
    ends: dict[str, Tensor] = field(default_factory=dict)
    """By side, what its output reads, after the last norm; and what n-grams add to the logits."""
    read_out: Callable[[Tensor], Tensor] = lambda vectors: vectors
    """Gives the logits of the last vectors; by position, unless the output makes one row of a text."""
    last_vectors: Tensor = field(default_factory=lambda: torch.empty(0))
    last: tuple[tuple[Term, ...], Tensor] | None = None
    """The contributions that were asked for last: the ports of queries, keys and values have the same."""

    @cached_property
    def logits(self) -> Tensor:
        """Return the logits of every place, computed when they are first asked for."""
        return self.read_out(self.last_vectors)

    def logits_at(self, place: Int[Tensor, "batch"]) -> Float[Tensor, "variant batch vocabulary"]:
        """Return the logits of one place of each text. Over a large vocabulary they are a third of a pass if all are
        computed, and nearly nothing so.
        """
        row = torch.arange(len(place), device=place.device)
        return self.read_out(self.last_vectors[:, row, place].unsqueeze(2)).squeeze(2)

    def contribution(self, port: Port, senders: Sequence[int] | None = None) -> Parts:
        """Return what each sender gives to a port: their sum is what the port reads."""
        if senders is None and self.last is not None and self.last[0] is port.terms:
            return self.last[1]
        names = port.senders if senders is None else [port.senders[number] for number in senders]
        parts: dict[str, Tensor] = {}
        for term in port.terms:
            if term.sender in names:
                part = self.carried(term)
                parts[term.sender] = parts[term.sender] + part if term.sender in parts else part
        stacked = torch.stack(torch.broadcast_tensors(*parts.values()))
        if senders is None:
            self.last = port.terms, stacked
        return stacked

    def carried(self, term: Term) -> Tensor:
        part = self.vectors[term.vector]
        for norm in term.norms:
            part = self.norms[norm].carry(part)
        return part

    def frozen(self, name: str, norm: nn.Module, x: Tensor) -> FrozenNorm:
        """Return a norm with the statistics of this pass: what `statistics` of another pass may be."""
        return self.norms[name]


class Patch(NamedTuple):
    """Which edges carry something else, and what: `mask` goes from 0, as it was, to 1, replaced.

    It is `(variant, edge)`, or `(variant, batch, edge)` where texts differ in it. If a gradient by the mask is wanted,
    `senders` says of whose edges; without it, of all.
    """

    mask: Tensor
    source: EdgeSource
    senders: frozenset[str] | None = None


class Listener:
    """Sees what goes into receivers during a pass, and may put an equal tensor in its place; by default it does not."""

    def heads(self, port: Port, x: Tensor, normalize: Callable[[Tensor], Tensor], mapped: Tensor) -> Tensor:
        """Return the queries, keys or values `(row, head, n, d)`; `x` is the stream before its norm."""
        return mapped

    def whole(self, port: Port, x: Tensor) -> Tensor:
        """Return the input of a feed-forward or an output, before its norm."""
        return x

    def context(self, at: str, call: object, context: Tensor) -> Tensor:
        """Return the contexts of an attention's heads."""
        return context

    def branch(self, name: str, out: Tensor) -> Tensor:
        """Return what a branch adds to the stream."""
        return out

    def embedded(self, side: str, vector: Tensor) -> Tensor:
        """Return the vectors that go into the first block."""
        return vector


class GraphStream(NamedTuple):
    """The residual stream at one point: its value, and the terms that sum to it."""

    value: Tensor
    terms: tuple[Term, ...]

    def __add__(self, other: "GraphStream") -> "GraphStream":  # type: ignore[override]
        return GraphStream(self.value + other.value, self.terms + other.terms)


class GraphPass:
    """A pass of a graph's model over texts."""

    def __init__(
        self,
        graph: Wiring,
        texts: Texts,
        *,
        patch: Patch | None = None,
        statistics: Statistics | None = None,
        listener: Listener | None = None,
        keep: bool = False,
        new_ports: bool = False,
    ) -> None:
        self.graph, self.texts, self.patch = graph, texts, patch
        self.statistics, self.listener = statistics, listener or Listener()
        self.keep, self.recorded = keep or patch is not None, keep
        self.new_ports = new_ports
        self.variants = 1 if patch is None else len(patch.mask)
        self.rows = texts if self.variants == 1 else texts.repeat(self.variants)
        self.found = Activations()
        self.streams: dict[str, Tensor] = {}
        """The stream after each branch, while the graph is explored."""

    @classmethod
    def explore(cls, graph: Wiring) -> None:
        """Find the ports of a graph by a pass over one token."""
        device = next(graph.model.parameters()).device
        tokens = {side: torch.zeros(1, 1, dtype=torch.long, device=device) for side in graph.names.sides}
        taps: dict[str, Tensor] = {}
        forward = cls(graph, Texts(tokens=tokens), new_ports=True)
        with still(graph.model):
            forward.run()
            with watching(graph.model, taps.setdefault):
                graph.model(*tokens.values())
        for path, name in graph.names.stream.items():
            mine = forward.streams.get(name.rpartition(".")[0])
            if mine is not None and not torch.allclose(mine[0], taps[path], 1e-4, 1e-4 * float(taps[path].abs().max())):
                raise OptionError(
                    f"{name}: the steps that its connection declares are not what it computes, so edges cannot be told "
                    "apart; let `steps` say what `forward` does"
                )

    def run(self) -> Activations:
        """Run the pass, and return its logits and what it kept."""
        memory = None
        for side, (_, part) in self.graph.names.sides.items():
            stream = self.embed(side, part)
            for number, block in enumerate(part.stack.blocks):
                stream = self.block(f"{side}.{number}", block, stream, memory)
            self.found.ends[side] = last = self.receive(f"{side}.output", stream, self.last_norm(side, part))
            if side == "encoder" and len(self.graph.names.sides) == 2:
                memory = self.send("encoder.output", last)
                continue
            self.found.last_vectors = last
            if part.output is not None:
                self.found.read_out = reader_of(part, self.rows, side)
                self.add_ngrams(side, part.output)
        # A listener keeps functions of this pass: with both pointing at each other, what the pass holds for its
        # gradients would stay until Python looks for circles, and several passes of it would fill the memory.
        self.listener = Listener()
        return self.found

    def add_ngrams(self, side: str, output: nn.Module) -> None:
        """Let the logits of n-grams, if the output has any, come by an edge: `ngrams -> logits`."""
        if not isinstance(output, ToClasses) or output.wide is None:
            return
        logits = self.found.logits
        wide = output.wide(self.rows.tokens[side], self.rows.lengths.get(side)) * output.wide.get_buffer("shares")[1]
        sent = self.send(f"{side}.ngrams", wide.to(logits).view(*logits.shape[:2], 1, -1))
        self.found.ends[f"{side}.ngrams"] = received = self.receive(f"{side}.logits", sent, ())
        self.found.logits = logits + (received - sent.value).squeeze(2)

    def embed(self, side: str, part: Encoder | Decoder) -> GraphStream:
        taps: dict[str, Tensor] = {}
        segments = {} if self.texts.segments is None or side == "decoder" else {"segments": self.texts.segments}
        with watching(part.embedding, taps.setdefault):
            part.embedding(self.texts.tokens[side], **segments)
        at, terms = f"{side}.embedding", []
        for name in ("token", "segment", "position"):
            if name in taps:
                self.keep_vector(f"{at}.{name}", taps[name].to(taps["token"].dtype).expand_as(taps["token"])[None])
                terms.append(Term(f"{at}.{name}", f"{at}.{name}"))
        total = torch.stack([self.found.vectors[term.vector] for term in terms]).sum(0)
        stream = GraphStream(total.expand(self.variants, *total.shape[1:]), tuple(terms))
        if part.embedding.norm is not None:
            stream = self.carry(f"{at}.norm", part.embedding.norm, stream)
        return stream._replace(value=self.listener.embedded(side, stream.value))

    def block(self, at: str, block: Block, stream: GraphStream, memory: GraphStream | None) -> GraphStream:
        block_input = stream
        for branch in ("attention", "cross", "feed_forward"):
            if getattr(block, branch) is not None:
                stream = self.connect(f"{at}.{branch}", block, block_input, stream, memory)
        return stream

    def connect(
        self, at: str, block: Block, block_input: GraphStream, stream: GraphStream, memory: GraphStream | None
    ) -> GraphStream:
        """Follow the steps around a branch. A norm before the branch belongs to its receivers, a later one to edges."""
        branch = at.rpartition(".")[2]
        around: BranchConnection = getattr(block, f"around_{branch}")
        value = block_input if around.reads_input else stream
        norms: Norms = ()
        branched = False
        for step in around.steps:
            if step.box == "branch":
                value, branched = self.branch(at, getattr(block, branch), value, norms, memory), True
            elif step.box == "add":
                value = stream + value
            elif branched:
                value = self.carry(f"{at}.{step.module}", getattr(around, step.module), value)
            else:
                norms = (*norms, (f"{at}.{step.module}", getattr(around, step.module)))
        if self.new_ports:
            self.streams[at] = value.value
        return value

    def branch(
        self, at: str, module: nn.Module, value: GraphStream, norms: Norms, memory: GraphStream | None
    ) -> GraphStream:
        if isinstance(module, Attention):
            return self.attention(at, module, value, norms, memory if at.endswith(".cross") else None)
        inner = self.receive(at, value, norms)
        out = module(inner.flatten(0, 1)).unflatten(0, inner.shape[:2])
        return self.send(at, self.listener.branch(at, out))

    def attention(
        self, at: str, layer: Attention, value: GraphStream, norms: Norms, memory: GraphStream | None
    ) -> GraphStream:
        side = at.partition(".")[0]
        keys, key_norms = (value, norms) if memory is None else (memory, ())
        query = self.receive_heads(f"{at}.query", layer.query, value, norms)
        key = self.receive_heads(f"{at}.key", layer.key, keys, key_norms)
        vectors = self.receive_heads(f"{at}.value", layer.value, keys, key_norms)
        key_side = side if memory is None else "encoder"
        mask = layer.mask
        if key_side == "encoder" and key_side in self.rows.lengths:
            mask = mask & masks.padding(self.rows.lengths[key_side])
        positions: tuple[Tensor | None, Tensor | None] = (None, None)
        if memory is not None and layer.uses_positions:
            positions = torch.arange(query.shape[2]).to(query.device), torch.arange(key.shape[2]).to(key.device)
        options = AttentionOptions(layer.similarity, layer.weighting, layer.position, mask, 0.0, layer.kernel)
        call = options.inputs((query, key, vectors), positions)
        context = self.listener.context(at, call, kernels.run(layer.kernel, call))
        out = layer.finish(context).unflatten(0, (self.variants, -1))
        return self.send_heads(at, context, self.listener.branch(at, out))

    def receive(self, name: str, stream: GraphStream, norms: Norms) -> Tensor:
        """Return what a feed-forward or an output reads, after its norm."""
        port = self.port(name, [name], stream, norms)
        x = self.listener.whole(port, stream.value)
        delta = self.patched(port, stream.value)
        return self.normalize(norms, x if delta is None else x + delta[:, :, 0])

    def receive_heads(self, name: str, head_map: nn.Module, stream: GraphStream, norms: Norms) -> Tensor:
        """Return the queries, keys or values of all heads, `(row, head, n, d)`, each head by its own input."""
        at, _, role = name.rpartition(".")
        shape = self.graph.names.sites[at].shape
        count = shape.n_heads if role == "query" else shape.n_kv_heads
        port = self.port(name, [f"{name}.{head}" for head in range(count)], stream, norms)
        delta = self.patched(port, stream.value)
        if delta is None:
            inner = self.normalize(norms, stream.value).flatten(0, 1)
            mapped = head_map.map_linearly(inner) if isinstance(head_map, WholeMap) else head_map(inner)
            mapped = self.listener.heads(port, stream.value, lambda x: self.normalize(norms, x), mapped)
        else:
            weight, bias = self.graph.matrices[name]
            inner = self.normalize(norms, stream.value.unsqueeze(2) + delta)
            mapped = einsum(inner, weight, "v b head n d, head d width -> v b head n width") + bias.unsqueeze(-2)
            mapped = mapped.flatten(0, 1)
        return head_map.normed(mapped) if isinstance(head_map, WholeMap) else mapped

    def port(self, name: str, receivers: list[str], stream: GraphStream, norms: Norms) -> Port:
        if self.new_ports:
            self.graph.add_port(name, receivers, stream.terms, [norm for norm, _ in norms])
        if self.keep:
            self.found.inputs[name] = stream.value
        return self.graph.ports[name]

    def patched(self, port: Port, x: Tensor) -> Tensor | None:
        """Return what the patched edges of a port change of its input, `(variant, batch, receiver, n, d_model)`."""
        if self.patch is None:
            return None
        mask = self.patch.mask[..., port.edges].unflatten(-1, port.shape)
        mask = mask if mask.ndim == 4 else mask.unsqueeze(1)
        if mask.requires_grad:
            wanted = self.patch.senders
            used = [number for number, sender in enumerate(port.senders) if wanted is None or sender in wanted]
        else:
            used = mask.ne(0).any(-1).flatten(0, 1).any(0).nonzero().flatten().tolist()
        if not used:
            return None
        own, other = (source.contribution(port, used) for source in (self.found, self.patch.source))
        difference = subtract(other.to(own), own).expand(-1, *x.shape)
        return einsum(mask[:, :, used].to(x).expand(-1, x.shape[1], -1, -1), difference, EDGES)

    def normalize(self, norms: Norms, x: Tensor) -> Tensor:
        """Apply the norms before a branch; `x` may have an axis of heads before that of places."""
        for name, norm in norms:
            if self.statistics is not None:
                frozen = self.statistics(name, norm, x)
                if x.ndim > frozen.scale.ndim:
                    frozen = FrozenNorm(frozen.scale.unsqueeze(-3), frozen.centered, frozen.beta)
                x = frozen(x)
            else:
                if self.recorded and hasattr(norm, "freeze"):
                    self.found.norms[name] = freeze(name, norm, x)
                x = norm(x)
        return x

    def carry(self, name: str, norm: nn.Module, stream: GraphStream) -> GraphStream:
        """Take the stream through a norm that stands on the way to later receivers, each term by itself."""
        value = None
        if self.statistics is not None:
            self.found.norms[name] = frozen = self.statistics(name, norm, stream.value)
            value = frozen(stream.value)
        elif self.keep:
            self.found.norms[name] = freeze(name, norm, stream.value)
        value = norm(stream.value) if value is None else value
        terms = tuple(term._replace(norms=(*term.norms, name)) for term in stream.terms)
        beta = getattr(norm, "beta", None)
        if beta is not None:
            terms = (*terms, Term(f"{name.partition('.')[0]}.constant", f"{name}.beta"))
            self.keep_vector(f"{name}.beta", beta[None, None, None])
        return GraphStream(value, terms)

    def send(self, name: str, out: Tensor) -> GraphStream:
        self.keep_vector(name, out)
        return GraphStream(out, (Term(name, name),))

    def send_heads(self, at: str, context: Tensor, out: Tensor) -> GraphStream:
        """Send what W_O makes of each head's context; its bias is the constant's."""
        names = [f"{at}.head.{head}" for head in range(context.shape[1])]
        if self.keep:
            weight = self.graph.matrices[at].weight
            each = einsum(context, weight, "row head n width, head width d -> head row n d")
            for name, part in zip(names, each.unflatten(1, (self.variants, -1)), strict=True):
                self.found.vectors[name] = part
        terms = [Term(name, name) for name in names]
        if at in self.graph.biased:
            terms.append(Term(f"{at.partition('.')[0]}.constant", f"{at}.bias"))
            if self.keep:
                self.keep_vector(f"{at}.bias", self.graph.matrices[at].bias[None, None])
        return GraphStream(out, tuple(terms))

    def keep_vector(self, name: str, vector: Tensor) -> None:
        self.found.vectors[name] = vector

    def last_norm(self, side: str, part: Encoder | Decoder) -> Norms:
        return () if part.stack.norm is None else ((f"{side}.norm", part.stack.norm),)


def reader_of(part: Encoder | Decoder, rows: Texts, side: str) -> Callable[[Tensor], Tensor]:
    """Return what makes logits of the last vectors `(variant, batch, n, d_model)`; with gradients if these have any."""

    def read_out(vectors: Tensor) -> Tensor:
        with still(part, gradients=vectors.requires_grad):
            logits = apply_output(part, vectors.flatten(0, 1), rows.lengths.get(side), rows.tokens[side])
        return logits.unflatten(0, vectors.shape[:2])

    return read_out


def subtract(other: Tensor, own: Tensor) -> Tensor:
    """Return other - own of parts; where a text has fewer places than the other, the difference of the rest is 0."""
    n, of = own.shape[-2], other.shape[-2]
    if n == of or 1 in (n, of):
        return other[..., :n, :] - own if n == 1 < of else other - own
    difference = torch.zeros_like(own).expand(torch.broadcast_shapes(own.shape, (*other.shape[:-2], n, 1))).clone()
    difference[..., : min(n, of), :] = other[..., :n, :] - own[..., :of, :]
    return difference


def freeze(name: str, norm: nn.Module, x: Tensor) -> FrozenNorm:
    """Return a norm with the statistics of this input; OptionError for a norm that cannot be taken apart so."""
    if not hasattr(norm, "freeze"):
        raise OptionError(
            f"{name} is a {type(norm).__name__}, which does not say what it is with its statistics kept: give it "
            "freeze(x), which returns a clearhead.model.FrozenNorm"
        )
    return norm.freeze(x.detach())  # pyright: ignore


def run_graph(
    graph: Wiring,
    texts: Texts,
    *,
    patch: Patch | None = None,
    statistics: Statistics | None = None,
    listener: Listener | None = None,
    keep: bool = False,
) -> Activations:
    """Run a graph's model over texts, in eval mode; gradients are on where a listener asks for them."""
    forward = GraphPass(graph, texts, patch=patch, statistics=statistics, listener=listener, keep=keep)
    with still(graph.model, gradients=listener is not None):
        return forward.run()


@contextlib.contextmanager
def still(model: nn.Module, *, gradients: bool = False) -> Iterator[None]:
    """Run a model in eval mode; with gradients, those of activations alone: its weights have none meanwhile."""
    training = [module for module in model.modules() if module.training]
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        with torch.set_grad_enabled(gradients):
            yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
        for module in training:
            module.training = True
