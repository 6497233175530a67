"""A session: the rows of a batch that are continued by a model, on caches, one step for all of them at a time.

Its rows are slots, which sequences join and leave. Who has which slot is decided in `clearhead.decoding.continuous`. A
prompt is read before its sequence joins (`Prefill`), all but its last token, which is the first that a step computes.
"""

import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeGuard, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention.cpu_matmul import FEW, PackedMatrix, can_pack, find_order, find_packed, which_product
from clearhead.attention.mask_numbers import Extent
from clearhead.attention.modes import autocast_enabled
from clearhead.calls import public
from clearhead.decoding.caches import Caches, Guest, Guests, pair_columns
from clearhead.decoding.clock import Clock, EncodedSource, SessionSize
from clearhead.decoding.prefix_cache import Memory
from clearhead.decoding.recorded import Replay, can_record_on
from clearhead.decoding.request import Model, check_model
from clearhead.decoding.topk import LogSoftmax
from clearhead.model.fast_step import FastStep, StepMatrix, is_observed
from clearhead.model.fused_step import MOST_ROWS, FusedLinear, can_fuse_weight
from clearhead.model.int8_matmul import Int8Matrix, can_multiply
from clearhead.model.lora import find_switch
from clearhead.model.outputs import ToVocabulary
from clearhead.model.transformers import Decoder
from clearhead.registry import find_silent

Logits = Float[Tensor, "row vocabulary"]
ModelT = TypeVar("ModelT", bound=Model)
MUCH = 1 << 20
"""From this many logits on they are written into the same memory each step: fresh pages would take longer."""
EVERYTHING = 1 << 30
"""Columns of prompts that are read at once, where nobody waits for anything else."""
PLANNED = 64
"""On a GPU prompts are padded to a multiple of this: cuDNN plans for some 40 ms at each length that it has not seen."""
SEEN: WeakKeyDictionary[nn.Module, dict[Hashable, set[Hashable]]] = WeakKeyDictionary()
"""For each decoder, the kinds of steps that have run once and so can be recorded (`clearhead.decoding.recorded`)."""

TOLD: WeakSet[type] = WeakSet()
"""Parts of which it was said that they make decoding slower."""


class Adapters:
    """Which of a decoder's shared adapters each row has: `numbers`, 0 for none."""

    def __init__(self, decoder: Decoder, rows: int, numbers: Sequence[int] = ()) -> None:
        self.switch, device = find_switch(decoder), decoder.embedding.table.device
        self.numbers = torch.tensor(numbers or [0] * rows, dtype=torch.long, device=device)

    def use(self, rows: int) -> AbstractContextManager[None]:
        """Compute the first rows with their adapters."""
        return nullcontext() if self.switch is None else self.switch.use(self.numbers[:rows])


