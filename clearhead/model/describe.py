"""Describe: what a model is made of, by part: parameters, operations, and the memory they take.

>>> from clearhead.model import presets
>>> from clearhead.model.describe import describe
>>> facts = describe(presets.base(37_000), source=20, target=10)
>>> facts.parameters, facts.operations
(63045632, 1708134400)
>>> [section.name for section in facts.sections]
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

Not counted: look-ups, biases, norms, activations, the weighting itself, positions, residuals and dropout. Each piece of
a block runs on the meta device under torch's own counter, so a user's own part is counted too. Attention is put
together here, since no kernel forms exactly the scores that the mask allows.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.attention.layer import Attention
from clearhead.attention.mask_numbers import Extent
from clearhead.attention.mask_rules import Mask, Window
from clearhead.attention.score_index import Positions, box
from clearhead.errors import OptionError
from clearhead.model.blocks import Block
from clearhead.model.outputs import ToNgramLogits
from clearhead.model.transformers import (
    Decoder,
    DecoderSpec,
    Encoder,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderSpec,
    Transformer,
)

CELLS = 1 << 24
"""Cells of a mask evaluated at a time."""


class PartCost(NamedTuple):
    """A part of a block: where in the block its parameters are, and its operations."""

    name: str
    paths: tuple[str, ...]
    operations: int


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


def count_operations(function: Callable[..., Any], *inputs: Tensor | None) -> tuple[int, Any]:
    """Count the operations of a function's matrix products, with gradients on: without, some take another way."""
    from torch.utils.flop_counter import FlopCounterMode  # here, since it imports Triton where that is installed

    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        result = function(*inputs)
    return counter.get_total_flops(), result


def block_costs(block: Block, batch: int, n: int, n_memory: int) -> Iterator[PartCost]:
    """Return the parts of a block for n tokens, cross-attending to n_memory vectors if it does."""
    yield from attention_costs("attention", block.attention, batch, n, n)
    if block.cross is not None:
        yield from attention_costs("cross", block.cross, batch, n, n_memory)
    if block.feed_forward is not None:
        operations, _ = count_operations(block.feed_forward, meta(batch, n, block.attention.d_model))
        yield PartCost("feed-forward", ("feed_forward",), operations)
    yield PartCost("norms", ("around_attention", "around_cross", "around_feed_forward"), 0)


def attention_costs(slot: str, layer: Attention, batch: int, n_query: int, n_key: int) -> Iterator[PartCost]:
    query_ops, query = count_operations(layer.query, meta(batch, n_query, layer.d_model))
    key_ops, key = count_operations(layer.key, meta(batch, n_key, layer.d_model))
    value_ops, value = count_operations(layer.value, meta(batch, n_key, layer.d_model))
    yield PartCost(f"{slot} query map", (f"{slot}.query",), query_ops)
    yield PartCost(f"{slot} key map", (f"{slot}.key",), key_ops)
    yield PartCost(f"{slot} value map", (f"{slot}.value",), value_ops)
    count_pairs = count_summed if layer.weighting.form == "kernelized" else count_scored
    name, score_ops, sum_ops = count_pairs(layer, query, key, value)
    yield PartCost(f"{slot} {name}", (f"{slot}.similarity", f"{slot}.weighting", f"{slot}.position"), score_ops)
    yield PartCost(f"{slot} weighted sum", (), sum_ops)
    output_ops, _ = count_operations(layer.output, meta(batch, n_query, query.shape[1] * value.shape[-1]))
    yield PartCost(f"{slot} output map", (f"{slot}.output",), output_ops)


