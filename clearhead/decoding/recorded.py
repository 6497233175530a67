"""Decoding steps recorded as CUDA graphs and replayed: launching their kernels one by one takes longer than they run.

A recorded step is bound to its memory: as many rows as when it was recorded, caches of fixed size. When the columns are
used up, it is recorded anew in larger memory; when half of the rows have ended, in smaller.

`RecordedSearch` chooses the next tokens within the step: nobody looks at them until some steps later. `RecordedStep`
gives logits to a search that looks at them on the CPU.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.cuda_graphs import capture, shared_pool
from clearhead.decoding.cache_set import Caches
from clearhead.decoding.caches import CrossCache
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.model.fused_step import MOST_ROWS

Logits = Float[Tensor, "row vocabulary"]
Compute = Callable[[Int[Tensor, "row 1"]], Logits]
"""Makes logits of one new token a row, at the column that the clock is at."""
WARM_UPS = 2
"""Steps with the same number of rows before one is recorded: a beam begins with fewer rows than it goes on with."""
FEWEST = 8
"""Steps that must still be to come: for fewer, recording costs more than it saves."""
FIRST_COLUMNS, MANY_COLUMNS = 64, 1024
"""Columns that are allocated first."""
AT_ONCE, MOST_AT_ONCE, SHARE_AT_ONCE = 8, 64, 8
"""Steps that are taken before anyone looks what has ended, since looking waits for the GPU: at least, at most, and as
the share of those taken so far that may turn out to be for nothing (one in eight)."""


def can_record_on(device: torch.device) -> bool:
    """Check whether steps are recorded on this device."""
    return device.type == "cuda"


def is_worth_recording(steps: int) -> bool:
    """Check whether there are enough steps to come that recording them is worth it."""
    return steps >= FEWEST


def record(work: Callable[[], None]) -> Callable[[], None]:
    """Return a function that replays the work."""
    return capture(work, shared_pool(torch.cuda.current_device()))


@final
class Replay:
    """Work that is recorded when it is called, and replayed from then on.

    What is recorded must have run before with the same shapes: kernels are loaded and libraries set up when they are
    first used. So a call of a kind that was never `seen` runs as it is, and the next is recorded.
    """

    def __init__(self, work: Callable[[], None], seen: set[Hashable], kind: Hashable) -> None:
        self.work, self.seen, self.kind = work, seen, kind
        self.replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self.replay is None:
            if self.kind not in self.seen:
                self.seen.add(self.kind)
                self.work()
                return
            self.replay = record(self.work)
        self.replay()


def find_columns(filled: int, limit: int = 0, first: int = FIRST_COLUMNS) -> int:
    """Return how many columns to allocate if `filled` are there: more than those, so that some steps fit. If `limit`,
    the most there will be, is no more than twice as many, allocate them at once.
    """
    columns = first
    while columns <= filled:
        columns *= 2
    return -(-limit // 8) * 8 if filled < limit <= 2 * columns else columns


@final
class Notes:
    """Tensors of some steps, noted one step after the other by recorded work and read together."""

    def __init__(self, *like: Tensor) -> None:
        """Allocate memory for tensors of these shapes: for the steps between two reads, and one before the first."""
        self.rooms = [tensor.new_zeros(MOST_AT_ONCE + 1, *tensor.shape) for tensor in like]
        self.at = torch.zeros(1, dtype=torch.long, device=like[0].device)

    def write(self, *tensors: Tensor) -> None:
        for room, tensor in zip(self.rooms, tensors, strict=True):
            room.index_copy_(0, self.at, tensor.unsqueeze(0))
        self.at += 1

    def read(self) -> list[Tensor]:
        """Return the notes since the last call, `(step, ...)`. This waits for the GPU."""
        n = int(self.at)
        self.at.zero_()
        return [room[:n].clone() for room in self.rooms]

    def select(self, sentences: Int[Tensor, "stays"]) -> None:
        """Keep the memory of these sentences; everything that was noted must have been read."""
        self.rooms = [room[:, sentences] for room in self.rooms]


class OnDevice(ABC):
    """A way to choose tokens on the device, without waiting for an answer from it.

    Sentences are in order, with `beams` rows each.
    """

    beams: int
    kind: Hashable
    """Distinguishes different work on tensors of the same shape."""
    may_end = True
    """Whether a sentence can end before the last step."""

    def steps_at_once(self, taken: int) -> int:
        """Return how many steps to take before the next `read`, after so many."""
        return min(MOST_AT_ONCE, max(AT_ONCE, taken // SHARE_AT_ONCE)) if self.may_end else MOST_AT_ONCE

    def choose_by_logits(self, logits: Logits) -> tuple[Tensor | None, Tensor]:
        """Return what `choose` does of the log-probabilities of these logits."""
        wide = torch.promote_types(logits.dtype, torch.float32)
        return self.choose(torch.log_softmax(logits, -1, dtype=wide))

    @abstractmethod
    def choose(self, log_probs: Logits) -> tuple[Tensor | None, Tensor]:
        """Return the beam that each beam continues (None: itself) and its token, `(sentence, beam)`; note both."""

    @abstractmethod
    def restart(self) -> None:
        """Begin again in the same memory, by work that can be recorded."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the results of the last search, before another one starts in the same memory."""

    @abstractmethod
    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the outputs of every sentence, the best first."""

    @abstractmethod
    def read(self) -> list[int]:
        """Read the notes since the last call; return the sentences that have not ended."""

    @abstractmethod
    def select(self, sentences: Int[Tensor, "stays"]) -> None:
        """Keep these sentences, after a `read`."""


@final
class RecordedSearch:
    """A search whose every step is one replay: it reads a token of each row, and chooses the next.

    `tokens` are the first to be read, `(sentence, beam)`; the caches have one row for each sentence.
    """

    def __init__(
        self,
        caches: Caches,
        compute: Compute,
        search: OnDevice,
        tokens: Int[Tensor, "sentence beam"],
        seen: set[Hashable],
    ) -> None:
        self.caches, self.clock, self.compute, self.search, self.seen = caches, caches.clock, compute, search, seen
        self.count, self.tokens = len(tokens), tokens.reshape(-1, 1).clone()
        self.replay: Replay | None = None

    def run(self, steps: int) -> None:
        """Take this many steps, or fewer if all sentences end before."""
        taken = 0
        while True:
            n_steps = min(steps, self.search.steps_at_once(taken))
            for _ in range(n_steps):
                self.step()
            steps -= n_steps
            taken += n_steps
            stays = self.search.read()
            if not steps or not stays:
                self.replay = None  # it holds this search, which would keep its memory until Python looks for cycles
                return
            if 2 * len(stays) <= self.count and is_worth_recording(steps):
                self.select(torch.tensor(stays, device=self.tokens.device))

    def step(self) -> None:
        filled = self.clock.n + self.clock.new
        if self.clock.column is None or filled >= self.clock.columns:
            # Every time memory grows, the step is recorded anew. A kernel that reads the filled columns alone takes no
            # longer if there are more of them.
            fused = self.search.beams == 1 and self.count <= MOST_ROWS and self.caches.reads_filled
            first = MANY_COLUMNS if fused else FIRST_COLUMNS
            self.caches.fix(self.search.beams, find_columns(filled, self.clock.limit, first))
            self.replay = None
        if self.replay is None:
            kind = self.search.kind, self.count, self.search.beams, self.clock.columns
            self.replay = Replay(self.work, self.seen, kind)
        self.clock.advance(1)
        self.replay()

    def work(self) -> None:
        self.clock.begin_step()
        logits = self.compute(self.tokens)
        origins, chosen = self.search.choose_by_logits(logits)
        self.tokens.copy_(chosen.reshape(-1, 1))
        self.clock.end_step(origins)

    def select(self, sentences: Int[Tensor, "stays"]) -> None:
        """Go on with these sentences."""
        self.search.select(sentences)
        self.tokens = self.tokens.view(self.count, -1)[sentences].reshape(-1, 1)
        self.caches.select(sentences, sentences)
        self.count, self.replay = len(sentences), None


@final
class RecordedStep:
    """The step of a session, for a search that looks at the logits of every step.

    Rows that leave are replaced by copies of the first row, whose logits nobody reads; when half of the rows are
    copies, the step is given up.
    """

    def __init__(self, caches: Caches, compute: Compute, seen: set[Hashable]) -> None:
        self.caches, self.clock, self.compute, self.seen = caches, caches.clock, compute, seen
        self.replay: Replay | None = None
        self.tokens = self.logits = torch.empty(0)
        self.moves: dict[str, tuple[Replay, Tensor]] = {}
        self.rows = self.steps = 0
        self.live = 0, 0
        """Rows and sentences that have not left."""

    def step(self, tokens: Int[Tensor, "row 1"]) -> Logits:
        """Return the logits after one more token in every row."""
        self.prepare(len(tokens))
        if self.replay is None:
            self.clock.advance(1)
            return self.compute(tokens)
        self.tokens[: len(tokens)] = tokens
        self.clock.advance(1)
        self.replay()
        return self.logits[: len(tokens)]

    def prepare(self, rows: int) -> None:
        """Allocate fixed memory for a recorded step if enough steps have run and enough will come; grow it if full."""
        filled = self.clock.n + self.clock.new
        if self.replay is not None:
            if filled >= self.clock.columns:
                self.fix(filled)
            return
        self.steps = 1 if rows > self.rows else self.steps + 1
        self.rows = rows
        if self.steps > WARM_UPS and is_worth_recording(self.clock.limit - filled):
            self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=self.clock.device)
            self.live = rows, self.n_sentences()
            self.fix(filled)

    def fix(self, filled: int) -> None:
        self.caches.fix(1, find_columns(filled, self.clock.limit))
        self.replay, self.moves = Replay(self.work, self.seen, ("logits", self.rows, self.clock.columns)), {}

    def work(self) -> None:
        self.clock.begin_step()
        self.logits = self.compute(self.tokens)
        self.clock.end_step(None)

    def select(self, rows: Int[Tensor, "new_row"], sentences: Int[Tensor, "new_sentence"] | None) -> bool:
        """Keep these rows, and the recorded step unless too few rows would use it; return False if none is recorded."""
        if self.replay is None:
            return False
        before = self.live
        if sentences is not None:
            self.live = self.live[0], len(sentences)
        self.live = len(rows), self.live[1]
        # Beams of a sentence stay side by side; were there more or fewer of them, all rows would have to move.
        if self.live[0] * before[1] != before[0] * self.live[1] or 2 * len(rows) <= self.rows:
            self.replay = None
            self.clock.release()
            # Cross-attention may still hold sentences that have left.
            sentences_left = torch.arange(self.live[1], device=rows.device) if sentences is None else sentences
            self.caches.select(rows, sentences_left)
            return True
        self.move("rows", rows, self.rows, self.caches.move_rows)
        if sentences is not None:
            self.move("sentences", sentences, self.n_sentences(), self.caches.move_sentences)
        return True

    def move(self, name: str, indices: Tensor, count: int, work: Callable[[Tensor], None]) -> None:
        """Move rows or sentences by a replay; `which` is padded with zeros, the first row, to the fixed count."""
        if name not in self.moves:
            index = torch.arange(count, device=indices.device)
            kind = name, count, self.rows, self.clock.columns
            self.moves[name] = Replay(lambda: work(index), self.seen, kind), index
        replay, index = self.moves[name]
        index.zero_()
        index[: len(indices)] = indices
        replay()

    def n_sentences(self) -> int:
        """Return how many sentences the rows belong to: as many as cross-attention holds, else one for each row."""
        counts = [len(cache.tensors()[0]) for cache in self.caches if isinstance(cache, CrossCache)]
        return counts[0] if counts else self.rows