class Prefill:
    """Prompts read into caches of their own, before their sequences join. `read_next` reads a piece of them.

    A shorter prompt is padded at its end, by its own tokens: what comes of them is never seen.
    """

    begun = 0
    """Columns that were there before anything was read."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        source: EncodedSource | None,
        limit: int,
        at_once: int,
        *,
        begun: Memory | None = None,
        adapters: Sequence[int] = (),
    ) -> None:
        """`prompts`: with the last token of each, which is not read. `limit`: the columns of the session.

        `begun`: what the caches have of the prompts already, as many columns of each.
        """
        self.decoder, self.at_once, table = decoder, at_once, decoder.embedding.table
        self.prompts, self.adapters = prompts, Adapters(decoder, len(prompts), adapters)
        if begun is not None:
            self.begun = begun[0][0].shape[2]
        lengths = [len(prompt) - 1 for prompt in prompts]
        self.longest = max(lengths)
        if table.is_cuda and PLANNED < self.longest < at_once:
            self.longest = min(-(-self.longest // PLANNED) * PLANNED, limit, at_once)
        whole = self.longest - self.begun <= at_once
        assert whole or min(lengths) == self.longest, "prompts of one length are read in pieces"
        columns = [
            [*prompt[:-1], *[prompt[-1]] * (self.longest - n)] for prompt, n in zip(prompts, lengths, strict=True)
        ]
        self.tokens = torch.tensor(columns, dtype=torch.long, device=table.device)
        n_source = 0 if source is None else source.vectors.shape[1]
        clock = Clock(SessionSize(len(prompts), limit, n_source), table.device, table.dtype)
        clock.reading, clock.common, clock.new, clock.source_columns = True, self.begun, 0, n_source
        clock.lengths = None if min(lengths) == self.longest else torch.tensor(lengths, device=table.device)
        self.caches = Caches(decoder.stack, clock)
        for cache, memory in zip(self.caches, begun or (), strict=False):
            cache.memory = memory
        self.source_lengths = self.read_source(source) if source is not None else None
        self.source_tokens = len(prompts) * n_source

    def read_source(self, source: EncodedSource) -> Int[Tensor, "row"]:
        """Make the keys and values of the source, and return how long each is."""
        clock, (rows, n) = self.caches.clock, source.vectors.shape[:2]
        every, clock.alike = clock.every[:rows], source.lengths is None
        lengths = torch.full_like(every, n) if source.lengths is None else source.lengths
        clock.sources.grow(n)
        clock.sources.join(lengths, every, every)
        for cache, layer in self.caches.cross:
            cache.read(layer, source)
        return lengths

    @property
    def done(self) -> bool:
        return self.caches.clock.total == self.longest

    @property
    def left(self) -> int:
        """Return how many columns are still to be read."""
        return self.longest - self.caches.clock.total

    def read_next(self) -> int:
        """Read at most `at_once` more columns; return how many tokens those are, padding included."""
        clock = self.caches.clock
        columns = self.tokens[:, clock.total : clock.total + self.at_once]
        self.read(columns)
        return columns.numel()

    def read(self, columns: Int[Tensor, "row n"]) -> Float[Tensor, "row n d_model"]:
        """Read the next tokens of every row, and return the stack's output."""
        clock = self.caches.clock
        clock.common, clock.new = clock.total, columns.shape[1]
        clock.begin_step()
        assert clock.common is not None
        with self.adapters.use(len(columns)):
            return self.decoder.stack(self.decoder.embedding(columns, start=clock.common), self.caches.kv_sources)

    def take_back(self, columns: int) -> None:
        """Forget all but the first columns, of caches that have a column for each token."""
        self.caches.clock.common, self.caches.clock.new = columns, 0
        for cache, _ in self.caches.own:
            cache.memory = [part[:, :, :columns] for part in cache.memory]


