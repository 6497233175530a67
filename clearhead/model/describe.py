"""Describe: what a model is made of, by part: parameters, operations, and the memory they take.

>>> from clearhead.model import presets
>>> from clearhead.model.describe import describe
>>> made = describe(presets.base(37_000), source=20, target=10)
>>> made.parameters, made.operations
(63045632, 1708134400)
>>> [section.name for section in made.sections]
['encoder embedding', 'encoder blocks', 'decoder embedding', 'decoder blocks', 'decoder output']

Operations are those of the matrix products in one forward pass, a multiply-add counted as two, every position of every
sequence included:

- a map: two for each entry of its matrix, at each position;
- scores and weighted sum: 2 d_head and 2 d_value for each pair of a query and a key that the layer's own mask allows.
  That is n (n + 1) / 2 pairs under a causal mask, and a window's width for each query under a window; a kernel that
  forms the blocked scores too, as the reference does, does more than is counted here;
- kernelized attention in its linear form: features of queries and keys; then, with F features, 2 F d_value for each key
  to sum φ(k) vᵀ, and 2 F (d_value + 1) for each query to read the sums and the normaliser, whatever the mask;
- the output: as a map, with one row for each token of the vocabulary.

Not counted: look-ups, biases, norms, activations, the weighting itself, positions, residuals and dropout.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from clearhead.attention.cells import Positions, box
from clearhead.attention.layer import Attention
from clearhead.attention.masks import Extent, Mask, Window
from clearhead.errors import OptionError
from clearhead.model.blocks import Block
from clearhead.model.transformers import (
    Decoder,
    DecoderSpec,
    Encoder,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderSpec,
)

__all__ = ["CacheSize", "Description", "Memory", "Part", "Section", "describe"]

LINEAR = ("auto", "chunked", "recurrent")
"""Kernels that sum keys and values of kernelized attention, so that decoding keeps the sum alone."""
CELLS = 1 << 24
"""How many cells of a mask are looked at together."""
CPU = torch.device("cpu")


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a model, or of each of some equal blocks."""

    name: str
    parameters: int
    """Those that are counted in no part before."""
    frozen: int
    """How many of them are not trained."""
    operations: int
    shares: tuple[str, ...]
    """The parameters it has in common with parts before, by the paths at which they are counted."""


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """Parts that belong together, `count` times over: equal blocks are one section."""

    name: str
    count: int
    parts: tuple[Part, ...]

    @property
    def parameters(self) -> int:
        return self.count * sum(part.parameters for part in self.parts)

    @property
    def frozen(self) -> int:
        return self.count * sum(part.frozen for part in self.parts)

    @property
    def operations(self) -> int:
        return self.count * sum(part.operations for part in self.parts)


@final
@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """How many numbers decoding keeps of one sequence."""

    token: int = 0
    """For each token so far: keys and values."""
    source_token: int = 0
    """For each token of the source: the keys and values of cross-attention."""
    window: int = 0
    """At most, in the layers that see a window."""
    state: int = 0
    """In kernelized layers, however long the sequence; in float32 or better."""

    def __add__(self, other: "CacheSize") -> "CacheSize":
        return CacheSize(
            token=self.token + other.token,
            source_token=self.source_token + other.source_token,
            window=self.window + other.window,
            state=self.state + other.state,
        )


