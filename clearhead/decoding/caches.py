"""KV caches: keys and values of the tokens so far, so that a new token costs one position and not all of them.

Each class holds something else. For self-attention: every key and value (`FullCache`), those in the window
(`WindowCache`), or their sum in kernelized attention (`StateCache`). For cross-attention: the keys and values of the
encoder's output (`SourceCache`), or their sum (`SourceStateCache`). Each is a source of keys and values
(`clearhead.model.blocks`), so the model's forward is the same with and without a cache.

A row is a slot, which sequences join and leave at any step. A sequence has the key of its position p in column p of its
slot, whenever it joined and whoever its neighbours are: so its numbers depend on the shape of the batch alone
(docs/decisions/0019-continuous-batching.md says what else was tried). Prompts are read in caches of the same classes,
which hold nothing but them (`clock.reading`), and what those hold is then copied into the slots. A prompt that is
shorter than others is padded at its end, where no token sees it.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, cast, final

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention.heads import WholeMap
from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.kernels import KERNELS, State, attend_mapped, hide, kernelized, map_features, run
from clearhead.attention.layer import Attention
from clearhead.attention.mask_rules import Mask, TensorMask, Window
from clearhead.attention.parts import HeadShape
from clearhead.attention.positions import Rotary
from clearhead.attention.score_index import Positions
from clearhead.decoding import one_query_gpu
from clearhead.decoding.clock import Clock, EncodedSource
from clearhead.model.blocks import KVSource, KVSources, Stack
from clearhead.model.fast_step import FastStep, StepMatrix, StepNorm, can_join, join_linears, join_matrices, linear_step
from clearhead.model.fused_step import MOST_ROWS, FusedBranch, FusedLinear, fusible_matrices
from clearhead.model.norms import BuiltRMSNorm

MOST_TURNED = 1 << 16
"""Positions whose rotations are made ahead for a fused step."""
FIRST_COLUMNS = 64
"""Columns allocated at the start; twice as many each time they are filled."""
ALIGNED = 16

PerHead = Float[Tensor, "row head n d"]


class Guest(NamedTuple):
    """A sequence that joins: row `row` of the caches that it was read in, with `length` tokens there, for `slots`.

    A beam has several slots. All take the source; what was written goes to the first, which the others will continue.
    """

    row: int
    length: int
    slots: list[int]


@final
class Guests:
    """Sequences that join together; the indices that every layer needs are made once."""

    def __init__(self, guests: Sequence[Guest], used: Sequence[int], device: torch.device, shared: int) -> None:
        self.used = torch.tensor(used, dtype=torch.long, device=device)
        """Slots that someone had before."""
        self.guests, self.device = guests, device
        self.read = [guest for guest in guests if guest.length]
        """Those of whose prompts more than the last token was read."""
        self.rows, self.slots = pair_columns([(guest.row, guest.slots[0]) for guest in self.read], device)
        """For each of them: the row that has the prompt, and the slot that takes it."""
        pairs = [(guest.row, place) for guest in guests for place in {slot // shared for slot in guest.slots}]
        self.source_rows, self.sources = pair_columns(pairs, device)
        """For every source that is taken: the row that has it, and its place."""

    @cached_property
    def joined(self) -> Int[Tensor, "slot"]:
        """Return every slot that is taken, by someone for the first time or not."""
        return torch.tensor([slot for guest in self.guests for slot in guest.slots], device=self.device)


def pair_columns(pairs: Sequence[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    first, second = torch.tensor(pairs, dtype=torch.long, device=device).view(-1, 2).T
    return first, second


class Cache(KVSource):
    """KV cache of one attention layer; calling it adds the new keys and values, and attends.

    The tensors of `memory` have a row for each slot, used or not; in caches that prompts are read in, for each prompt.
    """

    can_share = False
    """Whether columns of one prompt serve another that begins with the same tokens."""
    reads_filled = False
    """Whether a fused step attends, which reads the filled columns alone."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.memory: list[Tensor] = []

    @property
    def n_slots(self) -> int:
        """Return how many rows the memory has, used or not."""
        return self.clock.size.slots

    @property
    def n_rows(self) -> int:
        """Return how many of them are computed."""
        return self.clock.n_own

    @abstractmethod
    def join(self, read: "Cache", guests: Guests) -> None:
        """Copy what the caches of prompts hold of these sequences, over what others left in their slots."""

    def fit(self) -> None:
        """Follow the clock to another number of rows or columns."""

    def can_record(self, layer: Attention) -> bool:
        """Check whether its `fast_step` does the same work whatever the column."""
        return False

    def make_room(self, layer: Attention) -> None:
        """Allocate the memory that a recorded step writes to, if there is none yet."""

    def search_beams(self, beams: int, columns: int) -> None:
        """Lay the memory out for a search on the device, before the clock does: the beams of a slot side by side."""
        raise NotImplementedError(f"{type(self).__name__} has no columns that beams could share")

    def copy(self, origins: Int[Tensor, "moved"], slots: Int[Tensor, "moved"]) -> None:
        """Copy some slots (of cross-attention: sources) over others."""
        for cached in self.memory:
            cached.index_copy_(0, slots, cached.index_select(0, origins))

    def copy_written(self, origins: Int[Tensor, "moved"], slots: Int[Tensor, "moved"]) -> None:
        """Copy some slots over others of the same job, which were empty when it began."""
        self.copy(origins, slots)

    def restart(self, layer: Attention, source: Float[Tensor, "sentence n d_model"]) -> None:
        """Forget all columns, in the same memory; cross-attention takes keys and values of another source."""
        raise NotImplementedError(f"{type(self).__name__} cannot begin again in the same memory")

    def tensors(self) -> list[Tensor]:
        """Return all tensors it holds: what decoding costs in memory."""
        return self.memory

    def take(self, read: "Cache", rows: Int[Tensor, "guest"], slots: Int[Tensor, "guest"]) -> None:
        """Copy rows of the caches of prompts into slots. A longer one of them may still wait for its place."""
        for cached, new in zip(self.memory, read.memory, strict=False):
            n = min(cached.shape[2], new.shape[2])
            cached[:, :, :n].index_copy_(0, slots, new[:, :, :n].index_select(0, rows).to(cached.dtype))

    def allocate(self, like: Sequence[Tensor], columns: int) -> None:
        """Allocate memory with this many columns for vectors shaped like these, and copy the old columns into it."""
        memory = [vectors.new_zeros(self.n_slots, vectors.shape[1], columns, vectors.shape[3]) for vectors in like]
        for old, new in zip(self.memory, memory, strict=False):
            new[:, :, : old.shape[2]] = old
        self.memory = memory

    def project_new(self, layer: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the new vectors, rotated by their positions; zeros for padding."""
        query, key, value = layer.project(x, x, x)
        turn, padding = self.clock.turn, self.clock.padding
        query, key = turn(layer.position, query), turn(layer.position, key)
        return query, zero_padding(key, padding), zero_padding(value, padding)


class ColumnCache(Cache):
    """Keys and values in columns: memory is `(slot, head, column, d)`; `keys` and `values` are the part in use.

    Where attention is `plain` (`Attention.sdpa_scale`), they are kept in the clock's dtype.
    """

    def __init__(self, clock: Clock, *, plain: bool) -> None:
        super().__init__(clock)
        self.plain = plain
        self.keys = self.values = torch.empty(0)
        self.parts: list[Tensor] = []
        """The part in use of each tensor."""

    @property
    @abstractmethod
    def columns(self) -> tuple[int, int]:
        """Return how many columns are read, and the most that there will be."""

    def reserve(self, *like: Tensor) -> list[Tensor]:
        """Return the memory for vectors shaped like these, grown to the columns that are read.

        There are 64 columns at first, then twice as many each time: a multiple of 16, so that every slot begins at a
        multiple of 64 bytes.
        """
        (needed, most), allocated = self.columns, self.memory[0].shape[2] if self.memory else 0
        if needed > allocated:
            ahead = max(needed, min(max(2 * allocated, FIRST_COLUMNS), most))
            if self.plain:
                like = tuple(one[:0].to(self.clock.dtype) if one.is_floating_point() else one for one in like)
            self.allocate(like, -(-ahead // ALIGNED) * ALIGNED)
            self.fit()
        return self.memory

    def fit(self) -> None:
        if self.memory:
            self.reserve(*self.memory)
            self.parts = [cached[: self.n_rows, :, : self.columns[0]] for cached in self.memory]
            self.keys, self.values = self.parts[:2]

    def take_over(self, read: Cache, emptied: Tensor, rows: Tensor, slots: Tensor) -> None:
        """Empty some slots, and copy rows of the caches of prompts into some."""
        if read.memory:
            self.reserve(*read.memory)
        for cached in self.memory:
            cached.index_fill_(0, emptied, 0)  # hidden columns have weight 0, and 0 times NaN is NaN
        self.take(read, rows, slots)


@final
class FullCache(ColumnCache):
    """Every key and value of self-attention; as int8 codes with a scale for each, if the layer says `int8_cache`."""

    can_share = True

    def __init__(self, clock: Clock, *, plain: bool, int8: bool = False) -> None:
        super().__init__(clock, plain=plain)
        self.int8 = int8

    def encode(self, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return keys and values as they are kept."""
        if not self.int8:
            return [key, value]
        (key_codes, key_scale), (value_codes, value_scale) = round_to_int8(key), round_to_int8(value)
        return [key_codes, value_codes, key_scale, value_scale]

    @property
    def columns(self) -> tuple[int, int]:
        return self.clock.columns * self.clock.beams, self.clock.size.columns

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        query, key, value = self.project_new(layer, x)
        self.write(key, value)
        return layer.finish(attend_cached(layer, self.call(layer, query, *self.filled())).to(x.dtype))

    def filled(self) -> tuple[Tensor, Tensor]:
        clock = self.clock
        parts = self.parts if clock.common is None else [part.narrow(2, 0, clock.total) for part in self.parts]
        key, value = parts[:2]
        return (key * parts[2], value * parts[3]) if self.int8 else (key, value)

    def write(self, key: PerHead, value: Float[Tensor, "row head n d_value"]) -> None:
        """Write the keys and values of the new columns."""
        new = self.encode(key, value)
        if self.clock.reading:
            self.memory = [torch.cat(pair, 2) for pair in zip(self.memory, new, strict=True)] if self.memory else new
            self.parts, (self.keys, self.values) = self.memory, self.memory[:2]
            return
        memory, common = self.memory or self.reserve(*new), self.clock.common
        if common is not None:
            for part, vectors in zip(self.parts, new, strict=True):
                part.narrow(2, common, 1).copy_(vectors)
            return
        for cached, vectors in zip(memory, new, strict=True):
            places = self.clock.places(cached.shape[1], cached.shape[2])
            cached.flatten(0, 2).index_copy_(0, places, vectors.reshape(-1, vectors.shape[3]).to(cached.dtype))

    def make_room(self, layer: Attention) -> None:
        weight = cast(WholeMap, layer.key).linear.weight
        dtype = weight.dtype if weight.dtype.is_floating_point else torch.float32
        like = torch.empty(0, layer.shape.n_kv_heads, 1, layer.shape.d_head, dtype=dtype, device=self.clock.device)
        self.reserve(*self.encode(like, like))

    def search_beams(self, beams: int, columns: int) -> None:
        for index, old in enumerate(self.memory):
            parts = old.unflatten(2, (self.clock.beams, -1))
            n = min(parts.shape[3], columns)
            new = old.new_zeros(*old.shape[:2], beams, columns, old.shape[3])
            new[:, :, : self.clock.beams, :n] = parts[:, :, :, :n]
            self.memory[index] = new.flatten(2, 3)

    def join(self, read: Cache, guests: Guests) -> None:
        self.take_over(read, guests.used, guests.rows, guests.slots)

    def copy_written(self, origins: Tensor, slots: Tensor) -> None:
        for cached in self.memory:
            used = cached[:, :, : self.clock.total * self.clock.beams]
            used.index_copy_(0, slots, used.index_select(0, origins))

    def restart(self, layer: Attention, source: Tensor) -> None:
        for cached in self.memory:
            cached.zero_()  # no mask hides a NaN: 0 times it is NaN

    def call(self, layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> AttentionInputs:
        """Return the inputs of the kernel. Keys are in order in the cache, so positions are given only where needed."""
        clock, mask, positions = self.clock, layer.mask, None
        if clock.real is not None:
            plain = mask.kinds == {"causal"} and layer.position.bias_kind == "none"
            mask = clock.real if plain else mask & clock.real
            positions = None if plain else Positions(clock.positions, clock.keys)
        return call_of(layer, (query, key, value), mask, positions)

    def can_record(self, layer: Attention) -> bool:
        return layer.sdpa_scale(can_join) is not None and layer.mask.kinds == {"causal"}

    def fast_step(self, layer: Attention) -> FastStep:
        """Return one product for query, key and value and one call of a kernel, where that is all there is."""
        scale = layer.sdpa_scale(can_join)
        if scale is None or layer.mask.kinds != {"causal"}:
            return super().fast_step(layer)
        heads, clock, project = layer.shape, self.clock, self.project_step(layer)
        output = linear_step(layer.output)

        def step(x: Tensor) -> Tensor:
            return output(attend_step(clock, heads, (clock.by_sentence(project(x)), *self.filled()), scale))

        matrices = [] if self.int8 else matrices_to_fuse(layer, clock.size.columns)
        return FusedAttention(self, layer, step, scale, matrices) if matrices else step

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


def round_to_int8(vectors: PerHead) -> tuple[Int8[Tensor, "row head n d"], Float[Tensor, "row head n 1"]]:
    """Return vectors as int8 codes, and the scale of each: its largest number is 127 times that."""
    scale = vectors.abs().amax(-1, keepdim=True) / 127
    codes = (vectors / scale.clamp(min=torch.finfo(scale.dtype).tiny)).round().clamp(-127, 127)
    return codes.to(torch.int8), scale


def attend_step(
    clock: Clock, heads: HeadShape, vectors: tuple[Tensor, Tensor, Tensor], scale: float, *, of_source: bool = False
) -> Float[Tensor, "row joined"]:
    """Return the contexts of one new position, all heads of a row side by side: of its own keys, or its source's.

    `vectors` are queries with the beams of a sentence side by side, keys and values.
    """
    query, keys, values = vectors
    n_rows, of_model, dtype = query.shape[0] * query.shape[2], query.dtype, keys.dtype
    query = query.to(dtype)
    one, grouped = query.shape[2] == 1, heads.n_heads != heads.n_kv_heads
    if n_rows > 1 and (one or not grouped) and clock.by_products(heads):  # of one row, torch's kernel is the quicker
        if grouped:  # the heads that share keys are further queries
            query = query.view(len(query), heads.n_kv_heads, -1, heads.d_head)
        context = attend_few(query, keys, values, clock.head_bias(heads.n_kv_heads, dtype, of_source=of_source), scale)
    elif clock.searching and one_query_gpu.serves(query, keys):
        bias = None if clock.level and not of_source else clock.bias(dtype, of_source=of_source)
        column = None if of_source else clock.last
        context = one_query_gpu.attend_one(query, keys, values, scale=scale, bias=bias, column=column)
    else:
        bias = clock.bias(dtype, of_source=of_source)
        context = F.scaled_dot_product_attention(query, keys, values, bias, scale=scale, enable_gqa=grouped)
    context = context.to(of_model)
    return context.flatten(1) if one else context.transpose(1, 2).reshape(n_rows, -1)


def attend_few(
    query: Float[Tensor, "row head n d"],
    keys: Float[Tensor, "row head column d"],
    values: Float[Tensor, "row head column d_value"],
    bias: Tensor | None,
    scale: float,
) -> Float[Tensor, "row head n d_value"]:
    """Return the context of a few queries a head on a CPU, by products of small matrices.

    For so few, torch's attention kernel takes 1.5 to four times as long: it calls MKL for each head by itself. `bias`
    is added to the scores, `(row * head, n or 1, column)`.
    """
    added, beta = (query.new_empty(1), 0) if bias is None else (bias, 1)  # with a beta of 0 it is not read
    score = torch.baddbmm(added, query.flatten(0, 1), keys.flatten(0, 1).mT, beta=beta, alpha=scale)
    return torch.bmm(score.softmax(-1), values.flatten(0, 1)).unflatten(0, query.shape[:2])


def matrices_to_fuse(layer: Attention, limit: int) -> list[StepMatrix]:
    """Return the maps of query, key, value and output for a fused step.

    Empty unless they are plain or int8 maps, with RMS norms of queries and keys or none, and rotary positions or none.
    """
    maps = [cast(WholeMap, part) for part in (layer.query, layer.key, layer.value)]
    norms = [part.norm for part in maps[:2]]
    fused_norms = norms == [None, None] or all(
        isinstance(part.norm, BuiltRMSNorm) and not part.joint for part in maps[:2]
    )
    position = layer.position
    turned = not position.turns or (isinstance(position, Rotary) and limit <= MOST_TURNED)
    return fusible_matrices([*(part.linear for part in maps), layer.output]) if fused_norms and turned else []


@final
class FusedAttention(FusedBranch):
    """Self-attention of one new position of every row: a product, attention with all that a step does around it, and a
    product.
    """

    def __init__(
        self, cache: FullCache, layer: Attention, step: FastStep, scale: float, matrices: Sequence[StepMatrix]
    ) -> None:
        """`matrices`: the maps of query, key, value and output."""
        self.cache, self.clock, self.step = cache, cache.clock, step
        cache.reads_filled = True
        self.project, self.output = FusedLinear(join_matrices(matrices[:3])), FusedLinear(matrices[3])
        self.attend = one_query_gpu.StepAttention(layer, scale, max(MOST_ROWS, cache.n_slots))
        self.shape = layer.shape
        # Made here and not in the step, which may be recorded without having run before.
        self.angles = self.clock.angle_table(layer.position, layer.shape.d_head) if layer.position.turns else ()

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for many rows, where torch's products are ahead.

        Its attention is not: it reads every allocated column of every row, and most rows have not filled them.
        """
        if self.clock.beams > 1:
            return self.step(x)
        return self.output.multiply_many(self.attend_new(self.project.multiply_many(x)))

    def serves(self, x: Tensor) -> bool:
        return len(x) <= MOST_ROWS and self.clock.beams == 1

    def residual(self, x: Tensor, norm: StepNorm) -> Tensor:
        return self.output(self.attend_new(self.project(x, norm=norm)), residual=x)

    def attend_new(self, vectors: Float[Tensor, "row joined"]) -> Float[Tensor, "row context"]:
        """Return the contexts of the new position of every row, given its query, key and value side by side."""
        like = vectors.new_empty(0, self.shape.n_kv_heads, 1, self.shape.d_head)
        self.cache.reserve(like, like)
        return self.attend(vectors, self.cache.keys, self.cache.values, self.angles, self.clock.at)


@final
class WindowCache(Cache):
    """The keys and values of the last `left` positions, the newest in the last column: what a window will still see."""

    def __init__(self, clock: Clock, left: int) -> None:
        super().__init__(clock)
        self.left = left

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        query, *new = self.project_new(layer, x)
        clock = self.clock
        if clock.reading:
            windows = [torch.cat(pair, 2) for pair in zip(self.memory, new, strict=True)] if self.memory else new
            # Of padded prompts all is kept: where each of them ends is known when it joins.
            first = 0 if clock.lengths is not None else max(0, windows[0].shape[2] - self.left)
            self.memory = [window[:, :, first:] for window in windows]
            return layer.finish(attend_cached(layer, self.call_read(layer, query, *windows)))
        if not self.memory:
            self.allocate(new, self.left)
        windows = [torch.cat([old[: clock.rows], vectors], 2) for old, vectors in zip(self.memory, new, strict=True)]
        for cached, window in zip(self.memory, windows, strict=True):
            cached[: clock.rows].copy_(window[:, :, 1:])
        return layer.finish(attend_cached(layer, self.call(layer, query, *windows)))

    def call_read(self, layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> AttentionInputs:
        """Return the inputs of the kernel for several new positions."""
        clock, n = self.clock, key.shape[2]
        positions = None if n == clock.total else Positions(clock.positions, clock.keys[clock.total - n :])
        return call_of(layer, (query, key, value), layer.mask, positions)

    def call(self, layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> AttentionInputs:
        """Return the inputs of the kernel for one new position, which sees all that is kept, if the mask is a window.

        A bias may read where a key is, and not only how far away.
        """
        clock = self.clock
        at = clock.at[: clock.rows].unsqueeze(1)
        keys = clock.once(("window", self.left), lambda: at - clock.every[: self.left + 1].flip(0))
        real = TensorMask((keys >= 0)[:, None, None, :])
        if layer.mask.kinds <= {"causal", "window"} and layer.position.bias_kind == "none":
            return call_of(layer, (query, key, value), real)
        return call_of(layer, (query, key, value), layer.mask & real, Positions(at, keys.clamp(min=0)))

    def join(self, read: Cache, guests: Guests) -> None:
        if read.memory and not self.memory:
            self.allocate(read.memory, self.left)
        for cached in self.memory:
            cached.index_fill_(0, guests.used, 0)
        for cached, prompts in zip(self.memory, read.memory, strict=False):
            for guest in guests.read if self.left else ():
                end = prompts.shape[2] if read.clock.lengths is None else guest.length
                n = min(guest.length, self.left)
                cached[guest.slots[0], :, self.left - n :] = prompts[guest.row, :, end - n : end]


class SumsCache(Cache):
    """The sums of kernelized attention, of a size that does not grow."""

    def state(self) -> State | None:
        """Return the sums of the rows that are computed; None before there are any."""
        if not self.memory:
            return None
        return State(*self.memory) if self.clock.reading else State(*(cached[: self.n_rows] for cached in self.memory))

    def reserve(self, like: State) -> list[Tensor]:
        if not self.memory:
            self.memory = [tensor.new_zeros(self.n_slots, *tensor.shape[1:]) for tensor in like.tensors()]
            self.clear(torch.arange(self.n_slots, device=self.clock.device))
        return self.memory

    def clear(self, slots: Tensor) -> None:
        """Make slots hold the state before any key."""
        for cached, empty in zip(self.memory, (0.0, 0.0, -torch.inf), strict=False):
            cached.index_fill_(0, slots, empty)


@final
class StateCache(SumsCache):
    """Kernelized attention: the sum of φ(k) vᵀ over all keys so far."""

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        call = call_of(layer, self.project_new(layer, x), layer.mask)
        features = map_features(call.to_float32().with_every_head())
        # Padding was zeroed before the map, and is again after it, since φ(0) need not be 0.
        context, state = self.advance(hide_padding(features, self.clock.padding))
        if self.clock.reading:
            self.memory = state.tensors()
        else:
            for cached, new in zip(self.reserve(state), state.tensors(), strict=True):
                cached[: self.n_rows] = new
        return layer.finish(context.to(x.dtype))

    def advance(self, call: AttentionInputs) -> tuple[Tensor, State]:
        """Return the context and the new sums: of the prompt in chunks, of later tokens one position at a time."""
        state = self.state()
        if state is None:
            state = State.before(call).add(call.key, call.value)
            if call.n_query > 1:
                return attend_mapped(call), state
            return state.read(call.query, kernelized(call)), state
        contexts = []
        for index in range(call.n_query):
            column = slice(index, index + 1)
            state = state.add(call.key[:, :, column], call.value[:, :, column])
            contexts.append(state.read(call.query[:, :, column], kernelized(call)))
        return torch.cat(contexts, 2), state

    def join(self, read: Cache, guests: Guests) -> None:
        if read.memory:
            self.reserve(State(*read.memory))
        self.clear(guests.joined)  # steps of other rows add to the sums of slots that nobody had so far
        self.take(read, guests.rows, guests.slots)


class CrossCache(Cache):
    """Cross-attention. Rows that share a source are computed as queries of one sentence."""

    @property
    def n_slots(self) -> int:
        return self.clock.size.slots // self.clock.size.shared

    @property
    def n_rows(self) -> int:
        return self.clock.n_sources

    @abstractmethod
    def read(self, layer: Attention, source: EncodedSource) -> None:
        """Make what a layer reads of a source."""

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


def keys_and_values(layer: Attention, vectors: Float[Tensor, "sentence n d_model"]) -> tuple[Tensor, Tensor]:
    """Return what cross-attention reads of a source."""
    key, value = layer.tap("key", layer.key(vectors)), layer.tap("value", layer.value(vectors))
    return layer.position.turn(key, torch.arange(vectors.shape[1], device=vectors.device)), value


def real_keys_and_values(layer: Attention, source: EncodedSource) -> tuple[Tensor, Tensor]:
    """Return the same, with zeros for padding."""
    padding = source.padding()
    key, value = keys_and_values(layer, source.vectors)
    return zero_padding(key, padding), zero_padding(value, padding)


@final
class SourceCache(CrossCache, ColumnCache):
    """The keys and values of the source, made once: a source has the place of a slot."""

    @property
    def columns(self) -> tuple[int, int]:
        return self.clock.source_columns, self.clock.size.source_columns

    def read(self, layer: Attention, source: EncodedSource) -> None:
        self.keys, self.values = self.memory = list(real_keys_and_values(layer, source))

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        query, clock = self.queries(layer, x, len(self.keys)), self.clock
        real = clock.sources.real[: len(self.keys), ..., : self.keys.shape[2]]
        mask = layer.mask if clock.alike else layer.mask & TensorMask(real)
        call = call_of(layer, (query, self.keys, self.values), mask, self.positions(layer, query.shape[2]))
        return self.finish_beams(layer, attend_cached(layer, call).to(x.dtype), len(x))

    def can_record(self, layer: Attention) -> bool:
        return layer.sdpa_scale(can_join) is not None and layer.mask.kinds == {"none"} and not layer.uses_positions

    def fast_step(self, layer: Attention) -> FastStep:
        """Return one product for the queries and one call of a kernel, where that is all there is."""
        scale = layer.sdpa_scale(can_join)
        if scale is None or layer.mask.kinds != {"none"} or layer.uses_positions:
            return super().fast_step(layer)
        heads, clock = layer.shape, self.clock
        to_query = cast(WholeMap, layer.query)
        project, output = linear_step(to_query.linear), linear_step(layer.output)

        def step(x: Tensor) -> Tensor:
            query = project(x).view(clock.n_sources, -1, heads.n_heads, heads.d_head).transpose(1, 2)
            vectors = to_query.normed(query), self.keys, self.values
            return output(attend_step(clock, heads, vectors, scale, of_source=True))

        return step

    def positions(self, layer: Attention, n_query: int) -> Positions | None:
        """Return positions of target and source, each counted from 0, where the layer uses them."""
        if not layer.uses_positions:
            return None
        n_sentences, n_key, clock = len(self.keys), self.keys.shape[2], self.clock
        rows = n_sentences * n_query // clock.new
        every = clock.positions.expand(rows, clock.new).reshape(n_sentences, n_query)
        return Positions(every, torch.arange(n_key, device=every.device))

    def join(self, read: Cache, guests: Guests) -> None:
        self.take_over(read, guests.sources, guests.source_rows, guests.sources)

    def restart(self, layer: Attention, source: Tensor) -> None:
        for cached, new in zip(self.memory, keys_and_values(layer, source), strict=True):
            cached[:, :, : source.shape[1]].copy_(new)


@final
class SourceStateCache(CrossCache, SumsCache):
    """Kernelized cross-attention: the sum over the source's keys, made once."""

    def read(self, layer: Attention, source: EncodedSource) -> None:
        key, value = real_keys_and_values(layer, source)
        query = key.new_zeros(len(key), layer.shape.n_heads, 1, key.shape[-1])
        call = map_features(call_of(layer, (query, key, value), layer.mask).to_float32().with_every_head())
        call = hide_padding(call, source.padding())
        self.memory = State.before(call).add(call.key, call.value).tensors()

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        state = self.state()
        assert state is not None
        query = self.queries(layer, x, len(state.total))
        call = map_features(call_of(layer, (query, query, query), layer.mask).to_float32())
        context = state.read(call.query, kernelized(call)).to(x.dtype)
        return self.finish_beams(layer, context, len(x))

    def join(self, read: Cache, guests: Guests) -> None:
        self.reserve(State(*read.memory))
        self.take(read, guests.source_rows, guests.sources)


def own_cache(layer: Attention, clock: Clock) -> Cache:
    if layer.sums and layer.mask.kinds == {"causal"}:
        return StateCache(clock)
    windows = [term.left for term in layer.mask.terms if isinstance(term, Window)]
    if windows and min(windows) + 1 < clock.size.columns:
        return WindowCache(clock, min(windows))
    return FullCache(clock, plain=attends_plainly(layer), int8=layer.int8_cache)


def cross_cache(layer: Attention, clock: Clock) -> CrossCache:
    if layer.sums and layer.mask.kinds == {"none"}:
        return SourceStateCache(clock)
    return SourceCache(clock, plain=attends_plainly(layer))


def attends_plainly(layer: Attention) -> bool:
    """Check for a softmax of dot products, whose keys and values may have another dtype than the layer."""
    return layer.sdpa_scale(can_join) is not None


@final
class Caches:
    """The caches of a whole decoder, one for each attention layer, and the clock they share."""

    def __init__(self, stack: Stack, clock: Clock) -> None:
        self.clock, self.stack = clock, stack
        self.own = [(own_cache(block.attention, clock), block.attention) for block in stack.blocks]
        self.cross = [
            (cross_cache(block.cross, clock), block.cross) for block in stack.blocks if block.cross is not None
        ]
        crosses = iter(self.cross)
        self.kv_sources = [
            KVSources(own, None if block.cross is None else next(crosses)[0])
            for (own, _), block in zip(self.own, stack.blocks, strict=True)
        ]

    @property
    def layers(self) -> list[tuple[Cache, Attention]]:
        return [*self.own, *self.cross]

    def __iter__(self) -> Iterator[Cache]:
        return (cache for cache, _ in self.layers)

    @property
    def reads_filled(self) -> bool:
        """True if steps of a few rows read the filled columns alone, however many are allocated."""
        return all(cache.reads_filled for cache in self)

    def can_record(self) -> bool:
        """Check that every layer's step is one call of a kernel, the same whatever stands in the slots."""
        return all(cache.can_record(layer) for cache, layer in self.layers)

    def bytes(self) -> int:
        """Return the bytes of all caches."""
        return sum(tensor.untyped_storage().nbytes() for cache in self for tensor in cache.tensors())


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
        query=query.to(key.dtype),
        key=key,
        value=value,
        similarity=layer.similarity,
        weighting=layer.weighting,
        position=layer.position,
        mask=mask,
        given_positions=positions,
        assume_finite=True,
    )