class Session:
    """The running batch: `step_rows` computes one more token of every row in use, whose logits are in `logits`."""

    def __init__(self, model: Model, size: SessionSize) -> None:
        # The parts, and not the model: what is kept for a model until it is gone must not hold it.
        self.encoder, self.decoder = model.encoder, model.decoder
        decoder, table = self.decoder, self.decoder.embedding.table
        self.device, self.clock = table.device, Clock(size, table.device, table.dtype)
        self.caches = Caches(decoder.stack, self.clock)
        self.fast_step = self.find_fast_step()
        self.int8_table, self.head = find_int8_table(decoder.output), find_head(decoder.output)
        self.packed = find_packed_table(decoder.output)
        position = decoder.embedding.position
        self.encoded = None if position is None else position.at(self.clock.every[: size.columns])
        self.tokens = torch.zeros(size.slots, dtype=torch.long, device=self.device)
        self.adapters = Adapters(decoder, size.slots)
        self.moves = torch.zeros(size.slots, dtype=torch.long, device=self.device)
        """1 for slots whose position advances with every step, 0 for those that nobody has."""
        self.log_softmax, self.logit_buffer, self.logits = LogSoftmax(), torch.empty(0), torch.empty(0)
        self.shape, self.used = (0, 0, 0), set[int]()
        self.replays: dict[tuple[int, int, int], Replay] = {}
        self.outputs: dict[tuple[int, int, int], Logits] = {}
        self.cache_bytes = 0
        """Bytes of the caches that the replays are bound to."""
        self.recordable = self.fast_step is not None and can_record_on(self.device) and self.can_record()

    def find_fast_step(self) -> FastStep | None:
        """Return the stack's fast step; None for a model that is watched, hooked or autocast: its forward must run."""
        decoder = self.decoder
        if autocast_enabled(decoder.embedding.table) or any(map(is_observed, decoder.modules())):
            return None
        return decoder.stack.fast_step(self.caches.kv_sources)

    def can_record(self) -> bool:
        """Check that a step is the same work whatever stands in the slots."""
        return find_silent(self.decoder, "recordable") is None and self.caches.can_record()

    def open_prefill(
        self,
        prompts: Sequence[Sequence[int]],
        inputs: Sequence[Sequence[int]],
        at_once: int,
        begun: Memory | None = None,
        adapters: Sequence[int] = (),
    ) -> Prefill:
        """Read what an encoder is given, and begin to read prompts, `at_once` columns at a time."""
        source = None
        if self.encoder is not None:
            tokens, lengths = pad_right(inputs, self.device)
            ragged = lengths if len(set(map(len, inputs))) > 1 else None
            source = EncodedSource(self.encoder(tokens, lengths=ragged), ragged)
        return Prefill(self.decoder, prompts, source, self.clock.size.columns, at_once, begun=begun, adapters=adapters)

    def start(self, prompts: Sequence[Sequence[int]], inputs: Sequence[Sequence[int]]) -> None:
        """Read prompts, and let each take the slot of its number."""
        prefill = self.open_prefill(prompts, inputs, EVERYTHING)
        if not prefill.done:
            prefill.read_next()
        lengths = [len(prompt) - 1 for prompt in prompts]
        self.fit(len(prompts), max(lengths) + 1, max(map(len, inputs)) if self.encoder is not None else 0)
        self.join(prefill, [Guest(row, length, [row]) for row, length in enumerate(lengths)])
        for tensor, values in ((self.tokens, [prompt[-1] for prompt in prompts]), (self.clock.at, lengths)):
            tensor[: len(prompts)] = torch.tensor(values, device=self.device)
        self.moves[: len(prompts)] = 1
        self.clock.level, self.clock.alike = len(set(lengths)) == 1, len(set(map(len, inputs))) == 1

    def search_beams(self, beams: int, columns: int) -> None:
        """Have `beams` beams in every slot from now on, of this many columns, for a search on the device."""
        for cache, layer in self.caches.own:
            cache.make_room(layer)
            cache.search_beams(beams, columns)
        if self.clock.beams < beams:  # each begins with the token of its slot
            self.tokens = self.tokens.repeat_interleave(beams)
            self.adapters.numbers = self.adapters.numbers.repeat_interleave(beams)
        self.clock.search_beams(beams, columns)
        for cache in self.caches:
            cache.fit()

    def keep(self, slots: Sequence[int]) -> None:
        """Go on with these slots of a search on the device: they take the first places."""
        self.copy(slots, range(len(slots)))
        self.clock.rows = len(slots) * self.clock.beams
        for cache in self.caches:
            cache.fit()

    def join(self, prefill: Prefill, guests: Sequence[Guest]) -> None:
        """Let sequences that were read take their slots."""
        slots = {slot for guest in guests for slot in guest.slots}
        every = Guests(guests, sorted(slots & self.used), self.device, self.clock.size.shared)
        self.used |= slots
        for cache, read in zip(self.caches, prefill.caches, strict=True):
            cache.join(read, every)
        if prefill.source_lengths is not None:
            self.clock.sources.join(prefill.source_lengths, every.source_rows, every.sources)

    def fit(self, rows: int, columns: int, source_columns: int) -> None:
        """Set how many rows are computed and how many columns are read from now on."""
        if self.shape == (rows, columns, source_columns):
            return
        self.shape = rows, columns, source_columns
        self.clock.rows, self.clock.columns, self.clock.source_columns = self.shape
        self.clock.sources.grow(source_columns)
        for cache in self.caches:
            cache.fit()

    def copy(self, origins: Sequence[int], slots: Sequence[int]) -> None:
        """Copy some slots over free ones; slots that share a source come together, in their order."""
        shared = self.clock.size.shared
        before, after = pair_columns(list(zip(origins, slots, strict=True)), self.device)
        for cache, _ in self.caches.own:
            cache.copy(before, after)
        before_sources, after_sources = before[::shared] // shared, after[::shared] // shared
        for cache, _ in self.caches.cross:
            cache.copy(before_sources, after_sources)
        self.clock.sources.copy(before_sources, after_sources)
        self.clock.copy(before, after)
        for tensor in (self.moves, self.tokens, self.adapters.numbers):
            by_slot = tensor.view(len(self.moves), -1)  # in a search on the device a slot has several beams
            by_slot.index_copy_(0, after, by_slot[before])

    def copy_written(self, origins: Sequence[int], slots: Sequence[int]) -> None:
        """Copy what some slots have written over others of the same job."""
        if slots:
            before, after = pair_columns(list(zip(origins, slots, strict=True)), self.device)
            for cache, _ in self.caches.own:
                cache.copy_written(before, after)

    def restart(self, source: Float[Tensor, "sentence n d_model"]) -> None:
        """Begin again in the same memory, with another source of the same length, by work that can be recorded."""
        for cache, layer in self.caches.layers:
            cache.restart(layer, source)
        self.clock.restart()

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

    def kinds_seen(self) -> set[Hashable]:
        """Return the kinds of recorded steps that this decoder has run in its present dtype, on its present device."""
        table = self.decoder.embedding.table
        return SEEN.setdefault(self.decoder, {}).setdefault((table.dtype, table.device), set())

    def compute_step(self) -> Logits:
        """Return the logits after the present token of every row, and let the rows stand at the next position."""
        clock, decoder = self.clock, self.decoder
        clock.begin_step()
        tokens = self.tokens[: clock.rows].unsqueeze(1)
        x = decoder.embedding(tokens, positions=clock.positions, encoded=self.encoded)
        with self.adapters.use(clock.rows):
            if self.fast_step is None:
                logits = decoder.output(decoder.stack(x, self.caches.kv_sources))[:, 0]
            else:
                logits = self.logits_of(self.fast_step(x.squeeze(1)))
        clock.at += self.moves
        return logits

    def logits_of(self, states: Float[Tensor, "row d_model"]) -> Logits:
        """Return the logits of the model's output; for many rows, in memory that the next call reuses."""
        output, rows = self.decoder.output, len(states)
        if not is_bare(output):
            return output(states.unsqueeze(1))[:, 0]
        table = output.table
        if self.head is not None and rows <= MOST_ROWS:
            return self.head(states)
        if self.packed is not None and find_order(states.dtype, rows) is not None:
            return self.packed(states)
        if rows * len(table) < MUCH:
            return output(states.unsqueeze(1))[:, 0] if self.int8_table is None else self.int8_table(states)
        if rows <= FEW and self.int8_table is None:
            return output(states.unsqueeze(1))[:, 0]
        if self.logit_buffer.ndim < 2 or len(self.logit_buffer) < rows:
            self.logit_buffer = states.new_empty(rows, len(table))
        if self.int8_table is not None:
            return self.int8_table(states, out=self.logit_buffer[:rows])
        return torch.mm(states, table.T, out=self.logit_buffer[:rows])


