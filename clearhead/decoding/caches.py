"""KV caches: keys and values of the tokens so far, so that a new token costs one position and not all of them.

Each class keeps something else: every key and value (`Growing`), those in the window (`Sliding`), their sum in
kernelized attention (`Summed`); and for cross-attention the encoder's, made once (`Fixed`, `FixedSum`). Each is a
source of keys and values (`clearhead.model.kv_source`), so the model's forward is the same with and without them.

Rows are sentences times beams. Prompts are padded on the left, so that all rows write the same column; positions count
from each row's first token, and padding has positions below 0.
"""

from abc import abstractmethod
from typing import cast, final

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention.heads import WholeMap
from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.kernels import KERNELS, run
from clearhead.attention.kernels.chunked import by_heads, in_chunks
from clearhead.attention.kernels.linear import State, hide, kernelized, map_features
from clearhead.attention.layer import Attention
from clearhead.attention.masks import Mask, Table, everything
from clearhead.attention.score_index import Positions
from clearhead.decoding.clock import Clock
from clearhead.decoding.source import Source
from clearhead.model.fast_step import FastStep, can_join, join_linears, linear_step
from clearhead.model.kv_source import KVSource

__all__ = ["Cache", "Fixed", "FixedSum", "FromSource", "Growing", "Sliding", "Source", "Summed"]

FIRST_COLUMNS = 64
"""Columns allocated at the start; twice as many each time they are filled."""

PerHead = Float[Tensor, "row head n d"]


class Cache(KVSource):
    """KV cache of one attention layer; calling it adds the new keys and values, and attends."""

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

    def move(self, which: Int[Tensor, "row"]) -> None:
        """Write these rows (of cross-attention: these sentences) over those there are: as many, in the same memory."""
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