@final
@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes, in one dtype: of the parameters, and of the caches of one sequence."""

    parameters: int
    token: int
    source_token: int
    fixed: int
    """What does not grow: windows when they are full, and the states of kernelized layers."""


@final
@dataclass(frozen=True, kw_only=True)
class Description:
    """A model by part, for sequences of these lengths. `source` and `target` are 0 where it has none."""

    sections: tuple[Section, ...]
    batch: int
    source: int
    target: int
    cache: CacheSize

    @property
    def parameters(self) -> int:
        """All of them, each counted once wherever it is shared."""
        return sum(section.parameters for section in self.sections)

    @property
    def frozen(self) -> int:
        return sum(section.frozen for section in self.sections)

    @property
    def trainable(self) -> int:
        return self.parameters - self.frozen

    @property
    def operations(self) -> int:
        return sum(section.operations for section in self.sections)

    def memory(self, dtype: torch.dtype = torch.float32) -> Memory:
        """What it takes in a dtype."""
        size, state = dtype.itemsize, torch.promote_types(dtype, torch.float32).itemsize
        return Memory(
            parameters=self.parameters * size,
            token=self.cache.token * size,
            source_token=self.cache.source_token * size,
            fixed=self.cache.window * size + self.cache.state * state,
        )


def describe(
    model: Encoder | Decoder | EncoderDecoder | EncoderSpec | DecoderSpec | EncoderDecoderSpec,
    *,
    batch: int = 1,
    source: int = 128,
    target: int = 128,
) -> Description:
    """The parts of a model, or of the one a spec would build; nothing is computed or built but on the meta device.

    An encoder reads `source` tokens and a decoder writes `target` of them. Of a model, what is trained and what is
    shared is as it stands in the model itself.
    """
    for name, number in (("batch", batch), ("source", source), ("target", target)):
        if number < 1:
            raise OptionError(f"describe: {name} must be 1 or more; came {number}")
    spec = model.spec if isinstance(model, nn.Module) else model
    with torch.device("meta"):
        twin = copy.deepcopy(spec).build().to("meta")  # a copy, since a part of the spec may be built already
    counter = Counter(model if isinstance(model, nn.Module) else twin, batch)
    with torch.no_grad():
        sections = tuple(counter.sections(twin, source, target))
    writers = decoder_blocks(twin)
    if counter.left:
        raise OptionError(
            f"describe: this model has parameters that its spec knows nothing of: {', '.join(counter.left)}"
        )
    return Description(
        sections=sections,
        batch=batch,
        source=source if not writers or any(block.cross is not None for block in writers) else 0,
        target=target if writers else 0,
        cache=sum((cache_of(block) for block in writers), CacheSize()),
    )


class Counter:
    """Goes through a model on the meta device, and through the parameters of the model it stands for."""

    def __init__(self, owner: nn.Module, batch: int) -> None:
        self.left = dict(owner.named_parameters(remove_duplicate=False))
        self.first: dict[int, str] = {}
        self.batch = batch

    def sections(self, model: nn.Module, source: int, target: int) -> Iterator[Section]:
        match model:
            case EncoderDecoder():
                yield from self.stack(model.encoder, "encoder", source, 0)
                yield from self.stack(model.decoder, "decoder", target, source)
            case Encoder():
                yield from self.stack(model, "", source, 0)
            case Decoder():
                yield from self.stack(model, "", target, source)

    def stack(self, model: Encoder | Decoder, name: str, n: int, n_memory: int) -> Iterator[Section]:
        """An encoder or a decoder of n tokens: its embedding, its blocks and its output."""
        path, title = (f"{name}.", f"{name} ") if name else ("", "")
        yield section(f"{title}embedding", self.embedding(model, path, n))
        blocks = [
            tuple(self.block(block, f"{path}stack.blocks.{index}", n, n_memory))
            for index, block in enumerate(blocks_of(model))
        ]
        for numbers, parts in runs(blocks):
            which = "" if len(numbers) == len(blocks) else f" {numbers[0]}" + f" to {numbers[-1]}" * (len(numbers) > 1)
            yield section(f"{title}block{'s' * (len(numbers) > 1)}{which}", parts, len(numbers))
        output = section(f"{title}output", self.output(model, path, n))
        if output.parts:
            yield output

    def embedding(self, model: Encoder | Decoder, path: str, n: int) -> Iterator[Part]:
        if model.embedding.position is not None:
            model.embedding.position(n)  # raises where it has fewer
        yield self.part("tokens", f"{path}embedding.table")
        yield self.part("positions", f"{path}embedding.position")
        yield self.part("norm", f"{path}embedding.norm")

    def block(self, block: Block, path: str, n: int, n_memory: int) -> Iterator[Part]:
        yield from self.attention("attention", block.attention, f"{path}.attention", n, n)
        if block.cross is not None:
            yield from self.attention("cross", block.cross, f"{path}.cross", n, n_memory)
        if block.feed_forward is not None:
            operations, _ = measured(block.feed_forward, self.vectors(n, block.attention.d_model))
            yield self.part("feed-forward", f"{path}.feed_forward", operations=operations)
        yield self.part("norms", *(f"{path}.around_{name}" for name in ("attention", "cross", "feed_forward")))

    def attention(self, name: str, layer: Attention, path: str, n_query: int, n_key: int) -> Iterator[Part]:
        x, memory = self.vectors(n_query, layer.d_model), self.vectors(n_key, layer.d_model)
        made = {}
        for role, sources in (("query", x), ("key", memory), ("value", memory)):
            operations, made[role] = measured(getattr(layer, role), sources)
            yield self.part(f"{name} {role} map", f"{path}.{role}", operations=operations)
        inner = summed if layer.weighting.form == "kernelized" else scored
        (first, scoring), (second, mixing) = inner(layer, made["query"], made["key"], made["value"])
        parts = (f"{path}.{role}" for role in ("similarity", "weighting", "position"))
        yield self.part(f"{name} {first}", *parts, operations=scoring)
        yield self.part(f"{name} {second}", operations=mixing)
        contexts = meta(self.batch, n_query, layer.shape.n_heads * made["value"].shape[-1])
        yield self.part(f"{name} output map", f"{path}.output", operations=measured(layer.output, contexts)[0])

    def output(self, model: Encoder | Decoder, path: str, n: int) -> Iterator[Part]:
        yield self.part("norm", f"{path}stack.norm")
        if model.output is not None:
            operations, _ = measured(model.output, self.vectors(n, model.spec.d_model), None)
            yield self.part("output", f"{path}output", operations=operations)

    def vectors(self, n: int, d_model: int) -> Tensor:
        return meta(self.batch, n, d_model)

    def part(self, name: str, *paths: str, operations: int = 0) -> Part:
        """The part that has every parameter under these paths, of which those counted before are shared."""
        under = tuple(f"{path}." for path in paths)
        found = {path: self.left.pop(path) for path in list(self.left) if f"{path}.".startswith(under)}
        own = [parameter for path, parameter in found.items() if self.first.setdefault(id(parameter), path) == path]
        return Part(
            name=name,
            parameters=sum(parameter.numel() for parameter in own),
            frozen=sum(parameter.numel() for parameter in own if not parameter.requires_grad),
            operations=operations,
            shares=tuple(first for path, parameter in found.items() if (first := self.first[id(parameter)]) != path),
        )


def section(name: str, parts: Iterator[Part] | Sequence[Part], count: int = 1) -> Section:
    """A section of those parts that have anything to count."""
    kept = tuple(part for part in parts if part.parameters or part.operations or part.shares)
    return Section(name=name, count=count, parts=kept)


def runs(blocks: Sequence[tuple[Part, ...]]) -> Iterator[tuple[list[int], tuple[Part, ...]]]:
    """Equal blocks next to each other, and their numbers, counted from 1."""
    for parts, numbered in groupby(enumerate(blocks, 1), key=lambda pair: pair[1]):
        yield [number for number, _ in numbered], parts


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


def measured(function: Callable[..., Any], *inputs: Tensor | None) -> tuple[int, Any]:
    """How many operations the matrix products of a function take, and what it gives."""
    with FlopCounterMode(display=False) as counter:
        made = function(*inputs)
    return counter.get_total_flops(), made


Named = tuple[str, int]


def scored(layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Named, Named]:
    """Every pair has its score, and its share in the sum."""
    batch, n_heads, n_query, _ = query.shape
    once, (asked, answered) = measured(layer.similarity.prepare, query, every_head(key, n_heads))
    one, _ = measured(layer.similarity.score, asked[:1, :, :1], answered[:1, :, :1])
    pairs = allowed_pairs(layer.mask, Extent(batch, n_heads, n_query, key.shape[2], CPU))
    return ("scores", once + pairs * one // n_heads), ("weighted sum", pairs * 2 * value.shape[-1])


def summed(layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Named, Named]:
    """Keys and values are summed, and the sums read."""
    batch, n_heads, n_query, _ = query.shape
    once, (_, answered) = measured(layer.similarity.prepare, query, every_head(key, n_heads))
    d_value, each = value.shape[-1], 2 * batch * n_heads * answered.shape[-1]
    return ("features and sums", once + each * d_value * key.shape[2]), ("weighted sum", each * (d_value + 1) * n_query)


def every_head(key: Tensor, n_heads: int) -> Tensor:
    return key.repeat_interleave(n_heads // key.shape[1], 1)


def allowed_pairs(mask: Mask, extent: Extent) -> int:
    """How many pairs of a query and a key the mask allows, over all heads and sequences; both count from 0."""
    mask.check(extent)
    query, key = torch.arange(extent.n_query), torch.arange(extent.n_key)
    if mask.kinds <= {"none", "causal", "window"}:
        return spans(mask, query, extent.n_key) * extent.batch * extent.n_heads
    total, step = 0, max(1, CELLS // (extent.batch * extent.n_heads * extent.n_key))
    for start in range(0, extent.n_query, step):
        rows = slice(start, min(start + step, extent.n_query))
        allowed = mask.allowed(box(Positions(query, key), batch=extent.batch, n_heads=extent.n_heads, rows=rows))
        cells = extent.batch * extent.n_heads * (rows.stop - rows.start) * extent.n_key
        total += int(allowed.sum()) * cells // allowed.numel()
    return total


def spans(mask: Mask, query: Tensor, n_key: int) -> int:
    """The same of one head, where each query sees one unbroken range of keys."""
    first, last = torch.zeros_like(query), torch.full_like(query, n_key - 1)
    if "causal" in mask.kinds:
        last = last.minimum(query)
    for window in windows(mask):
        first, last = first.maximum(query - window.left), last.minimum(query + window.right)
    return int((last - first + 1).clamp(min=0).sum())


def windows(mask: Mask) -> list[Window]:
    return [term for term in mask.terms if isinstance(term, Window)]


def blocks_of(model: Encoder | Decoder) -> list[Block]:
    return [block for block in model.stack.blocks if isinstance(block, Block)]


def decoder_blocks(model: Encoder | Decoder | EncoderDecoder) -> list[Block]:
    """The blocks that write, and so keep caches."""
    match model:
        case EncoderDecoder():
            return blocks_of(model.decoder)
        case Decoder():
            return blocks_of(model)
        case Encoder():
            return []


def cache_of(block: Block) -> CacheSize:
    own = own_cache(block.attention)
    return own if block.cross is None else own + cross_cache(block.cross)


def own_cache(layer: Attention) -> CacheSize:
    """What decoding keeps for a layer that attends to its own sequence."""
    if layer.weighting.form == "kernelized" and layer.mask.kinds == {"causal"} and layer.kernel in LINEAR:
        return CacheSize(state=state(layer))
    if seen := windows(layer.mask):
        return CacheSize(window=keys_and_values(layer) * min(window.left for window in seen))
    return CacheSize(token=keys_and_values(layer))


def cross_cache(layer: Attention) -> CacheSize:
    """What decoding keeps for a layer that attends to the source."""
    if layer.weighting.form == "kernelized" and layer.mask.kinds == {"none"} and layer.kernel in LINEAR:
        return CacheSize(state=state(layer))
    return CacheSize(source_token=keys_and_values(layer))


def keys_and_values(layer: Attention) -> int:
    one = meta(1, 1, layer.d_model)
    return layer.key(one).numel() + layer.value(one).numel()


def state(layer: Attention) -> int:
    """The sum of φ(k) vᵀ and of φ(k), for each head."""
    key, value = (every_head(side(meta(1, 1, layer.d_model)), layer.shape.n_heads) for side in (layer.key, layer.value))
    features = layer.similarity.prepare(key, key)[1]
    return features.numel() * (value.shape[-1] + 1)