MakeSession = Callable[[Model, SessionSize], Session]


class StepChoice(NamedTuple):
    """How a decoding step is computed: `recorded`, by `fast` steps of the modules, or by their `forward`; and why."""

    kind: str
    why: str


@public
def which_step(model: Model) -> StepChoice:
    """Return how a model's decoding steps are computed where it is now, as `which_kernel` does for attention.

    Args:
        model: A decoder or an encoder-decoder.

    Returns:
        The way, and the reason.

    >>> import clearhead as ch
    >>> choice = ch.decoding.which_step(ch.presets.gpt2("tiny", vocabulary=20).build())
    """
    session = Session(model, SessionSize(1, 2))
    choice = find_step(session)
    if choice.kind == "fast" and session.device.type == "cpu":
        choice = choice._replace(why=f"{choice.why}; {which_product()}")
    if not any(layer.int8_cache for _, layer in session.caches.own):
        return choice
    return choice._replace(why=f"{choice.why}; keys and values are cached as int8, so that attention is not fused")


def find_step(session: Session) -> StepChoice:
    if session.fast_step is None:
        return StepChoice("forward", "it is watched, hooked or under autocast, so that its forward must run")
    if session.recordable:
        return StepChoice("recorded", "every part allows it, on this device")
    if not can_record_on(session.device):
        return StepChoice("fast", f"steps are recorded on CUDA, and it is on {session.device.type}")
    if (strange := find_silent(session.decoder, "recordable")) is not None:
        return StepChoice("fast", f"{strange.__name__} does not say `recordable = True` beside its forward")
    cache = next(cache for cache, layer in session.caches.layers if not cache.can_record(layer))
    return StepChoice("fast", f"the step of a {type(cache).__name__} changes with the column")


