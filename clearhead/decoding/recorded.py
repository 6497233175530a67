"""Decoding steps recorded as CUDA graphs and replayed: launching their kernels one by one takes longer than they do.

A recorded step is bound to its memory: as many rows as when it was recorded, caches of fixed size. Rows that leave are
therefore replaced by copies of the first row, whose logits nobody reads, until half of them are such; then a smaller
step is recorded. The same is done, in larger memory, when the columns are used up.
"""

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.compiling import without_garbage_collection
from clearhead.decoding.caches import Caches, FromSource

__all__ = ["RecordedStep", "Search", "record", "records"]

Logits = Float[Tensor, "row vocabulary"]
Search = Callable[[Logits, Int[Tensor, "row 1"]], tuple[Tensor, ...]]
"""Takes log-probabilities and the memory that the next step's tokens are read from."""
WARM_UPS = 2
"""Steps with the same number of rows before one is recorded: a beam begins with fewer rows than it goes on with."""
FEWEST = 8
"""Columns that must still be to come: for fewer, recording costs more than it saves."""
FIRST_COLUMNS = 64


def records(device: torch.device) -> bool:
    """Check whether steps are recorded on this device."""
    return device.type == "cuda"


def record(work: Callable[[], None]) -> Callable[[], None]:
    """Return the work as one call: a CUDA graph where there is a GPU, else the work itself, as tests run it.

    It is run once before it is recorded, as capturing asks.
    """
    if not torch.cuda.is_available():
        return work
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with without_garbage_collection(), torch.cuda.graph(graph):
        work()
    return graph.replay


@final
class RecordedStep:
    """The step of a session: `compute` makes logits of one new token a row, at the column that the clock is at.

    `search` is recorded with it: from the logits to the tensors that choose what follows, which `found` then holds.
    `warm_ups`: steps with the same number of rows before one is recorded, `WARM_UPS` unless it is known better.
    """

    def __init__(
        self,
        caches: Caches,
        compute: Callable[[Int[Tensor, "row 1"]], Logits],
        search: Search | None = None,
        *,
        warm_ups: int | None = None,
    ) -> None:
        self.caches, self.clock, self.compute = caches, caches.clock, compute
        self.search, self.warm_ups = search, WARM_UPS if warm_ups is None else warm_ups
        self.replay: Callable[[], None] | None = None
        self.tokens = self.logits = torch.empty(0)
        self.found: tuple[Tensor, ...] | None = None
        self.moves: dict[str, tuple[Callable[[], None], Tensor]] = {}
        self.rows = self.sentences = self.steps = 0
        """Rows and sentences in the recorded step's memory; of the sentences, only those that have not left."""

    def step(self, tokens: Int[Tensor, "row 1"]) -> Logits:
        """Return the logits after one more token in every row."""
        if not self.prepare(len(tokens)):
            self.found = None
            self.clock.advance(1)
            return self.compute(tokens)
        self.tokens[: len(tokens)] = tokens
        self.advance()
        return self.logits[: len(tokens)]

    def prepare(self, rows: int) -> bool:
        """Record the step, if that is due; return whether there is a recorded one."""
        if self.replay is not None:
            if self.clock.n + self.clock.new >= self.clock.columns:
                self.clock.release()
                self.record()
            return True
        self.steps = 1 if rows > self.rows else self.steps + 1
        self.rows = rows
        if self.steps > self.warm_ups and self.clock.limit - self.clock.n - self.clock.new >= FEWEST:
            self.record()
        return self.replay is not None

    def record(self) -> None:
        """Put everything into memory of fixed size, and record the step on it."""
        columns, there = FIRST_COLUMNS, self.clock.n + self.clock.new
        while columns <= there:
            columns *= 2
        for cache in self.caches:
            cache.fix(columns)
        last = self.tokens
        self.tokens = torch.zeros(self.rows, 1, dtype=torch.long, device=self.clock.device)
        if last.shape == self.tokens.shape:
            self.tokens.copy_(last)
        self.clock.fix(torch.tensor([there], device=self.clock.device), columns)
        if self.replay is None:
            self.sentences = self.n_sentences()
        self.moves = {}
        before = self.tokens.clone()
        self.replay = record(self.work)
        self.tokens.copy_(before)

    def work(self) -> None:
        self.clock.known = {}
        self.logits = self.compute(self.tokens)
        if self.search is not None:
            wide = torch.promote_types(self.logits.dtype, torch.float32)
            self.found = self.search(torch.log_softmax(self.logits, -1, dtype=wide), self.tokens)

    def advance(self) -> None:
        """Replay the step at the next column."""
        assert self.replay is not None
        assert self.clock.place is not None
        self.clock.advance(1)
        self.clock.place.fill_(self.clock.n)
        self.replay()

    def select(self, rows: Int[Tensor, "new_row"], sentences: Int[Tensor, "new_sentence"] | None) -> bool:
        """Keep these rows, in the recorded step's memory while it fits; False where there is none."""
        if self.replay is None:
            return False
        n_sentences = self.n_sentences()
        leaves, kept = sentences is not None, self.sentences if sentences is None else len(sentences)
        if sentences is None and kept < n_sentences:  # those that left before are still in memory
            sentences = torch.arange(kept, device=rows.device)
        # Beams of a sentence stay side by side; were there more or fewer of them, all rows would have to move.
        if kept * self.rows != len(rows) * n_sentences or 2 * len(rows) <= self.rows:
            self.replay = self.found = None
            self.clock.release()
            self.caches.select(rows, sentences)
            return True
        self.sentences = kept
        self.move("rows", rows, self.rows, self.caches.move_rows)
        if leaves and sentences is not None:
            self.move("sentences", sentences, n_sentences, self.caches.move_sentences)
        return True

    def move(self, name: str, which: Tensor, count: int, work: Callable[[Tensor], None]) -> None:
        """Move rows or sentences by a recorded move; `which` is filled up with the first to as many as there are."""
        if name not in self.moves:
            index = torch.arange(count, device=which.device)
            self.moves[name] = record(lambda: work(index)), index
        replay, index = self.moves[name]
        index.zero_()
        index[: len(which)] = which
        replay()

    def n_sentences(self) -> int:
        """Return of how many sentences the rows are: what cross-attention holds, else one a row."""
        held = [len(cache.tensors()[0]) for cache in self.caches if isinstance(cache, FromSource)]
        return held[0] if held else self.rows
