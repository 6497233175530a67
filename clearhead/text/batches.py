"""Batches: records of similar length by a budget of tokens, or windows of a stream. The same seed, the same batches.

What a batch holds follows from the seed, the epoch and the batch's number; nothing of the size of the corpus is in
memory (`clearhead.text.shuffling` has the order of an epoch).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from clearhead.errors import OptionError
from clearhead.text import shuffling
from clearhead.text.shuffling import EpochOrder, Indices
from clearhead.text.store import Store


class Rows(NamedTuple):
    """A batch before it is read: the indices of its records (or places in the stream), and its shape.

    `full` is the most rows a batch of this width may have: on a GPU every batch of a width is filled up to it, so that
    there are few shapes.
    """

    which: Indices
    width: int
    full: int


class BatchPlanner(ABC):
    """The batches of an epoch, in order."""

    @abstractmethod
    def epoch(self, number: int, skip: int = 0) -> Iterator[Rows]:
        """Yield batches of every record once, shuffled by the seed and the epoch's number; without the first `skip`."""

    @abstractmethod
    def count(self, number: int) -> int:
        """Return the number of batches of an epoch."""

    @abstractmethod
    def in_order(self) -> Iterator[Rows]:
        """Yield batches of every record once, not shuffled: for evaluation."""


def width_for(longest: int) -> int:
    """Return the width of a batch whose longest row has this length: few widths, and little padding.

    >>> [width_for(n) for n in (1, 8, 9, 65, 130, 1000)]
    [8, 8, 16, 80, 160, 1024]
    """
    step = 8
    while longest > 8 * step:
        step *= 2
    return -(-longest // step) * step


@dataclass(frozen=True, kw_only=True)
class ByLength(BatchPlanner):
    """Records of similar length together, as many as `tokens` allow. A record is as long as its longest field.

    `joined`: the fields become one row, so that a record is as long as all of them together. `records`: only these;
    None for all.
    `extra` is what each row gets beside its ids, such as an end token; a row longer than `longest` is cut to it later,
    so that no batch is wider than the two together.

    There is little padding: a row of n tokens has at most 7 places of it, or n / 4 where that is more, up to its own
    width; and of the batches of a part (`shuffling.TABLE` records from all over the store, which are sorted together),
    at most one for each width has rows of several.
    """

    store: Store
    fields: tuple[str, ...]
    tokens: int
    seed: int
    longest: int
    extra: int = 1
    joined: bool = False
    records: range | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise OptionError(f"a batch needs a budget of one token or more; came {self.tokens}")
        if self.longest < 0 or self.longest + self.extra < 1:
            raise OptionError(f"a row needs room for one token or more; came {self.longest} and {self.extra} extra")

    def epoch(self, number: int, skip: int = 0) -> Iterator[Rows]:
        return islice(self.every_batch(number), skip, None)

    def every_batch(self, number: int) -> Iterator[Rows]:
        random = np.random.default_rng([self.seed, number])
        order = EpochOrder.draw(len(self.chosen), random)
        for part in self.parts():
            batches = list(self.make_batches(self.chosen.start + order.at(part.start, part.stop)))
            yield from (batches[i] for i in random.permutation(len(batches)))

    def count(self, number: int) -> int:
        return sum(1 for _ in self.every_batch(number))

    def in_order(self) -> Iterator[Rows]:
        for part in self.parts():
            yield from self.make_batches(self.chosen.start + np.arange(part.start, part.stop))

    @property
    def chosen(self) -> range:
        return range(len(self.store)) if self.records is None else self.records

    def parts(self) -> Iterator[range]:
        """Yield the places of the records that are sorted by length together."""
        n = len(self.chosen)
        return (range(start, min(start + shuffling.TABLE, n)) for start in range(0, n, shuffling.TABLE))

    def make_batches(self, part: Indices) -> Iterator[Rows]:
        """Yield batches of one width, or of several where the narrow ones are few."""
        lengths = [self.store[name].lengths(part) for name in self.fields]
        longest = (np.sum(lengths, axis=0) if self.joined else np.max(lengths, axis=0)) + self.extra
        distinct, index = np.unique(longest, return_inverse=True)
        widths = np.array([width_for(int(n)) for n in distinct], dtype=np.int64)[index]
        widths = np.minimum(widths, self.longest + self.extra)
        order = np.argsort(widths, kind="stable")
        part, widths = part[order], widths[order]
        start = 0
        while start < len(part):
            end = self.end(widths, start)
            width = int(widths[end - 1])
            yield Rows(part[start:end], width, self.fit(width))
            start = end

    def end(self, widths: Indices, start: int) -> int:
        """Return where a batch that starts here ends: into the next width only where its rows fit that width too."""
        reach = min(start + self.fit(int(widths[start])), len(widths))
        same_width = int(np.searchsorted(widths, widths[start], side="right"))
        if same_width >= reach:
            return reach
        return max(same_width, min(start + self.fit(int(widths[reach - 1])), reach))

    def fit(self, width: int) -> int:
        return max(1, self.tokens // width)


@dataclass(frozen=True, kw_only=True)
class Windows(BatchPlanner):
    """Windows of `width` tokens (and the next token) of a stream, `rows` at a time.

    Each epoch begins at another place among the first `width`, so that no window comes twice; the few tokens before
    that place, and those after the last whole window, wait for another epoch. The tokens begin at `first`.
    """

    n_tokens: int
    width: int
    rows: int
    seed: int
    first: int = 0

    def __post_init__(self) -> None:
        if self.width < 1 or self.rows < 1:
            raise OptionError(f"a stretch and a batch hold one or more; came {self.width} tokens, {self.rows} rows")
        if self.n_tokens <= self.width:
            raise OptionError(f"a stretch of {self.width} tokens and the next one do not fit into {self.n_tokens}")

    def windows(self, phase: int = 0) -> int:
        """Return the number of windows from this place on."""
        return (self.n_tokens - 1 - phase) // self.width

    def begin(self, number: int) -> tuple[np.random.Generator, int]:
        """Return the random numbers of an epoch, and the place where its first window begins."""
        random = np.random.default_rng([self.seed, number])
        return random, int(random.integers(0, min(self.width, self.n_tokens - self.width)))

    def epoch(self, number: int, skip: int = 0) -> Iterator[Rows]:
        random, phase = self.begin(number)
        count = self.windows(phase)
        order = EpochOrder.draw(count, random)
        for start in range(skip * self.rows, count, self.rows):
            yield self.batch_at(phase + self.width * order.at(start, min(start + self.rows, count)))

    @property
    def steady(self) -> int:
        """Return how many windows every epoch has, wherever it begins."""
        return self.windows(min(self.width, self.n_tokens - self.width) - 1)

    def places(self, start: int, stop: int) -> Indices:
        """Return where windows begin, by their numbers over all epochs, each of `steady` windows."""
        found = [np.empty(0, np.int64)]
        while start < stop:
            epoch, place = divmod(start, self.steady)
            random, phase = self.begin(epoch)
            end = min(place + stop - start, self.steady)
            found.append(self.first + phase + self.width * EpochOrder.draw(self.steady, random).at(place, end))
            start += end - place
        return np.concatenate(found)

    def count(self, number: int) -> int:
        return -(-self.windows(self.begin(number)[1]) // self.rows)

    def in_order(self) -> Iterator[Rows]:
        for start in range(0, self.windows(), self.rows):
            yield self.batch_at(self.width * np.arange(start, min(start + self.rows, self.windows())))

    def batch_at(self, starts: Indices) -> Rows:
        return Rows(self.first + starts, self.width, self.rows)