@public
def use_int8_cache(model: ModelT, *, on: bool = True) -> ModelT:
    """Let decoding cache keys and values of self-attention as int8, each with a scale of its own, and return the model.

    A token's key in a head is rounded by itself, so an output does not depend on its batch, nor on pieces of a prompt.
    Windows, sums of kernelized attention and an encoder's output are cached as they are.

    Args:
        model: A decoder or an encoder-decoder.
        on: Whether to; False for keys and values as they are computed.

    Returns:
        The same model.

    >>> import clearhead as ch
    >>> model = ch.decoding.use_int8_cache(ch.presets.gpt2("tiny", vocabulary=20).build())
    >>> [output] = ch.generate(model, [5, 6], rules=ch.Rules(max_new=3))
    """
    check_model(model)
    for block in model.decoder.stack.blocks:
        block.attention.int8_cache = on
    return model


def warn_if_slow(session: Session) -> None:
    """Say once, of each class, that a part of the user's own keeps steps from being recorded."""
    if session.recordable or session.fast_step is None or not can_record_on(session.device):
        return
    strange = find_silent(session.decoder, "recordable")
    if strange is not None and strange not in TOLD:
        TOLD.add(strange)
        warnings.warn(
            f"decoding is slower than it could be: {strange.__name__} does not say `recordable = True` beside its "
            "forward, so that steps are not recorded as CUDA graphs (clearhead.decoding.which_step)",
            stacklevel=2,
        )


def check_masks(decoder: Decoder, rows: int, columns: int) -> None:
    """Check that each layer's own mask fits every length that decoding will reach, for any number of rows."""
    device = decoder.embedding.table.device
    for block in decoder.stack.blocks:
        for batch, n in ((rows, columns), (1, max(1, columns - 1))):
            block.attention.mask.check(Extent(batch, block.attention.shape.n_heads, n, n, device))


def is_bare(output: nn.Module) -> TypeGuard[ToVocabulary]:
    """Check for an output that is a bare unembedding table, without hooks or taps."""
    if not isinstance(output, ToVocabulary) or is_observed(output):
        return False
    return output.transform is None and output.bias is None and output.cap is None and output.factor == 1


def find_int8_table(output: nn.Module) -> Int8Matrix | None:
    """Return the table of an output as an int8 matrix, if it is nothing but that."""
    if not is_bare(output) or output.int8_digits is None or output.table.dtype is not torch.float32:
        return None
    return output.int8_matrix(output.int8_digits) if can_multiply(output.table) else None


def find_packed_table(output: nn.Module) -> PackedMatrix | None:
    """Return the table of an output as a packed matrix, if it is nothing but that and packing pays."""
    if not is_bare(output) or output.int8_digits is not None or not can_pack(output.table):
        return None
    return find_packed(output, [output.table])


def find_head(output: nn.Module) -> FusedLinear | None:
    """Return the unembedding table as a fused map, if the output is nothing but that and the device has Triton."""
    if not is_bare(output) or output.int8_digits is not None or not can_fuse_weight(output.table):
        return None
    return FusedLinear(StepMatrix(output.table, None))


def pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "row n"], Int[Tensor, "row"]]:
    """Return token ids as one tensor, zeros after the end of each row, and the lengths."""
    longest = max(len(row) for row in rows)
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    return tokens, torch.tensor([len(row) for row in rows], device=device)
