"""Mixtures: sources of a corpus in shares of every batch, which may change on the way.

How much of each source the first n rows have follows from the shares and n alone, so any batch can be made without
those before it. Each source is shuffled by itself and begun again when it ends.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from clearhead.errors import DataError, OptionError
from clearhead.text.batches import BatchPlanner, Rows, Windows
from clearhead.text.shuffling import Indices
from clearhead.text.store import Store

BITS = 30
"""Shares are whole numbers of 2^-30, so that every machine counts alike."""
SOURCES = "sources"
"""In the notes of a store: each source's name, and the number of the record after its last."""


class MixPiece(NamedTuple):
    """The shares of the sources from a part of the training on."""

    begins: float
    shares: tuple[float, ...]


def read_mix(text: str) -> tuple[MixPiece, ...]:
    """Return the pieces that a text lists: shares, or shares that change after a part of the steps.

    >>> read_mix("7,3")
    (MixPiece(begins=0.0, shares=(0.7, 0.3)),)
    >>> read_mix("0.5,0.5; 0.9: 0,1")[1]
    MixPiece(begins=0.9, shares=(0.0, 1.0))
    """
    pieces: list[MixPiece] = []
    for place, part in enumerate(text.split(";")):
        begins, colon, listed = part.rpartition(":")
        try:
            start = float(begins) if colon else 0.0
            shares = [float(share) for share in listed.split(",")]
        except ValueError:
            raise OptionError(f"mix: expected shares such as 0.7,0.3 or 0.7,0.3;0.9:0.2,0.8; came {text!r}") from None
        if not all(share >= 0 and math.isfinite(share) for share in shares) or not sum(shares) > 0:
            raise OptionError(f"mix: shares are 0 or more, and one is above 0; came {listed!r}")
        last = pieces[-1].begins if pieces else -1.0
        if (not place and start != 0.0) or not last < start < 1.0:
            raise OptionError(f"mix: parts of the training ascend from 0 to less than 1; came {text!r}")
        pieces.append(MixPiece(start, tuple(share / sum(shares) for share in shares)))
    if len({len(piece.shares) for piece in pieces}) > 1:
        raise OptionError(f"mix: each list has a share for each source; came {text!r}")
    return tuple(pieces)


class MixSource(NamedTuple):
    """A source of a mixture: its name, and its records in the store."""

    name: str
    records: range


def sources_of(store: Store) -> list[MixSource]:
    """Return the sources whose text is in a store, in their order."""
    noted: Any = store.notes.get(SOURCES, [])
    ends = [0, *(int(source["end"]) for source in noted)]
    return [MixSource(str(one["name"]), range(*ends[i : i + 2])) for i, one in enumerate(noted)]


class Shares:
    """How many units (rows or batches) of each source are among the first n, for any n.

    The first source's share of n is rounded down; of the rest, the second has its share, and so on. So each count
    is within one unit of its share for each source before it, and never falls.
    """

    def __init__(self, pieces: Sequence[tuple[int, Sequence[float]]]) -> None:
        """`pieces`: the unit from which on, and the share of each source."""
        self.starts = np.array([start for start, _ in pieces])
        self.parts = np.array([split_shares(shares) for _, shares in pieces], dtype=np.int64)
        # What the pieces before have given each source, and the fractions of units that are left over.
        n_sources = len(pieces[0][1])
        self.before = np.zeros((len(pieces), n_sources), np.int64)
        self.left = np.zeros((len(pieces), n_sources), np.int64)
        for i in range(1, len(pieces)):
            self.before[i], self.left[i] = self.advance(i - 1, int(self.starts[i] - self.starts[i - 1]))

    def counts(self, n: int) -> list[int]:
        """Return how many of the first n units are of each source.

        >>> shares = Shares([(0, (0.5, 0.25, 0.25)), (8, (0.0, 0.0, 1.0))])
        >>> [shares.counts(n) for n in (4, 8, 10)]
        [[2, 1, 1], [4, 2, 2], [4, 2, 4]]
        """
        piece = int(np.searchsorted(self.starts, n, side="right")) - 1
        return self.advance(piece, n - int(self.starts[piece]))[0].tolist()

    def advance(self, piece: int, units: int) -> tuple[Indices, Indices]:
        """Return the counts after so many units of a piece, and the fractions that are left over."""
        counts, left = self.before[piece].copy(), np.zeros_like(self.left[piece])
        for source, part in enumerate(self.parts[piece].tolist()):
            taken = part * units + int(self.left[piece, source])  # Python's: it cannot overflow
            counts[source] += taken >> BITS
            left[source] = taken & ((1 << BITS) - 1)
            units -= taken >> BITS
        return counts, left