class Complete(Cache):
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
        keys, values = (kept[:, :, : self.clock.total] for kept in (self.keys, self.values))
        return layer.finish(attend_cached(layer, self.call(layer, query, keys, values)))

    def fast_step(self, layer: Attention) -> FastStep:
        """Return one product for query, key and value and one call of torch's kernel, where that is all there is."""
        scale = layer.sdpa_scale(can_join)
        if scale is None or layer.mask.kinds != {"causal"}:
            return super().fast_step(layer)
        heads, clock, position = layer.shape, self.clock, layer.position
        maps = [cast(WholeMap, part) for part in (layer.query, layer.key, layer.value)]
        project, widths = join_linears([one.linear for one in maps]), [one.linear.out_features for one in maps]
        query_map, key_map, _ = maps
        output, grouped = linear_step(layer.output), heads.n_heads != heads.n_kv_heads

        def step(x: Tensor) -> Tensor:
            rows = x.shape[0]
            parts = torch.split_with_sizes(project(x), widths, 1)
            query, key, value = (part.view(rows, -1, 1, heads.d_head) for part in parts)
            query, key = query_map.normed(query), key_map.normed(key)
            if position.turns:
                query, key = clock.turn(position, query), clock.turn(position, key)
            self.write(key, value)
            if clock.place is None:
                keys, values = self.keys.narrow(2, 0, clock.total), self.values.narrow(2, 0, clock.total)
                mask = clock.sdpa_mask(query.dtype)
            else:
                query, keys, values, mask = clock.by_sentence(query), self.keys, self.values, clock.bias(query.dtype)
            context = F.scaled_dot_product_attention(query, keys, values, mask, scale=scale, enable_gqa=grouped)
            return output(context.transpose(1, 2).reshape(rows, -1))

        return step

    def call(self, layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> AttentionInputs:
        """Return the inputs of the kernel. Keys are in order in the cache, so positions are given only where needed."""
        clock, mask, positions = self.clock, layer.mask, None
        if clock.real is not None:
            plain = clock.new == 1 and mask.kinds == {"causal"} and layer.position.bias_kind == "none"
            mask = clock.real if plain else mask & clock.real
            positions = None if plain else Positions(clock.positions, clock.keys)
        return call_of(layer, (query, key, value), mask, positions)


@final
class Growing(Complete):
    """Every key and value, in memory allocated ahead."""

    spare: tuple[Tensor, Tensor] | None = None

    def can_fix(self, layer: Attention) -> bool:
        return layer.sdpa_scale(can_join) is not None and layer.mask.kinds == {"causal"}

    def fix(self, beams: int, columns: int) -> None:
        self.spare, there = None, slice(self.clock.n + self.clock.new)
        for name, kept in (("keys", self.keys), ("values", self.values)):
            made = kept.new_zeros(*kept.shape[:2], beams, columns, kept.shape[3])
            made[:, :, :, there] = kept.unflatten(2, (self.clock.beams, -1))[:, :, :, there]
            setattr(self, name, made.flatten(2, 3))

    def move(self, which: Tensor) -> None:
        for kept in (self.keys, self.values):
            kept.copy_(kept.index_select(0, which))

    def refill(self, layer: Attention, source: Tensor) -> None:
        for kept in (self.keys, self.values):
            kept.zero_()  # no mask hides a NaN: 0 times it is NaN

    def write(self, key: PerHead, value: Float[Tensor, "row head n d_value"]) -> None:
        if self.clock.place is not None:
            self.keys.index_copy_(2, self.clock.slots, self.clock.by_sentence(key))
            self.values.index_copy_(2, self.clock.slots, self.clock.by_sentence(value))
            return
        if self.clock.total > (self.keys.shape[2] if self.keys.ndim == 4 else 0):
            columns = max(self.clock.total, min(max(2 * self.clock.n, FIRST_COLUMNS), self.clock.limit))
            self.keys, self.values = self.grow(self.keys, key, columns), self.grow(self.values, value, columns)
        new = slice(self.clock.n, self.clock.total)
        self.keys[:, :, new] = key
        self.values[:, :, new] = value

    def grow(self, kept: Tensor, like: PerHead, columns: int) -> Tensor:
        made = like.new_zeros(*like.shape[:2], columns, like.shape[3])
        there = min(self.clock.n + self.clock.new, kept.shape[2]) if kept.ndim == 4 else 0
        if there:
            made[:, :, :there] = kept[:, :, :there]
        return made

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Copy the rows into spare memory of the same shape, if their number stays: the two take turns."""
        if self.spare is None or self.spare[0].shape != (len(rows), *self.keys.shape[1:]):
            self.spare = (
                self.keys.new_empty(len(rows), *self.keys.shape[1:]),
                self.values.new_empty(len(rows), *self.values.shape[1:]),
            )
        old = self.keys, self.values
        for one, other in zip(old, self.spare, strict=True):
            torch.index_select(self.written(one), 0, rows, out=self.written(other))
        self.keys, self.values = self.spare
        self.spare = old if len(old[0]) == len(rows) else None

    def written(self, kept: Tensor) -> Tensor:
        """Return the columns that have been written, or all of them where copying all in one piece is quicker."""
        used = self.clock.total
        return kept.narrow(2, 0, used) if kept.is_cpu and 4 * used < 3 * kept.shape[2] else kept

    def tensors(self) -> list[Tensor]:
        return [self.keys, self.values, *(self.spare or ())]


@final
class Sliding(Cache):
    """The keys and values of the last `left` positions: what a window mask will still see."""

    def __init__(self, clock: Clock, left: int) -> None:
        super().__init__(clock)
        self.left = left
        self.kept: tuple[Tensor, Tensor] | None = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        query, key, value = self.project_new(layer, x)
        if self.kept is not None:
            key, value = torch.cat([self.kept[0], key], 2), torch.cat([self.kept[1], value], 2)
        first = max(0, key.shape[2] - self.left)
        self.kept = key[:, :, first:].clone(), value[:, :, first:].clone()
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
        whole = (real is None and key.shape[2] == clock.total) or (plain and layer.position.bias_kind == "none")
        positions = None if whole else Positions(clock.positions, clock.keys[..., columns])
        return call_of(layer, (query, key, value), mask if real is None else mask & real, positions)

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        assert self.kept is not None
        self.kept = self.kept[0][rows], self.kept[1][rows]

    def tensors(self) -> list[Tensor]:
        return list(self.kept or ())


@final
class Summed(Cache):
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
        """Return the context: of the whole prompt in chunks, of what comes after it one position at a time."""
        if self.state is None:
            self.state = State.before(call).add(call.key, call.value)
            if call.n_query > 1:
                return torch.cat([in_chunks(part) for part in by_heads(call)], 1)
            return self.state.read(call.query, kernelized(call))
        contexts = []
        for place in range(call.n_query):
            here = slice(place, place + 1)
            self.state = self.state.add(call.key[:, :, here], call.value[:, :, here])
            contexts.append(self.state.read(call.query[:, :, here], kernelized(call)))
        return torch.cat(contexts, 2) if len(contexts) > 1 else contexts[0]

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        assert self.state is not None
        self.state = self.state.select(rows)

    def tensors(self) -> list[Tensor]:
        return [] if self.state is None else self.state.tensors()


class FromSource(Cache):
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
class BeamAttention:
    """Attention of the beams of each sentence to its source, on a CPU, as products of small matrices.

    For a few queries a head torch's attention kernel takes three to four times as long.
    """

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.real: Table | None = None
        self.bias: Tensor | None = None
        self.is_served = True

    def serves(self, query: Tensor, real: Table | None) -> bool:
        """Take over which source positions are real; False where a sentence has none: its context must be zeros.

        In bfloat16 torch's kernel keeps scores in float32, which a product would round.
        """
        if not query.is_cpu or query.dtype not in (torch.float32, torch.float64):
            return False
        if real is not self.real:
            self.real = real
            self.bias = None if real is None else real.table.float().log_()
            self.is_served = real is None or bool(real.table.any(-1).all())
        return self.is_served

    def attend(
        self,
        query: Float[Tensor, "sentence head beam d"],
        keys: Float[Tensor, "sentence head n d"],
        values: Float[Tensor, "sentence head n d_value"],
    ) -> Float[Tensor, "sentence head beam d_value"]:
        bias = query.new_zeros(1)
        if self.bias is not None:
            bias = self.bias.to(query.dtype).expand(-1, query.shape[1], -1, -1).flatten(0, 1)
        score = torch.baddbmm(bias, query.flatten(0, 1), keys.flatten(0, 1).mT, alpha=self.scale)
        return torch.bmm(score.softmax(-1), values.flatten(0, 1)).unflatten(0, query.shape[:2])


@final
class Fixed(FromSource):
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
        for kept, made in zip((self.keys, self.values), keys_and_values(layer, source), strict=True):
            kept.copy_(made)

    def move(self, which: Tensor) -> None:
        masks = () if self.real is None or self.bias is None else (self.real.table, self.bias)
        for kept in (self.keys, self.values, *masks):
            kept.copy_(kept.index_select(0, which))

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
class FixedSum(FromSource):
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
