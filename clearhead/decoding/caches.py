"""KV caches: keys and values of the tokens so far, so that a new token costs one position and not all of them.

Each class holds something else. For self-attention: every key and value (`GrowingCache`), those in the window
(`WindowCache`), or their sum in kernelized attention (`StateCache`). For cross-attention: the keys and values of the
encoder's output, made once (`SourceCache`), or their sum (`SourceStateCache`). Each is a source of keys and values
(`clearhead.model.kv_source`), so the model's forward is the same with and without a cache.

Rows are sentences times beams. Prompts are padded on the left, so that all rows write the same column; positions count
from each row's first token, and padding has positions below 0.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import cast, final

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.heads import WholeMap
from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.kernels import KERNELS, run
from clearhead.attention.kernels.chunked import by_heads, in_chunks
from clearhead.attention.kernels.linear import State, hide, kernelized, map_features
from clearhead.attention.layer import Attention
from clearhead.attention.masks import Mask, Table, everything
from clearhead.attention.positions import Rotary
from clearhead.attention.score_index import Positions
from clearhead.decoding import one_query_gpu
from clearhead.decoding.clock import Clock
from clearhead.decoding.few_queries import BeamAttention
from clearhead.decoding.source import Source
from clearhead.model.fast_step import FastStep, StepNorm, can_join, join_linears, linear_step
from clearhead.model.fused_step import MOST_ROWS, FusedBranch, FusedLinear, can_fuse
from clearhead.model.kv_source import KVSource
from clearhead.model.norms import BuiltRMSNorm

MOST_TURNED = 1 << 16
"""Positions whose rotations are made ahead for a fused step."""
FIRST_COLUMNS = 64
"""Columns allocated at the start; twice as many each time they are filled."""

PerHead = Float[Tensor, "row head n d"]


class Cache(KVSource):
    """KV cache of one attention layer; calling it adds the new keys and values, and attends."""

    reads_filled = False
    """Whether a fused step attends, which reads the filled columns alone."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    @abstractmethod
    def select(self, rows: Int[Tensor, "new_row"], sentences: Int[Tensor, "new_sentence"] | None) -> None:
        """Keep these rows, some perhaps several times, of these sentences (None: of all)."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Return all tensors it holds: what decoding costs in memory."""

    def can_fix(self, layer: Attention) -> bool:
        """Check whether its `fast_step` does the same work whatever the column, once `fix` was called."""
        return False

    def fix(self, beams: int, columns: int) -> None:
        """Move to fixed memory for this many beams and columns; the clock still counts beams and columns as before."""

    def move(self, rows: Int[Tensor, "row"]) -> None:
        """Overwrite all rows (of cross-attention: sentences) with these, as many, in the same memory."""
        raise NotImplementedError(f"{type(self).__name__} has no memory that stays where it is")

    def refill(self, layer: Attention, source: Float[Tensor, "sentence n d_model"]) -> None:
        """Forget all columns, in fixed memory; cross-attention takes keys and values of another source."""
        raise NotImplementedError(f"{type(self).__name__} has no memory that stays where it is")

    def project_new(self, layer: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the new vectors, rotated by their positions; zeros for padding."""
        query, key, value = layer.project(x, x, x)
        turn = self.clock.turn
        query, key = turn(layer.position, query), turn(layer.position, key)
        return query, zero_padding(key, self.clock.padding), zero_padding(value, self.clock.padding)


class FullCache(Cache):
    """Every key and value: `keys` and `values` are `(row, head, column, d)`, and `clock.total` columns are read."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.keys = self.values = torch.empty(0)

    @abstractmethod
    def write(self, key: PerHead, value: Float[Tensor, "row head n d_value"]) -> None:
        """Write the keys and values of the new columns."""

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        query, key, value = self.project_new(layer, x)
        self.write(key, value)
        keys, values = (cached[:, :, : self.clock.total] for cached in (self.keys, self.values))
        return layer.finish(attend_cached(layer, self.call(layer, query, keys, values)))

    def fast_step(self, layer: Attention) -> FastStep:
        """Return one product for query, key and value and one call of torch's kernel, where that is all there is."""
        scale = layer.sdpa_scale(can_join)
        if scale is None or layer.mask.kinds != {"causal"}:
            return super().fast_step(layer)
        heads, clock, project = layer.shape, self.clock, self.project_step(layer)
        output, grouped = linear_step(layer.output), heads.n_heads != heads.n_kv_heads

        def step(x: Tensor) -> Tensor:
            query = project(x)
            if clock.column is None:
                keys, values = self.keys.narrow(2, 0, clock.total), self.values.narrow(2, 0, clock.total)
                mask = clock.sdpa_mask(query.dtype)
            elif clock.beams == 1 and one_query_gpu.serves(query, self.keys):
                bias = None if clock.pads is None else clock.bias(query.dtype)
                context = one_query_gpu.attend_one(
                    query, self.keys, self.values, scale=scale, bias=bias, column=clock.column
                )
                return output(context.reshape(len(x), -1))
            else:
                query, keys, values, mask = clock.by_sentence(query), self.keys, self.values, clock.bias(query.dtype)
            context = F.scaled_dot_product_attention(query, keys, values, mask, scale=scale, enable_gqa=grouped)
            return output(context.transpose(1, 2).reshape(len(x), -1))

        return FusedAttention(self, layer, step, scale) if can_fuse_attention(layer, clock.limit) else step

    def make_room(self, like: PerHead) -> None:
        """Allocate the memory that a fused step writes to, if there is none yet, for keys shaped like this."""

    def project_step(self, layer: Attention) -> Callable[[Tensor], Float[Tensor, "row head 1 d"]]:
        """Return a function of the vectors of one position that writes their keys and values, and returns the queries.

        Query, key and value are one product, so the layer's maps must be such that `can_join` allows it.
        """
        heads, clock, position = layer.shape, self.clock, layer.position
        maps = [cast(WholeMap, part) for part in (layer.query, layer.key, layer.value)]
        project, widths = join_linears([part.linear for part in maps]), [part.linear.out_features for part in maps]
        query_map, key_map, _ = maps

        def step(x: Tensor) -> Tensor:
            parts = torch.split_with_sizes(project(x), widths, 1)
            query, key, value = (part.view(len(x), -1, 1, heads.d_head) for part in parts)
            query, key = query_map.normed(query), key_map.normed(key)
            if position.turns:
                query, key = clock.turn(position, query), clock.turn(position, key)
            self.write(key, value)
            return query

        return step

    def call(self, layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> AttentionInputs:
        """Return the inputs of the kernel. Keys are in order in the cache, so positions are given only where needed."""
        clock, mask, positions = self.clock, layer.mask, None
        if clock.real is not None:
            plain = clock.new == 1 and mask.kinds == {"causal"} and layer.position.bias_kind == "none"
            mask = clock.real if plain else mask & clock.real
            positions = None if plain else Positions(clock.positions, clock.keys)
        return call_of(layer, (query, key, value), mask, positions)


def can_fuse_attention(layer: Attention, limit: int) -> bool:
    """Check for plain maps, RMS norms of queries and keys or none, and rotary positions or none."""
    maps = [cast(WholeMap, part) for part in (layer.query, layer.key, layer.value)]
    norms = [part.norm for part in maps[:2]]
    fused_norms = norms == [None, None] or all(
        isinstance(part.norm, BuiltRMSNorm) and not part.joint for part in maps[:2]
    )
    position = layer.position
    turned = not position.turns or (isinstance(position, Rotary) and limit <= MOST_TURNED)
    return fused_norms and turned and can_fuse([*(part.linear for part in maps), layer.output])


@final
class FusedAttention(FusedBranch):
    """Self-attention of one new position of every row: a product, attention with all that a step does around it, and a
    product.
    """

    def __init__(self, cache: FullCache, layer: Attention, step: FastStep, scale: float) -> None:
        self.cache, self.clock, self.step = cache, cache.clock, step
        cache.reads_filled = True
        linears = [cast(WholeMap, part).linear for part in (layer.query, layer.key, layer.value)]
        bias = None if linears[0].bias is None else torch.cat([part.bias for part in linears])
        self.project = FusedLinear(torch.cat([part.weight for part in linears]), bias)
        output = cast(nn.Linear, layer.output)
        self.output = FusedLinear(output.weight, output.bias)
        self.attend = one_query_gpu.StepAttention(layer, scale, MOST_ROWS)
        self.shape = layer.shape
        # Made here and not in the step, which may be recorded without having run before.
        self.angles = self.clock.angle_table(layer.position, layer.shape.d_head) if layer.position.turns else ()

    def __call__(self, x: Tensor) -> Tensor:
        return self.step(x)

    def serves(self, x: Tensor) -> bool:
        return len(x) <= MOST_ROWS and self.clock.bounds is not None

    def residual(self, x: Tensor, norm: StepNorm) -> Tensor:
        heads, bounds = self.shape, self.clock.bounds
        assert bounds is not None
        self.cache.make_room(x.new_empty(0, heads.n_kv_heads, 1, heads.d_head))
        vectors = self.project(x, norm=norm)
        return self.output(self.attend(vectors, self.cache.keys, self.cache.values, self.angles, bounds), residual=x)


@final
class GrowingCache(FullCache):
    """Every key and value, in memory allocated ahead."""

    spare: tuple[Tensor, Tensor] | None = None

    def can_fix(self, layer: Attention) -> bool:
        return layer.sdpa_scale(can_join) is not None and layer.mask.kinds == {"causal"}

    def fix(self, beams: int, columns: int) -> None:
        self.spare, filled = None, slice(self.clock.n + self.clock.new)
        for name, old in (("keys", self.keys), ("values", self.values)):
            new = old.new_zeros(*old.shape[:2], beams, columns, old.shape[3])
            new[:, :, :, filled] = old.unflatten(2, (self.clock.beams, -1))[:, :, :, filled]
            setattr(self, name, new.flatten(2, 3))

    def move(self, rows: Tensor) -> None:
        for cached in (self.keys, self.values):
            cached.copy_(cached.index_select(0, rows))

    def refill(self, layer: Attention, source: Tensor) -> None:
        for cached in (self.keys, self.values):
            cached.zero_()  # no mask hides a NaN: 0 times it is NaN

    def write(self, key: PerHead, value: Float[Tensor, "row head n d_value"]) -> None:
        if self.clock.column is not None:
            self.keys.index_copy_(2, self.clock.slots, self.clock.by_sentence(key))
            self.values.index_copy_(2, self.clock.slots, self.clock.by_sentence(value))
            return
        if self.clock.total > (self.keys.shape[2] if self.keys.ndim == 4 else 0):
            columns = max(self.clock.total, min(max(2 * self.clock.n, FIRST_COLUMNS), self.clock.limit))
            self.keys, self.values = self.grow(self.keys, key, columns), self.grow(self.values, value, columns)
        new = slice(self.clock.n, self.clock.total)
        self.keys[:, :, new] = key
        self.values[:, :, new] = value

    def grow(self, old: Tensor, like: PerHead, columns: int) -> Tensor:
        grown = like.new_zeros(*like.shape[:2], columns, like.shape[3])
        filled = min(self.clock.n + self.clock.new, old.shape[2]) if old.ndim == 4 else 0
        if filled:
            grown[:, :, :filled] = old[:, :, :filled]
        return grown

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Copy the rows into spare memory of the same shape, if their number stays: the two take turns."""
        if self.spare is None or self.spare[0].shape != (len(rows), *self.keys.shape[1:]):
            self.spare = (
                self.keys.new_empty(len(rows), *self.keys.shape[1:]),
                self.values.new_empty(len(rows), *self.values.shape[1:]),
            )
        old = self.keys, self.values
        for source, target in zip(old, self.spare, strict=True):
            torch.index_select(self.written_columns(source), 0, rows, out=self.written_columns(target))
        self.keys, self.values = self.spare
        self.spare = old if len(old[0]) == len(rows) else None

    def written_columns(self, cached: Tensor) -> Tensor:
        """Return the columns that have been written, or all of them where copying all in one piece is quicker."""
        total = self.clock.total
        return cached.narrow(2, 0, total) if cached.is_cpu and 4 * total < 3 * cached.shape[2] else cached

    def tensors(self) -> list[Tensor]:
        return [self.keys, self.values, *(self.spare or ())]


@final
class WindowCache(Cache):
    """The keys and values of the last `left` positions: what a window mask will still see."""

    def __init__(self, clock: Clock, left: int) -> None:
        super().__init__(clock)
        self.left = left
        self.window: tuple[Tensor, Tensor] | None = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        query, key, value = self.project_new(layer, x)
        if self.window is not None:
            key, value = torch.cat([self.window[0], key], 2), torch.cat([self.window[1], value], 2)
        first = max(0, key.shape[2] - self.left)
        self.window = key[:, :, first:].clone(), value[:, :, first:].clone()
        return layer.finish(attend_cached(layer, self.call(layer, query, key, value)))

    def call(self, layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> AttentionInputs:
        """Return the inputs of the kernel. One new query sees all that is kept, if the mask is a window."""
        clock, mask = self.clock, layer.mask
        columns = slice(clock.total - key.shape[2], None)
        plain = clock.new == 1 and mask.kinds <= {"causal", "window"}
        real = None if clock.pads is None else Table((clock.keys[:, columns] >= 0)[:, None, None, :])
        if plain:
            mask = everything()
        # A bias may read where a key is, and not only how far away: by default the oldest that is kept would be at 0.
        default_positions = (real is None and key.shape[2] == clock.total) or (
            plain and layer.position.bias_kind == "none"
        )
        positions = None if default_positions else Positions(clock.positions, clock.keys[..., columns])
        return call_of(layer, (query, key, value), mask if real is None else mask & real, positions)

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        assert self.window is not None
        self.window = self.window[0][rows], self.window[1][rows]

    def tensors(self) -> list[Tensor]:
        return list(self.window or ())


@final
class StateCache(Cache):
    """Kernelized attention: the sum of φ(k) vᵀ over all keys so far, of a size that does not grow."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.state: State | None = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        call = call_of(layer, self.project_new(layer, x), layer.mask)
        features = map_features(call.to_float32().with_every_head())
        # Padding was zeroed before the map, and is again after it, since φ(0) need not be 0.
        return layer.finish(self.context(hide_padding(features, self.clock.padding)).to(x.dtype))

    def context(self, call: AttentionInputs) -> Tensor:
        """Return the context: of the prompt in chunks, of later tokens one position at a time."""
        if self.state is None:
            self.state = State.before(call).add(call.key, call.value)
            if call.n_query > 1:
                return torch.cat([in_chunks(part) for part in by_heads(call)], 1)
            return self.state.read(call.query, kernelized(call))
        contexts = []
        for index in range(call.n_query):
            column = slice(index, index + 1)
            self.state = self.state.add(call.key[:, :, column], call.value[:, :, column])
            contexts.append(self.state.read(call.query[:, :, column], kernelized(call)))
        return torch.cat(contexts, 2) if len(contexts) > 1 else contexts[0]

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        assert self.state is not None
        self.state = self.state.select(rows)

    def tensors(self) -> list[Tensor]:
        return [] if self.state is None else self.state.tensors()


class CrossCache(Cache):
    """Cross-attention. All beams of a sentence share its keys, so the beams are computed as queries of one sentence."""

    def __init__(self, clock: Clock, source: Source) -> None:
        super().__init__(clock)
        self.source: Source | None = source

    def queries(self, layer: Attention, x: Tensor, n_sentences: int) -> Tensor:
        query = self.clock.turn(layer.position, layer.tap("query", layer.query(x)))
        if len(query) == n_sentences:
            return query
        return rearrange(query, "(sentence beam) head n d -> sentence head (beam n) d", sentence=n_sentences)

    def finish_beams(self, layer: Attention, context: Tensor, n_rows: int) -> Tensor:
        beams = n_rows // context.shape[0]
        if beams == 1:
            return layer.finish(context)
        return layer.finish(rearrange(context, "sentence head (beam n) d -> (sentence beam) head n d", beam=beams))

    def first(self, layer: Attention) -> tuple[Tensor, Tensor]:
        """Return keys and values of the source, zeros for its padding; then drop the source."""
        assert self.source is not None
        source, self.source = self.source, None
        padding = source.padding()
        key, value = keys_and_values(layer, source.vectors)
        return zero_padding(key, padding), zero_padding(value, padding)


def keys_and_values(layer: Attention, vectors: Float[Tensor, "sentence n d_model"]) -> tuple[Tensor, Tensor]:
    """Return what cross-attention reads of a source."""
    key, value = layer.tap("key", layer.key(vectors)), layer.tap("value", layer.value(vectors))
    return layer.position.turn(key, torch.arange(vectors.shape[1], device=vectors.device)), value


@final
class SourceCache(CrossCache):
    """The keys and values of the source, made once."""

    def __init__(self, clock: Clock, source: Source) -> None:
        super().__init__(clock, source)
        self.real = source.mask()
        self.keys = self.values = torch.empty(0)
        self.bias: Tensor | None = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        if self.source is not None:
            self.keys, self.values = self.first(layer)
        query = self.queries(layer, x, len(self.keys))
        mask = layer.mask if self.real is None else layer.mask & self.real
        call = call_of(layer, (query, self.keys, self.values), mask, self.positions(layer, query.shape[2]))
        return self.finish_beams(layer, attend_cached(layer, call), len(x))

    def fast_step(self, layer: Attention) -> FastStep:
        """Return one product for the queries and one call of torch's kernel, where that is all there is."""
        scale = layer.sdpa_scale(can_join)
        if scale is None or layer.mask.kinds != {"none"} or layer.uses_positions:
            return super().fast_step(layer)
        heads, grouped = layer.shape, layer.shape.n_heads != layer.shape.n_kv_heads
        to_query = cast(WholeMap, layer.query)
        project, output, beams = linear_step(to_query.linear), linear_step(layer.output), BeamAttention(scale)

        def step(x: Tensor) -> Tensor:
            if self.source is not None:
                self.keys, self.values = self.first(layer)
            query = project(x).view(self.keys.shape[0], -1, heads.n_heads, heads.d_head).transpose(1, 2)
            query = to_query.normed(query)
            moves = self.bias is not None  # in fixed memory sentences move, and their mask with them
            if query.shape[2] > 1 and not grouped and not moves and beams.serves(query, self.real):
                context = beams.attend(query, self.keys, self.values)
                return output(context.transpose(1, 2).reshape(x.shape[0], -1))
            if self.clock.column is not None and one_query_gpu.serves(query, self.keys):
                context = one_query_gpu.attend_one(query, self.keys, self.values, scale=scale, bias=self.bias)
                return output(context.reshape(x.shape[0], -1))
            mask = None if self.real is None else self.real.table
            context = F.scaled_dot_product_attention(
                query, self.keys, self.values, mask if self.bias is None else self.bias, scale=scale, enable_gqa=grouped
            )
            return output(context.transpose(1, 2).reshape(x.shape[0], -1))

        return step

    def can_fix(self, layer: Attention) -> bool:
        return layer.sdpa_scale(can_join) is not None and layer.mask.kinds == {"none"} and not layer.uses_positions

    def fix(self, beams: int, columns: int) -> None:
        if self.real is not None:  # what is added to scores; torch would make it of the mask in every step
            self.bias = self.real.table.to(self.keys.dtype).log_()

    def refill(self, layer: Attention, source: Tensor) -> None:
        assert self.real is None
        for cached, new in zip((self.keys, self.values), keys_and_values(layer, source), strict=True):
            cached.copy_(new)

    def move(self, rows: Tensor) -> None:
        masks = () if self.real is None or self.bias is None else (self.real.table, self.bias)
        for cached in (self.keys, self.values, *masks):
            cached.copy_(cached.index_select(0, rows))

    def positions(self, layer: Attention, n_query: int) -> Positions | None:
        """Return positions of target and source, each counted from 0, where the layer uses them."""
        if not layer.uses_positions:
            return None
        n_sentences, n_key = len(self.keys), self.keys.shape[2]
        rows = n_sentences * n_query // self.clock.new
        every = self.clock.positions.expand(rows, self.clock.new).reshape(n_sentences, n_query)
        return Positions(every, torch.arange(n_key, device=every.device))

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        if sentences is not None:
            self.keys, self.values = self.keys[sentences], self.values[sentences]
            self.real = None if self.real is None else Table(self.real.table[sentences])
            self.bias = None if self.bias is None else self.bias[sentences]

    def tensors(self) -> list[Tensor]:
        return [self.keys, self.values]


@final
class SourceStateCache(CrossCache):
    """Kernelized cross-attention: the sum over the source's keys, made once."""

    def __init__(self, clock: Clock, source: Source) -> None:
        super().__init__(clock, source)
        self.state: State | None = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        if self.source is not None:
            self.state = self.sum_source(layer)
        assert self.state is not None
        query = self.queries(layer, x, len(self.state.total))
        call = map_features(call_of(layer, (query, query, query), layer.mask).to_float32())
        context = self.state.read(call.query, kernelized(call)).to(x.dtype)
        return self.finish_beams(layer, context, len(x))

    def sum_source(self, layer: Attention) -> State:
        assert self.source is not None
        padding = self.source.padding()
        key, value = self.first(layer)
        query = key.new_zeros(len(key), layer.shape.n_heads, 1, key.shape[-1])
        call = hide_padding(
            map_features(call_of(layer, (query, key, value), layer.mask).to_float32().with_every_head()), padding
        )
        return State.before(call).add(call.key, call.value)

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        if sentences is not None and self.state is not None:
            self.state = self.state.select(sentences)

    def tensors(self) -> list[Tensor]:
        return [] if self.state is None else self.state.tensors()


def attend_cached(layer: Attention, call: AttentionInputs) -> Tensor:
    """Return the context by the layer's kernel, or by the one `auto` picks.

    A kernel asked for by name may serve whole texts, but not a few queries on a cache.
    """
    serves = layer.kernel == "auto" or KERNELS[layer.kernel].refusal(call.facts()) is None
    return run(layer.kernel if serves else "auto", call)


def zero_padding(vectors: PerHead, padding: Bool[Tensor, "row n"] | None) -> PerHead:
    """Zero the vectors at padding, even where they are NaN."""
    return vectors if padding is None else vectors.masked_fill(padding[:, None, :, None], 0)


def hide_padding(call: AttentionInputs, padding: Bool[Tensor, "row n"] | None) -> AttentionInputs:
    """Return a mapped call in which the features of padding are 0."""
    return call if padding is None else hide(call, padding[:, None, :, None])


def call_of(
    layer: Attention, vectors: tuple[Tensor, Tensor, Tensor], mask: Mask, positions: Positions | None = None
) -> AttentionInputs:
    """Return inputs of a kernel without checks: every tensor in them was made here."""
    query, key, value = vectors
    return AttentionInputs(
        query=query,
        key=key,
        value=value,
        similarity=layer.similarity,
        weighting=layer.weighting,
        position=layer.position,
        mask=mask,
        given_positions=positions,
        assume_finite=True,
    )
