"""The order of an epoch: every index below n once, in constant memory; what stands at a place is computed on its own.

Few indices are shuffled as a table. More than TABLE are shuffled on two levels by keyed permutations (Feistel
networks): neighbours stay together in runs, so that a disk or a network reads RUN of them at once; the runs come in
random order from all over the corpus; and each TABLE of indices, which is many runs, is shuffled again, so that a batch
has neighbours of hardly any run.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
TABLE = 1 << 17
"""Indices that are shuffled together at the second level, and by a table if there are no more."""
RUN = 1 << 6
"""Neighbours that stay together at the first level."""
ROUNDS = 8
"""Rounds of a Feistel network. Four make a pseudorandom permutation if the round function is random; ours is a hash."""


class KeyedPermutation:
    """A permutation of range(n) that follows from its key alone: `permutation(indices)` in constant memory.

    A Feistel network permutes the numbers below the next power of two; one that lands at n or above is permuted again
    (cycle walking), which is needed less than once for each number on average.

    >>> KeyedPermutation(10, 7)(np.arange(10)).tolist()
    [2, 9, 0, 8, 3, 6, 7, 4, 1, 5]
    """

    def __init__(self, n: int, key: int) -> None:
        bits = max(2, (n - 1).bit_length())
        self.n, self.low = n, np.uint64(bits // 2)
        self.masks = np.uint64((1 << (bits - bits // 2)) - 1), np.uint64((1 << bits // 2) - 1)
        self.keys = np.random.default_rng([n, key]).integers(0, 1 << 64, ROUNDS, np.uint64)

    def __call__(self, indices: Indices) -> Indices:
        """Return where each index goes."""
        values = self.permute(indices.astype(np.uint64))
        outside = np.flatnonzero(values >= self.n)
        while len(outside):
            values[outside] = self.permute(values[outside])
            outside = outside[values[outside] >= self.n]
        return values.astype(np.int64)

    def permute(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Permute the numbers below the power of two: each half in turn is changed by a hash of the other."""
        high, low = values >> self.low, values & self.masks[1]
        for turn, key in enumerate(self.keys):
            if turn % 2:
                low ^= mix(high, key) & self.masks[1]
            else:
                high ^= mix(low, key) & self.masks[0]
        return high << self.low | low


def mix(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Hash numbers with a key, by the finalizer of SplitMix64."""
    mixed = values + key
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed ^ mixed >> np.uint64(31)


@dataclass(frozen=True)
class EpochOrder:
    """The order of n indices, drawn from `random`: `at(start, end)` gives those at these places."""

    n: int
    table: Indices | None
    key: int
    turn: int

    @classmethod
    def draw(cls, n: int, random: np.random.Generator) -> "EpochOrder":
        if n <= TABLE:
            return cls(n, random.permutation(n), 0, 0)
        # The runs begin elsewhere in each epoch: otherwise neighbours would always be in the same run.
        return cls(n, None, int(random.integers(1 << 63)), int(random.integers(n)))

    def at(self, start: int, end: int) -> Indices:
        """Return the indices at places from `start` to before `end`."""
        if self.table is not None:
            return self.table[start:end]
        places = [self.within(part, start, end) for part in range(start // TABLE, -(-end // TABLE))]
        return np.concatenate(places) if places else np.empty(0, np.int64)

    def within(self, part: int, start: int, end: int) -> Indices:
        """Return the indices at those places that lie in one part of TABLE places."""
        begin, size = part * TABLE, min(TABLE, self.n - part * TABLE)
        places = np.arange(max(start, begin), min(end, begin + size)) - begin
        shuffled = begin + KeyedPermutation(size, self.key + 1 + part)(places)
        run, offset = shuffled // RUN, shuffled % RUN
        whole = self.n // RUN
        # The last run is shorter where RUN does not divide n, and keeps its place; the turn moves it.
        moved = np.where(run < whole, KeyedPermutation(whole, self.key)(np.minimum(run, whole - 1)), run)
        return (moved * RUN + offset + self.turn) % self.n
