"""Caches of slots: the rows of a batch that sequences join and leave at any step, each at a position of its own.

A sequence in a slot has the key of its position p in column p, whenever it joined and whoever its neighbours are: so
its numbers depend on the shape of the batch alone (docs/decisions/0019-continuous-batching.md says what else was
tried). A prompt is read in ordinary caches, and what they hold is then copied into the slots.

Memory is allocated for all slots; a step computes the first `clock.rows` of them, and reads `clock.columns` columns of
what they have written and `clock.source_columns` of what they translate.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast, final

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.attention.heads import WholeMap
from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.kernels.linear import State
from clearhead.attention.layer import Attention
from clearhead.attention.masks import Table
from clearhead.attention.score_index import Positions
from clearhead.decoding.cache_set import Caches, cross_cache, own_cache
from clearhead.decoding.caches import (
    Cache,
    FullCache,
    GrowingCache,
    SourceCache,
    SourceStateCache,
    StateCache,
    WindowCache,
    attend_cached,
    call_of,
)
from clearhead.decoding.few_queries import attend_few
from clearhead.decoding.slot_clock import SlotClock
from clearhead.decoding.source import Source
from clearhead.model.fast_step import FastStep, can_join, linear_step
from clearhead.model.kv_source import KVSource, KVSources
from clearhead.model.transformers import Decoder

ALIGNED = 16
NO_SOURCE = Source(torch.zeros(1, 1, 1), None)


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

    def __init__(self, guests: Sequence[Guest], device: torch.device) -> None:
        self.every = guests
        pairs = [(guest.row, slot) for guest in guests for slot in guest.slots]
        self.rows, self.slots = columns_of(pairs, device)
        """For every slot that takes a source: the row that has it, and the slot."""
        self.read = [guest for guest in guests if guest.length]
        """Those of whose prompts more than the last token was read."""
        self.masked = False
        """Whether the mask of sources has them already."""


class SlotCache(Cache):
    """A cache whose rows are slots: the tensors of `memory` have a row for each slot, used or not."""

    clock: SlotClock

    def __init__(self, clock: SlotClock) -> None:
        super().__init__(clock)
        self.memory: list[Tensor] = []

    @abstractmethod
    def join(self, caches: Cache, guests: Guests) -> None:
        """Copy what other caches hold of these sequences, and clear what an earlier sequence left in their slots."""

    @abstractmethod
    def fit(self) -> None:
        """Follow the clock to another number of rows or columns."""

    def copy(self, origins: Int[Tensor, "moved"], slots: Int[Tensor, "moved"]) -> None:
        """Copy some slots over others."""
        for cached in self.memory:
            cached.index_copy_(0, slots, cached.index_select(0, origins))

    def tensors(self) -> list[Tensor]:
        return self.memory

    @property
    def allocated(self) -> int:
        """Number of columns in memory of `(slot, head, column, d)`."""
        return self.memory[0].shape[2] if self.memory else 0

    def allocate(self, like: Sequence[Tensor], columns: int) -> None:
        """Allocate memory with this many columns for vectors shaped like these, and copy the old columns into it."""
        slots = self.clock.slots_there
        memory = [vectors.new_zeros(slots, vectors.shape[1], columns, vectors.shape[3]) for vectors in like]
        for old, new in zip(self.memory, memory, strict=False):
            new[:, :, : old.shape[2]] = old
        self.memory = memory

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        raise NotImplementedError("slots are copied, and never selected")


@final
class SlotFullCache(FullCache, SlotCache):
    """Every key and value, at the column of its position; memory is `(slot, head, column, d)`."""

    def reserve(self, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return the memory of keys and values, grown to the clock's number of columns."""
        columns = columns_to_allocate(self.allocated, self.clock.columns, self.clock.limit)
        if columns > self.allocated:
            self.allocate((key, value), columns)
            self.update_views()
        return self.memory

    def make_room(self, like: Tensor) -> None:
        self.reserve(like, like)

    def update_views(self) -> None:
        """Make `keys` and `values` the rows and columns in use."""
        self.keys, self.values = (cached[: self.clock.rows, :, : self.clock.columns] for cached in self.memory)

    def fit(self) -> None:
        if self.memory:
            self.reserve(self.keys, self.values)
            self.update_views()

    def write(self, key: Tensor, value: Tensor) -> None:
        for cached, new in zip(self.reserve(key, value), (key, value), strict=True):
            rows = self.clock.places(cached.shape[1], cached.shape[2])
            cached.flatten(0, 2).index_copy_(0, rows, new.reshape(-1, new.shape[3]))

    def fast_step(self, layer: Attention) -> FastStep:
        """Return two products for all rows and heads, where the CPU computes buckets of rows and no bits are fixed."""
        scale, heads = layer.sdpa_scale(can_join), layer.shape
        if scale is None or layer.mask.kinds != {"causal"} or not self.clock.by_products(heads):
            return super().fast_step(layer)
        clock, project, output = self.clock, self.project_step(layer), linear_step(layer.output)

        def step(x: Tensor) -> Tensor:
            query = project(x)
            bias = clock.own_bias(heads.n_heads, query.dtype)
            return output(attend_few(query, self.keys, self.values, bias, scale).flatten(1))

        return step

    def join(self, caches: Cache, guests: Guests) -> None:
        prompt = last_columns(caches)
        if prompt:
            self.reserve(*prompt)
        for index, cached in enumerate(self.memory):
            cached.index_fill_(0, guests.slots, 0)
            for guest in guests.read:
                read = prompt[index][guest.row, :, -guest.length :]
                cached[guest.slots[0], :, : guest.length] = read

    def copy(self, origins: Tensor, slots: Tensor) -> None:
        for cached in self.memory:
            used = cached[:, :, : self.clock.columns]
            used.index_copy_(0, slots, used.index_select(0, origins))