def count_scored(layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> tuple[str, int, int]:
    """Count operations where every pair has its score, and its term in the sum."""
    batch, n_heads, n_query, _ = query.shape
    once, (prepared_query, prepared_key) = count_operations(layer.similarity.prepare, query, every_head(key, n_heads))
    one_in_each_head, _ = count_operations(layer.similarity.score, prepared_query[:1, :, :1], prepared_key[:1, :, :1])
    pairs = allowed_pairs(layer.mask, Extent(batch, n_heads, n_query, key.shape[2], torch.device("cpu")))
    return "scores", once + pairs * one_in_each_head // n_heads, pairs * 2 * value.shape[-1]


def count_summed(layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> tuple[str, int, int]:
    """Count operations where keys and values are summed, and the sums read."""
    batch, n_heads, n_query, _ = query.shape
    once, (_, prepared_key) = count_operations(layer.similarity.prepare, query, every_head(key, n_heads))
    d_value, per_column = value.shape[-1], 2 * batch * n_heads * prepared_key.shape[-1]
    return "features and sums", once + per_column * d_value * key.shape[2], per_column * (d_value + 1) * n_query


def every_head(key: Tensor, n_heads: int) -> Tensor:
    """Repeat shared heads, one for each query head."""
    return key.repeat_interleave(n_heads // key.shape[1], 1)


def allowed_pairs(mask: Mask, extent: Extent) -> int:
    """Count the pairs of a query and a key that the mask allows, over all heads and sequences, both from 0."""
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
    """Count the pairs of one head where each query sees one unbroken range of keys."""
    first, last = torch.zeros_like(query), torch.full_like(query, n_key - 1)
    if "causal" in mask.kinds:
        last = last.minimum(query)
    for window in windows(mask):
        first, last = first.maximum(query - window.left), last.minimum(query + window.right)
    return int((last - first + 1).clamp(min=0).sum())


def windows(mask: Mask) -> list[Window]:
    return [term for term in mask.terms if isinstance(term, Window)]


@dataclass(frozen=True, kw_only=True)
class PartSize:
    """One part of a model, or of each of some equal blocks."""

    name: str
    parameters: int
    """Those that are counted in no part before."""
    frozen: int
    """Number of them that are frozen."""
    operations: int
    shares: tuple[str, ...]
    """The parameters it has in common with parts before, by the paths at which they are counted."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Parts that belong together, `count` times over: equal blocks are one section."""

    name: str
    count: int
    parts: tuple[PartSize, ...]

    @property
    def parameters(self) -> int:
        return self.count * sum(part.parameters for part in self.parts)

    @property
    def frozen(self) -> int:
        return self.count * sum(part.frozen for part in self.parts)

    @property
    def operations(self) -> int:
        return self.count * sum(part.operations for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """Numbers in the KV cache of one sequence."""

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


@dataclass(frozen=True, kw_only=True)
class MemorySize:
    """Bytes, in one dtype: of the parameters, and of the caches of one sequence."""

    parameters: int
    token: int
    source_token: int
    fixed: int
    """Part that does not grow: full windows, and the states of kernelized layers."""


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
        """Number of all parameters, each counted once wherever it is shared."""
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

    def memory(self, dtype: torch.dtype = torch.float32) -> MemorySize:
        """Return the bytes it takes in a dtype."""
        size, state = dtype.itemsize, torch.promote_types(dtype, torch.float32).itemsize
        return MemorySize(
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
    """Return the parts of a model, or of the model a spec would build, which is built on the meta device only.

    An encoder reads `source` tokens and a decoder writes `target` of them. For a model, the counts of trained
    and shared parameters are those of the model itself.
    """
    for name, number in (("batch", batch), ("source", source), ("target", target)):
        if number < 1:
            raise OptionError(f"describe: {name} must be 1 or more; came {number}")
    spec = model.spec if isinstance(model, nn.Module) else model
    with torch.device("meta"):
        twin = copy.deepcopy(spec).build().to("meta")  # a copy, since a part of the spec may be built already
    counter = Counter(model if isinstance(model, nn.Module) else twin, batch)
    sections = tuple(counter.sections(twin, source, target))
    writers = [] if twin.decoder is None else blocks_of(twin.decoder)
    if counter.left:
        raise OptionError(
            f"describe: this model has parameters that its spec knows nothing of: {', '.join(counter.left)}"
        )
    return Description(
        sections=sections,
        batch=batch,
        source=source if not writers or any(block.cross is not None for block in writers) else 0,
        target=target if writers else 0,
        cache=sum(
            [
                *(own_cache(block.attention) for block in writers),
                *(cross_cache(block.cross) for block in writers if block.cross is not None),
            ],
            CacheSize(),
        ),
    )


class Counter:
    """Counts a model on the meta device, and the parameters of the model it stands for."""

    def __init__(self, owner: nn.Module, batch: int) -> None:
        self.left: dict[str, Tensor] = dict(owner.named_parameters(remove_duplicate=False))
        for path, module in owner.named_modules():
            if isinstance(module, ToNgramLogits):
                self.left |= {f"{path}.{name}": tensor for name, tensor in module.weights().items()}
        self.first: dict[int, str] = {}
        self.batch = batch

    def sections(self, model: Transformer, source: int, target: int) -> Iterator[Section]:
        both = model.encoder is not None and model.decoder is not None
        if model.encoder is not None:
            yield from self.stack(model.encoder, "encoder" if both else "", source, 0)
        if model.decoder is not None:
            yield from self.stack(model.decoder, "decoder" if both else "", target, source)

    def stack(self, model: Encoder | Decoder, name: str, n: int, n_memory: int) -> Iterator[Section]:
        """Count an encoder or a decoder of n tokens: its embedding, its blocks and its output."""
        path, title = (f"{name}.", f"{name} ") if name else ("", "")
        yield section(f"{title}embedding", self.embedding(model, path, n))
        costs: dict[int, list[PartCost]] = {}  # by the spec: most blocks have the same
        blocks = []
        for index, (block, spec) in enumerate(zip(blocks_of(model), model.spec.blocks, strict=True)):
            if id(spec) not in costs:
                costs[id(spec)] = list(block_costs(block, self.batch, n, n_memory))
            blocks.append(tuple(self.block(f"{path}stack.blocks.{index}", costs[id(spec)])))
        for numbers, parts in runs(blocks):
            yield section(f"{title}{block_name(numbers, len(blocks))}", parts, len(numbers))
        output = section(f"{title}output", self.output(model, path, n))
        if output.parts:
            yield output

    def embedding(self, model: Encoder | Decoder, path: str, n: int) -> Iterator[PartSize]:
        if model.embedding.position is not None:
            model.embedding.position(n)  # raises where it has fewer
        yield self.part("tokens", f"{path}embedding.table")
        yield self.part("positions", f"{path}embedding.position")
        yield self.part("segments", f"{path}embedding.segment")
        yield self.part("norm", f"{path}embedding.norm")

    def block(self, path: str, costs: Sequence[PartCost]) -> Iterator[PartSize]:
        for cost in costs:
            yield self.part(cost.name, *(f"{path}.{name}" for name in cost.paths), operations=cost.operations)

    def output(self, model: Encoder | Decoder, path: str, n: int) -> Iterator[PartSize]:
        yield self.part("norm", f"{path}stack.norm")
        if model.output is not None:
            operations, _ = count_operations(model.output, meta(self.batch, n, model.spec.d_model), None)
            yield self.part("output", f"{path}output", operations=operations)

    def part(self, name: str, *paths: str, operations: int = 0) -> PartSize:
        """Return the part that has every parameter under these paths; those counted before are shared."""
        prefixes = tuple(f"{path}." for path in paths)
        members = {path: self.left.pop(path) for path in list(self.left) if f"{path}.".startswith(prefixes)}
        counted = [
            parameter for path, parameter in members.items() if self.first.setdefault(id(parameter), path) == path
        ]
        return PartSize(
            name=name,
            parameters=sum(parameter.numel() for parameter in counted),
            frozen=sum(parameter.numel() for parameter in counted if not parameter.requires_grad),
            operations=operations,
            shares=tuple(first for path, parameter in members.items() if (first := self.first[id(parameter)]) != path),
        )


def section(name: str, parts: Iterator[PartSize] | Sequence[PartSize], count: int = 1) -> Section:
    """Return a section of those parts that have anything to count."""
    nonempty = tuple(part for part in parts if part.parameters or part.operations or part.shares)
    return Section(name=name, count=count, parts=nonempty)


def runs(blocks: Sequence[tuple[PartSize, ...]]) -> Iterator[tuple[list[int], tuple[PartSize, ...]]]:
    """Return equal blocks next to each other, and their numbers, counted from 1."""
    for parts, numbered in groupby(enumerate(blocks, 1), key=lambda pair: pair[1]):
        yield [number for number, _ in numbered], parts


def block_name(numbers: Sequence[int], of: int) -> str:
    """Return `blocks` for all of them, else `block 3` or `blocks 4 to 6`."""
    if len(numbers) == of:
        return "block" if of == 1 else "blocks"
    return f"block {numbers[0]}" if len(numbers) == 1 else f"blocks {numbers[0]} to {numbers[-1]}"


def blocks_of(model: Encoder | Decoder) -> list[Block]:
    return [block for block in model.stack.blocks if isinstance(block, Block)]


def own_cache(layer: Attention) -> CacheSize:
    """Return what the KV cache of a self-attention layer holds."""
    if layer.sums and layer.mask.kinds == {"causal"}:
        return CacheSize(state=state(layer))
    if window_masks := windows(layer.mask):
        return CacheSize(window=keys_and_values(layer) * min(window.left for window in window_masks))
    return CacheSize(token=keys_and_values(layer))


def cross_cache(layer: Attention) -> CacheSize:
    """Return what the KV cache of a cross-attention layer holds."""
    if layer.sums and layer.mask.kinds == {"none"}:
        return CacheSize(state=state(layer))
    return CacheSize(source_token=keys_and_values(layer))


def keys_and_values(layer: Attention) -> int:
    token = meta(1, 1, layer.d_model)
    return layer.key(token).numel() + layer.value(token).numel()


def state(layer: Attention) -> int:
    """Return the sum of φ(k) vᵀ and of φ(k), for each head; for logarithms of features also the greatest so far."""
    key, value = (every_head(side(meta(1, 1, layer.d_model)), layer.shape.n_heads) for side in (layer.key, layer.value))
    features = layer.similarity.prepare(key, key)[1]
    return features.numel() * (value.shape[-1] + 1 + (layer.similarity.form == "log features"))
