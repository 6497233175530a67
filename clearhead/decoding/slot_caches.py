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
    Complete,
    Fixed,
    FixedSum,
    Growing,
    Sliding,
    Summed,
    attend_cached,
    call_of,
)
from clearhead.decoding.slot_clock import SlotClock, attend_rows
from clearhead.decoding.source import Source
from clearhead.model.fast_step import FastStep, can_join, join_linears, linear_step
from clearhead.model.kv_source import KVSource, KVSources
from clearhead.model.transformers import Decoder

__all__ = ["Guest", "Guests", "SlotCache", "SlotCaches", "SlotComplete"]

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
    """A cache whose rows are slots."""

    clock: SlotClock

    @abstractmethod
    def join(self, caches: Cache, guests: Guests) -> None:
        """Copy what other caches hold of these sequences, and clear what an earlier sequence left in their slots."""

    @abstractmethod
    def copy(self, origins: Int[Tensor, "moved"], slots: Int[Tensor, "moved"]) -> None:
        """Copy some slots over others."""

    @abstractmethod
    def fit(self) -> None:
        """Follow the clock to another number of rows or columns."""

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        raise NotImplementedError("slots are copied, and never selected")


@final
class SlotComplete(Complete, SlotCache):
    """Every key and value, at the column of its position; memory is `(slot, head, column, d)`."""

    def __init__(self, clock: SlotClock) -> None:
        super().__init__(clock)
        self.memory: list[Tensor] = []

    def room(self, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return the memory of keys and values, for vectors such as these, with as many columns as the clock's."""
        there = self.memory[0].shape[2] if self.memory else 0
        wanted = allot(there, self.clock.columns, self.clock.limit)
        if there < wanted:
            grown = [one.new_zeros(self.clock.slots_there, one.shape[1], wanted, one.shape[3]) for one in (key, value)]
            for old, new in zip(self.memory, grown, strict=False):
                new[:, :, :there] = old
            self.memory = grown
            self.show()
        return self.memory

    def show(self) -> None:
        """Make `keys` and `values` the rows and columns in use."""
        self.keys, self.values = (one[: self.clock.rows, :, : self.clock.columns] for one in self.memory)

    def fit(self) -> None:
        if self.memory:
            self.room(self.keys, self.values)
            self.show()

    def write(self, key: Tensor, value: Tensor) -> None:
        for kept, new in zip(self.room(key, value), (key, value), strict=True):
            places = self.clock.places(kept.shape[1], kept.shape[2])
            kept.flatten(0, 2).index_copy_(0, places, new.reshape(-1, new.shape[3]))

    def fast_step(self, layer: Attention) -> FastStep:
        """Return two products for all rows and heads, where the CPU computes buckets of rows and no bits are fixed."""
        scale, heads = layer.sdpa_scale(can_join), layer.shape
        if scale is None or layer.mask.kinds != {"causal"} or not self.clock.by_products(heads):
            return super().fast_step(layer)
        clock, position = self.clock, layer.position
        maps = [cast(WholeMap, part) for part in (layer.query, layer.key, layer.value)]
        project, widths = join_linears([one.linear for one in maps]), [one.linear.out_features for one in maps]
        query_map, key_map, _ = maps
        output = linear_step(layer.output)

        def step(x: Tensor) -> Tensor:
            parts = torch.split_with_sizes(project(x), widths, 1)
            query, key, value = (part.view(len(x), -1, 1, heads.d_head) for part in parts)
            query, key = query_map.normed(query), key_map.normed(key)
            if position.turns:
                query, key = clock.turn(position, query), clock.turn(position, key)
            self.write(key, value)
            bias = clock.own_bias(heads.n_heads, query.dtype)
            return output(attend_rows(query, self.keys, self.values, bias, scale))

        return step

    def join(self, caches: Cache, guests: Guests) -> None:
        held = last_columns(caches)
        if held:
            self.room(*held)
        for place, kept in enumerate(self.memory):
            kept.index_fill_(0, guests.slots, 0)
            for guest in guests.read:
                read = held[place][guest.row, :, -guest.length :]
                kept[guest.slots[0], :, : guest.length] = read

    def copy(self, origins: Tensor, slots: Tensor) -> None:
        for kept in self.memory:
            used = kept[:, :, : self.clock.columns]
            used.index_copy_(0, slots, used.index_select(0, origins))

    def tensors(self) -> list[Tensor]:
        return self.memory


def last_columns(caches: Cache) -> tuple[Tensor, ...]:
    """Return the keys and values that caches of prompts hold: the newest in the last column. Empty: none were read."""
    if isinstance(caches, Sliding):
        return caches.kept or ()
    there = cast(Growing, caches)
    return tuple(one[:, :, : there.clock.total] for one in (there.keys, there.values)) if there.clock.total else ()


@final
class SlotSliding(SlotCache):
    """The keys and values of the last `left` positions, the newest in the last column."""

    def __init__(self, clock: SlotClock, left: int) -> None:
        super().__init__(clock)
        self.left, self.memory = left, list[Tensor]()

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        query, *new = self.project_new(layer, x)
        key, value = (
            torch.cat([kept[: self.clock.rows], one], 2) for kept, one in zip(self.room(new), new, strict=True)
        )
        for kept, seen in zip(self.memory, (key, value), strict=True):
            kept[: self.clock.rows].copy_(seen[:, :, 1:])
        return layer.finish(attend_cached(layer, self.call(layer, query, key, value)))

    def call(self, layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> AttentionInputs:
        clock = self.clock
        keys = clock.once(("window", self.left), lambda: clock.positions - clock.every[: self.left + 1].flip(0))
        real = Table((keys >= 0)[:, None, None, :])
        if layer.mask.kinds <= {"causal", "window"} and layer.position.bias_kind == "none":
            return call_of(layer, (query, key, value), real)
        return call_of(layer, (query, key, value), layer.mask & real, Positions(clock.positions, keys.clamp(min=0)))

    def room(self, like: Sequence[Tensor]) -> list[Tensor]:
        if not self.memory:
            self.memory = [one.new_zeros(self.clock.slots_there, one.shape[1], self.left, one.shape[3]) for one in like]
        return self.memory

    def fit(self) -> None:
        """Do nothing: rows are taken as the clock says in every step, and there are always as many columns."""

    def join(self, caches: Cache, guests: Guests) -> None:
        held = last_columns(caches)
        if held:
            self.room(held)
        for place, kept in enumerate(self.memory):
            kept.index_fill_(0, guests.slots, 0)
            for guest in guests.read if self.left else ():
                n = min(guest.length, self.left)
                kept[guest.slots[0], :, -n:] = held[place][guest.row, :, -n:]

    def copy(self, origins: Tensor, slots: Tensor) -> None:
        for kept in self.memory:
            kept.index_copy_(0, slots, kept.index_select(0, origins))

    def tensors(self) -> list[Tensor]:
        return self.memory


class SlotState(SlotCache):
    """The sums of kernelized attention, by another cache on the rows in use."""

    inner: Summed | FixedSum

    def __init__(self, clock: SlotClock) -> None:
        super().__init__(clock)
        self.memory: list[Tensor] = []

    def room(self, like: State) -> list[Tensor]:
        if not self.memory:
            self.memory = [one.new_zeros(self.clock.slots_there, *one.shape[1:]) for one in like.tensors()]
            self.clear(torch.arange(self.clock.slots_there, device=self.clock.device))
        return self.memory

    def clear(self, slots: Tensor) -> None:
        """Make slots hold the state before any key."""
        for kept, empty in zip(self.memory, (0.0, 0.0, -torch.inf), strict=False):
            kept.index_fill_(0, slots, empty)

    def show(self) -> None:
        if self.memory:
            self.inner.state = State(*(one[: self.clock.rows] for one in self.memory))

    def fit(self) -> None:
        self.show()

    def copy(self, origins: Tensor, slots: Tensor) -> None:
        for kept in self.memory:
            kept.index_copy_(0, slots, kept.index_select(0, origins))

    def tensors(self) -> list[Tensor]:
        return self.memory


@final
class SlotSummed(SlotState):
    """Kernelized self-attention: the sum over all keys so far."""

    def __init__(self, clock: SlotClock) -> None:
        super().__init__(clock)
        self.inner = Summed(clock)

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        self.show()
        made = self.inner(layer, x)
        assert self.inner.state is not None
        for kept, new in zip(self.room(self.inner.state), self.inner.state.tensors(), strict=True):
            kept[: self.clock.rows] = new
        return made

    def join(self, caches: Cache, guests: Guests) -> None:
        state = cast(Summed, caches).state
        if state is not None:
            self.room(state)
        self.clear(guests.slots)
        if state is not None and guests.read:
            rows, slots = columns_of([(guest.row, guest.slots[0]) for guest in guests.read], self.clock.device)
            for kept, new in zip(self.memory, state.tensors(), strict=True):
                kept.index_copy_(0, slots, new.index_select(0, rows))


@final
class SlotFixedSum(SlotState):
    """Kernelized cross-attention: the sum over each row's source."""

    def __init__(self, clock: SlotClock) -> None:
        super().__init__(clock)
        self.inner = FixedSum(clock, NO_SOURCE)
        self.inner.source = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        return self.inner(layer, x)

    def join(self, caches: Cache, guests: Guests) -> None:
        state = cast(FixedSum, caches).state
        assert state is not None
        for kept, new in zip(self.room(state), state.tensors(), strict=True):
            kept.index_copy_(0, guests.slots, new.index_select(0, guests.rows))
        self.show()


@final
class SlotFixed(SlotCache):
    """The keys and values of each row's source; memory is `(slot, head, column, d)`."""

    def __init__(self, clock: SlotClock) -> None:
        super().__init__(clock)
        self.inner = Fixed(clock, NO_SOURCE)
        self.inner.source = None
        self.memory: list[Tensor] = []

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
            return output(attend_rows(query, self.inner.keys, self.inner.values, bias, scale))

        return step

    def join(self, caches: Cache, guests: Guests) -> None:
        donor = cast(Fixed, caches)
        self.room(donor.keys, donor.values)
        rows, slots, n = guests.rows, guests.slots, donor.keys.shape[2]
        for kept, new in zip(self.memory, (donor.keys, donor.values), strict=True):
            kept.index_fill_(0, slots, 0)
            kept[:, :, :n].index_copy_(0, slots, new.index_select(0, rows))
        if not guests.masked:
            mask = self.clock.sources
            every = mask.real.new_ones(len(donor.keys), 1, 1, n) if donor.real is None else donor.real.table
            mask.join(every, rows, slots)
            guests.masked = True

    def room(self, key: Tensor, value: Tensor) -> None:
        there = self.memory[0].shape[2] if self.memory else 0
        wanted = allot(there, self.clock.source_columns, self.clock.source_limit)
        if there >= wanted:
            return
        slots = self.clock.slots_there
        grown = [one.new_zeros(slots, one.shape[1], wanted, one.shape[3]) for one in (key, value)]
        for old, new in zip(self.memory, grown, strict=False):
            new[:, :, :there] = old
        self.memory = grown
        self.clock.sources.grow(wanted, key.dtype)
        self.fit()

    def fit(self) -> None:
        if not self.memory:
            return
        if self.memory[0].shape[2] < self.clock.source_columns:
            self.room(*self.memory)
        rows, n, mask = self.clock.rows, self.clock.source_columns, self.clock.sources
        self.inner.keys, self.inner.values = (one[:rows, :, :n] for one in self.memory)
        self.inner.real, self.inner.bias = Table(mask.real[:rows, ..., :n]), mask.added[:rows, ..., :n]

    def copy(self, origins: Tensor, slots: Tensor) -> None:
        self.clock.sources.copy(origins, slots)
        for kept in self.memory:
            kept.index_copy_(0, slots, kept.index_select(0, origins))

    def tensors(self) -> list[Tensor]:
        return self.memory


def allot(there: int, wanted: int, most: int) -> int:
    """Return how many columns to allocate: twice as many as there are, if `wanted` are more and `most` allows it.

    It is a multiple of 16, so that every slot begins at a multiple of 64 bytes, and is like any other to MKL.
    """
    return there if wanted <= there else -(-max(wanted, min(2 * there, most)) // ALIGNED) * ALIGNED


def columns_of(pairs: Sequence[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    first, second = torch.tensor(pairs, device=device).T
    return first, second


def slot_cache(layer: Attention, clock: SlotClock) -> SlotCache:
    """Return the slots' form of the cache that prompts are read in."""
    usual = own_cache(layer, clock)
    if isinstance(usual, Summed):
        return SlotSummed(clock)
    if isinstance(usual, Sliding) and usual.left + 1 < clock.limit:
        return SlotSliding(clock, usual.left)
    return SlotComplete(clock)


def slot_cross_cache(layer: Attention, clock: SlotClock) -> SlotCache:
    usual = cross_cache(layer, clock, NO_SOURCE)
    return SlotFixedSum(clock) if isinstance(usual, FixedSum) else SlotFixed(clock)


@final
class SlotCaches(Caches):
    """The caches of all slots."""

    clock: SlotClock

    def __init__(self, decoder: Decoder, clock: SlotClock, *, one_thread: bool) -> None:
        self.clock = clock
        self.own = [slot_cache(block.attention, clock) for block in decoder.stack.blocks]
        self.cross = [
            None if block.cross is None else slot_cross_cache(block.cross, clock) for block in decoder.stack.blocks
        ]
        pairs = zip(self.own, self.cross, strict=True)
        if one_thread:
            self.kv_sources = [
                KVSources(OneThread(own), None if cross is None else OneThread(cross)) for own, cross in pairs
            ]
        else:
            self.kv_sources = [KVSources(own, cross) for own, cross in pairs]

    def __iter__(self) -> Iterator[SlotCache]:
        """Yield the caches in the order in which those of prompts come."""
        return (cache for pair in zip(self.own, self.cross, strict=True) for cache in pair if cache is not None)


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