def last_columns(caches: Cache) -> tuple[Tensor, ...]:
    """Return the keys and values that caches of prompts hold: the newest in the last column. Empty: none were read."""
    if isinstance(caches, WindowCache):
        return caches.window or ()
    growing = cast(GrowingCache, caches)
    return (
        tuple(cached[:, :, : growing.clock.total] for cached in (growing.keys, growing.values))
        if growing.clock.total
        else ()
    )


@final
class SlotWindowCache(SlotCache):
    """The keys and values of the last `left` positions, the newest in the last column."""

    def __init__(self, clock: SlotClock, left: int) -> None:
        super().__init__(clock)
        self.left = left

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        query, *new = self.project_new(layer, x)
        key, value = (
            torch.cat([cached[: self.clock.rows], vectors], 2)
            for cached, vectors in zip(self.reserve(new), new, strict=True)
        )
        for cached, window in zip(self.memory, (key, value), strict=True):
            cached[: self.clock.rows].copy_(window[:, :, 1:])
        return layer.finish(attend_cached(layer, self.call(layer, query, key, value)))

    def call(self, layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> AttentionInputs:
        clock = self.clock
        keys = clock.once(("window", self.left), lambda: clock.positions - clock.every[: self.left + 1].flip(0))
        real = Table((keys >= 0)[:, None, None, :])
        if layer.mask.kinds <= {"causal", "window"} and layer.position.bias_kind == "none":
            return call_of(layer, (query, key, value), real)
        return call_of(layer, (query, key, value), layer.mask & real, Positions(clock.positions, keys.clamp(min=0)))

    def reserve(self, like: Sequence[Tensor]) -> list[Tensor]:
        if not self.memory:
            self.allocate(like, self.left)
        return self.memory

    def fit(self) -> None:
        """Do nothing: rows are taken as the clock says in every step, and there are always as many columns."""

    def join(self, caches: Cache, guests: Guests) -> None:
        prompt = last_columns(caches)
        if prompt:
            self.reserve(prompt)
        for index, cached in enumerate(self.memory):
            cached.index_fill_(0, guests.slots, 0)
            for guest in guests.read if self.left else ():
                n = min(guest.length, self.left)
                cached[guest.slots[0], :, -n:] = prompt[index][guest.row, :, -n:]


class SlotSums(SlotCache):
    """The sums of kernelized attention, by another cache on the rows in use."""

    inner: StateCache | SourceStateCache

    def reserve(self, like: State) -> list[Tensor]:
        if not self.memory:
            self.memory = [tensor.new_zeros(self.clock.slots_there, *tensor.shape[1:]) for tensor in like.tensors()]
            self.clear(torch.arange(self.clock.slots_there, device=self.clock.device))
        return self.memory

    def clear(self, slots: Tensor) -> None:
        """Make slots hold the state before any key."""
        for cached, empty in zip(self.memory, (0.0, 0.0, -torch.inf), strict=False):
            cached.index_fill_(0, slots, empty)

    def update_views(self) -> None:
        if self.memory:
            self.inner.state = State(*(tensor[: self.clock.rows] for tensor in self.memory))

    def fit(self) -> None:
        self.update_views()


@final
class SlotStateCache(SlotSums):
    """Kernelized self-attention: the sum over all keys so far."""

    def __init__(self, clock: SlotClock) -> None:
        super().__init__(clock)
        self.inner = StateCache(clock)

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        self.update_views()
        output = self.inner(layer, x)
        assert self.inner.state is not None
        for cached, new in zip(self.reserve(self.inner.state), self.inner.state.tensors(), strict=True):
            cached[: self.clock.rows] = new
        return output

    def join(self, caches: Cache, guests: Guests) -> None:
        state = cast(StateCache, caches).state
        if state is not None:
            self.reserve(state)
        self.clear(guests.slots)
        if state is not None and guests.read:
            rows, slots = columns_of([(guest.row, guest.slots[0]) for guest in guests.read], self.clock.device)
            for cached, new in zip(self.memory, state.tensors(), strict=True):
                cached.index_copy_(0, slots, new.index_select(0, rows))


@final
class SlotSourceStateCache(SlotSums):
    """Kernelized cross-attention: the sum over each row's source."""

    def __init__(self, clock: SlotClock) -> None:
        super().__init__(clock)
        self.inner = SourceStateCache(clock, NO_SOURCE)
        self.inner.source = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        return self.inner(layer, x)

    def join(self, caches: Cache, guests: Guests) -> None:
        state = cast(SourceStateCache, caches).state
        assert state is not None
        for cached, new in zip(self.reserve(state), state.tensors(), strict=True):
            cached.index_copy_(0, guests.slots, new.index_select(0, guests.rows))
        self.update_views()


@final
class SlotSourceCache(SlotCache):
    """The keys and values of each row's source; memory is `(slot, head, column, d)`."""

    def __init__(self, clock: SlotClock) -> None:
        super().__init__(clock)
        self.inner = SourceCache(clock, NO_SOURCE)
        self.inner.source = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        return self.inner(layer, x)

    def fast_step(self, layer: Attention) -> FastStep:
        scale, heads, clock = layer.sdpa_scale(can_join), layer.shape, self.clock
        plain = layer.mask.kinds == {"none"} and not layer.uses_positions
        if scale is None or not plain or not clock.by_products(heads):
            return self.inner.fast_step(layer)
        to_query = cast(WholeMap, layer.query)
        project, output = linear_step(to_query.linear), linear_step(layer.output)

        def step(x: Tensor) -> Tensor:
            query = to_query.normed(project(x).view(len(x), heads.n_heads, 1, heads.d_head))
            bias = clock.source_bias(heads.n_heads)
            return output(attend_few(query, self.inner.keys, self.inner.values, bias, scale).flatten(1))

        return step

    def join(self, caches: Cache, guests: Guests) -> None:
        donor = cast(SourceCache, caches)
        self.reserve(donor.keys, donor.values)
        rows, slots, n = guests.rows, guests.slots, donor.keys.shape[2]
        for cached, new in zip(self.memory, (donor.keys, donor.values), strict=True):
            cached.index_fill_(0, slots, 0)
            cached[:, :, :n].index_copy_(0, slots, new.index_select(0, rows))
        if not guests.masked:
            mask = self.clock.sources
            every = mask.real.new_ones(len(donor.keys), 1, 1, n) if donor.real is None else donor.real.table
            mask.join(every, rows, slots)
            guests.masked = True

    def reserve(self, key: Tensor, value: Tensor) -> None:
        columns = columns_to_allocate(self.allocated, self.clock.source_columns, self.clock.source_limit)
        if columns > self.allocated:
            self.allocate((key, value), columns)
            self.clock.sources.grow(columns, key.dtype)
            self.fit()

    def fit(self) -> None:
        if not self.memory:
            return
        if self.allocated < self.clock.source_columns:
            self.reserve(*self.memory)
        rows, n, mask = self.clock.rows, self.clock.source_columns, self.clock.sources
        self.inner.keys, self.inner.values = (cached[:rows, :, :n] for cached in self.memory)
        self.inner.real, self.inner.bias = Table(mask.real[:rows, ..., :n]), mask.added[:rows, ..., :n]

    def copy(self, origins: Tensor, slots: Tensor) -> None:
        self.clock.sources.copy(origins, slots)
        super().copy(origins, slots)


def columns_to_allocate(allocated: int, needed: int, most: int) -> int:
    """Return how many columns to allocate: twice as many as there are, if `needed` are more and `most` allows it.

    It is a multiple of 16, so that every slot begins at a multiple of 64 bytes, and is like any other to MKL.
    """
    return allocated if needed <= allocated else -(-max(needed, min(2 * allocated, most)) // ALIGNED) * ALIGNED


def columns_of(pairs: Sequence[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    first, second = torch.tensor(pairs, device=device).T
    return first, second


def slot_cache(layer: Attention, clock: SlotClock) -> SlotCache:
    """Return the slots' form of the cache that prompts are read in."""
    usual = own_cache(layer, clock)
    if isinstance(usual, StateCache):
        return SlotStateCache(clock)
    if isinstance(usual, WindowCache) and usual.left + 1 < clock.limit:
        return SlotWindowCache(clock, usual.left)
    return SlotFullCache(clock)


def slot_cross_cache(layer: Attention, clock: SlotClock) -> SlotCache:
    usual = cross_cache(layer, clock, NO_SOURCE)
    return SlotSourceStateCache(clock) if isinstance(usual, SourceStateCache) else SlotSourceCache(clock)


@final
class SlotCaches(Caches):
    """The caches of all slots."""

    clock: SlotClock

    def __init__(self, decoder: Decoder, clock: SlotClock, *, one_thread: bool) -> None:
        self.clock = clock
        self.attention = [slot_cache(block.attention, clock) for block in decoder.stack.blocks]
        self.cross = [
            None if block.cross is None else slot_cross_cache(block.cross, clock) for block in decoder.stack.blocks
        ]
        pairs = zip(self.attention, self.cross, strict=True)
        if one_thread:
            self.kv_sources = [
                KVSources(OneThread(attention), None if cross is None else OneThread(cross))
                for attention, cross in pairs
            ]
        else:
            self.kv_sources = [KVSources(attention, cross) for attention, cross in pairs]

    def __iter__(self) -> Iterator[SlotCache]:
        """Yield the caches in the order in which those of prompts come."""
        return (cache for pair in zip(self.attention, self.cross, strict=True) for cache in pair if cache is not None)


@final
class OneThread(KVSource):
    """Attention by one thread, where the bits must not depend on the slot.

    Torch's kernel gives each thread a buffer of its own, not all alike aligned, and MKL sums in another order where
    the alignment is another: a row would have other bits in a slot that another thread computes.
    """

    def __init__(self, cache: SlotCache) -> None:
        self.cache = cache

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        return self.alone(lambda: self.cache(layer, x))

    def fast_step(self, layer: Attention) -> FastStep:
        step = self.cache.fast_step(layer)
        return lambda x: self.alone(lambda: step(x))

    def alone(self, work: Callable[[], Tensor]) -> Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a tenth of a microsecond
        try:
            return work()
        finally:
            torch.set_num_threads(threads)