def split_shares(shares: Sequence[float]) -> list[int]:
    """Return each source's share of what those before it leave, in units of 2^-BITS; the last one takes all of it.

    >>> [part / 2**BITS for part in split_shares((0.5, 0.25, 0.25))]
    [0.5, 0.5, 1.0]
    """
    rest = [math.fsum(shares[i:]) for i in range(len(shares))]
    last = max(i for i, share in enumerate(shares) if share)
    parts = [round(share / left * (1 << BITS)) if left else 0 for share, left in zip(shares, rest, strict=True)]
    return [1 << BITS if i == last else part for i, part in enumerate(parts)]


@dataclass(frozen=True, kw_only=True)
class Mixed(BatchPlanner):
    """Batches of several sources. An epoch is as many batches as the sources have together.

    `counts` is how many units an epoch of each source has, of which a batch has `units`: batches themselves here, since
    the rows of a batch have similar lengths.
    """

    planners: tuple[BatchPlanner, ...]
    names: tuple[str, ...]
    counts: tuple[int, ...]
    shares: Shares
    units: int = 1

    def epoch(self, number: int, skip: int = 0) -> Iterator[Rows]:
        count = self.count(number)
        return self.batches(number * count + skip, (number + 1) * count)

    def count(self, number: int) -> int:
        return -(-sum(self.counts) // self.units)

    def in_order(self) -> Iterator[Rows]:
        for planner in self.planners:
            yield from planner.in_order()

    def batches(self, start: int, stop: int) -> Iterator[Rows]:
        """Yield the batches with these numbers."""
        counts = self.shares.counts(start)
        streams = [all_epochs(planner, count) for planner, count in zip(self.planners, counts, strict=True)]
        for number in range(start, stop):
            after = self.shares.counts(number + 1)
            yield next(next(streams[i] for i, count in enumerate(after) if count > counts[i]))
            counts = after

    def epochs(self, batches: int) -> dict[str, float]:
        """Return how often each source was read after so many batches."""
        taken = self.shares.counts(batches * self.units)
        every = zip(self.names, taken, self.counts, strict=True)
        return {name: round(count / epoch, 4) for name, count, epoch in every}


@dataclass(frozen=True, kw_only=True)
class MixedWindows(Mixed):
    """Batches of windows, each with rows of every source; the shares are of rows."""

    planners: tuple[Windows, ...]

    def batches(self, start: int, stop: int) -> Iterator[Rows]:
        counts = self.shares.counts(start * self.units)
        for number in range(start, stop):
            after = self.shares.counts((number + 1) * self.units)
            pairs = zip(self.planners, counts, after, strict=True)
            places = np.concatenate([planner.places(old, new) for planner, old, new in pairs])
            counts = after
            yield Rows(places, self.planners[0].width, self.units)


def mix_planners(planners: Sequence[BatchPlanner], names: Sequence[str]) -> Mixed:
    """Return the mixture of these planners, in equal shares."""
    shares, called = Shares([(0, [1.0] * len(planners))]), tuple(names)
    windows = tuple(planner for planner in planners if isinstance(planner, Windows))
    if len(windows) == len(planners):
        counts, rows = tuple(planner.steady for planner in windows), windows[0].rows
        return MixedWindows(planners=windows, names=called, counts=counts, shares=shares, units=rows)
    counts = tuple(planner.count(0) for planner in planners)
    return Mixed(planners=tuple(planners), names=called, counts=counts, shares=shares)


def all_epochs(planner: BatchPlanner, skip: int) -> Iterator[Rows]:
    """Yield the batches of all epochs without the first `skip`."""
    epoch = 0
    while skip and skip >= (count := planner.count(epoch)):
        skip, epoch = skip - count, epoch + 1
    while True:
        yield from planner.epoch(epoch, skip)
        skip, epoch = 0, epoch + 1


def check_sources(sources: Sequence[MixSource], pieces: Sequence[MixPiece]) -> None:
    """Raise where there are not as many sources as shares, or one that has a share has no text."""
    if not sources:
        raise DataError(
            "mix: one document is nearly all of the text, so its end is held out, and sources have no border; give a "
            "validation set"
        )
    for source, *shares in zip(sources, *(piece.shares for piece in pieces), strict=True):
        if any(shares) and not source.records:
            raise DataError(f"{source.name}: has a share of the mixture, and no record is left in it to train on")
