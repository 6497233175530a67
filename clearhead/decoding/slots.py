"""Slots: a batch whose rows sequences join and leave, one step for all of them at a time; and prompts read before.

The caches are in `clearhead.decoding.slot_caches`; who has which slot is decided in `clearhead.decoding.continuous`.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decoding.cache_set import Caches
from clearhead.decoding.caches import GrowingCache, SourceCache, SourceStateCache
from clearhead.decoding.clock import Clock
from clearhead.decoding.recorded import Replay, can_record_on
from clearhead.decoding.session import Logits, Session, find_head, find_int8_table
from clearhead.decoding.slot_caches import NO_SOURCE, Guest, Guests, SlotCaches, SlotFullCache, columns_of
from clearhead.decoding.slot_clock import SlotClock
from clearhead.decoding.source import Source
from clearhead.decoding.topk import LogSoftmax
from clearhead.model.transformers import Decoder
from clearhead.registry import is_built_in

MOST_KNOWN = 64
"""Sets of tokens that are kept on the device."""


@final
class Prefill(Session):
    """Prompts read into caches of their own, before their sequences join. `read_next` reads a piece of them."""

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], source: Source | None, at_once: int) -> None:
        self.decoder, self.device, self.at_once = decoder, decoder.embedding.table.device, at_once
        longest = max(len(prompt) for prompt in prompts)
        pads = [longest - len(prompt) for prompt in prompts]
        assert longest <= at_once or not any(pads), "padding is known to the caches in the first piece alone"
        padding = torch.tensor(pads, device=self.device) if any(pads) else None
        self.tokens = torch.tensor(
            [[0] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)],
            dtype=torch.long,
            device=self.device,
        )
        self.caches = Caches(decoder.stack, source, Clock(padding, self.device, longest))
        if not longest:
            self.read_source()

    def read_source(self) -> None:
        """Make the keys and values of the source, where no token is read that would do it."""
        for block, sources in zip(self.decoder.stack.blocks, self.caches.kv_sources, strict=True):
            if block.cross is not None and isinstance(sources.cross, SourceCache):
                sources.cross.keys, sources.cross.values = sources.cross.first(block.cross)
            elif block.cross is not None and isinstance(sources.cross, SourceStateCache):
                sources.cross.state = sources.cross.sum_source(block.cross)

    @property
    def done(self) -> bool:
        return self.caches.clock.total == self.tokens.shape[1]

    def read_next(self) -> int:
        """Read at most `at_once` more columns; return how many tokens those are, padding included."""
        first = self.caches.clock.total
        columns = self.tokens[:, first : first + self.at_once]
        self.cache(columns)
        return columns.numel()


@final
class SlotSession(Session):
    """The running batch: `step_rows` computes one more token of every row in use."""

    caches: SlotCaches

    def __init__(self, decoder: Decoder, slots: int, limits: tuple[int, int], *, same_bits: bool) -> None:
        """`limits`: the most columns of a row, and of its source. `same_bits`: the same in every slot."""
        self.decoder, self.device = decoder, decoder.embedding.table.device
        self.log_softmax, self.logit_buffer = LogSoftmax(), torch.empty(0)
        self.clock = SlotClock(slots, self.device, *limits, same_bits=same_bits)
        one_thread = same_bits and self.device.type == "cpu"
        self.caches = SlotCaches(decoder, self.clock, one_thread=one_thread)
        self.fast_step = self.find_fast_step()
        self.int8_table, self.head = find_int8_table(decoder.output), find_head(decoder.output)
        position = decoder.embedding.position
        self.encoded = None if position is None else position.at(self.clock.every[: self.clock.limit])
        self.tokens = torch.zeros(slots, dtype=torch.long, device=self.device)
        self.moves = torch.zeros(slots, dtype=torch.long, device=self.device)
        """1 for slots whose position advances with every step, 0 for those that nobody has."""
        self.logits, self.shape = torch.empty(0), (0, 0, 0)
        self.replays: dict[tuple[int, int, int], Replay] = {}
        self.outputs: dict[tuple[int, int, int], Logits] = {}
        self.known_ids: dict[tuple[int, ...], Tensor] = {}
        self.cache_bytes = 0
        """Bytes of the caches that the replays are bound to."""
        self.recordable = self.fast_step is not None and can_record_on(self.device) and self.may_be_recorded()

    def ids(self, tokens: Sequence[int]) -> Int[Tensor, "token"]:
        """Return tokens as a tensor that stays on the device: most jobs have the same rules."""
        key = tuple(tokens)
        if key not in self.known_ids:
            if len(self.known_ids) >= MOST_KNOWN:
                self.known_ids.clear()
            self.known_ids[key] = torch.tensor(key, dtype=torch.long, device=self.device)
        return self.known_ids[key]

    def may_be_recorded(self) -> bool:
        """Check that every layer's step is one call of torch's kernel, the same whatever stands in the slots."""
        return is_built_in(self.decoder) and all(
            isinstance(cache, SlotFullCache)
            and GrowingCache(self.clock).can_fix(block.attention)
            and (block.cross is None or SourceCache(self.clock, NO_SOURCE).can_fix(block.cross))
            for block, cache in zip(self.decoder.stack.blocks, self.caches.attention, strict=True)
        )

    def fit(self, rows: int, columns: int, source_columns: int) -> None:
        """Set how many rows are computed and how many columns are read from now on."""
        if self.shape == (rows, columns, source_columns):
            return
        self.shape = rows, columns, source_columns
        self.clock.rows, self.clock.columns, self.clock.source_columns = self.shape
        for cache in self.caches:
            cache.fit()

    def join(self, prefill: Prefill, guests: Sequence[Guest]) -> None:
        every = Guests(guests, self.device)
        for cache, prompt_cache in zip(self.caches, prefill.caches, strict=True):
            cache.join(prompt_cache, every)

    def copy(self, origins: Sequence[int], slots: Sequence[int]) -> None:
        """Copy some slots over free ones."""
        before, after = columns_of(list(zip(origins, slots, strict=True)), self.device)
        for cache in self.caches:
            cache.copy(before, after)
        for tensor in (self.clock.at, self.moves, self.tokens):
            tensor.index_copy_(0, after, tensor[before])

    def copy_written(self, origins: Sequence[int], slots: Sequence[int]) -> None:
        """Copy what some slots have written over others of the same source, at the same position."""
        if slots:
            before, after = columns_of(list(zip(origins, slots, strict=True)), self.device)
            for cache in self.caches.attention:
                cache.copy(before, after)

    def step_rows(self) -> Logits:
        """Return the logits after the present token of every row in use; valid until the next call."""
        if self.recordable:
            self.replay_step()
        else:
            self.logits = self.compute_step()
        return self.logits

    def replay_step(self) -> None:
        """Replay the step of the present shape: each is recorded once, and again when the caches have grown."""
        n_bytes = self.caches.bytes()
        if n_bytes != self.cache_bytes:
            self.replays, self.outputs, self.cache_bytes = {}, {}, n_bytes
        shape = self.shape
        if shape not in self.replays:
            self.replays[shape] = Replay(self.record_output, self.kinds_seen(), ("slots", *shape))
        self.replays[shape]()
        self.logits = self.outputs[shape]

    def record_output(self) -> None:
        self.outputs[self.shape] = self.compute_step()

    def compute_step(self) -> Logits:
        tokens = self.tokens[: self.clock.rows].unsqueeze(1)
        logits = self.read(tokens) if self.fast_step is None else self.step(tokens)
        self.clock.at += self.moves
        return logits

    def embed(self, tokens: Int[Tensor, "row new"]) -> Float[Tensor, "row new d_model"]:
        return self.decoder.embedding(tokens, positions=self.clock.positions, encoded=self.encoded)
