"""Filters and deduplication: which records of the training text stay, and how many went, and why.

A filter sees one record at a time. Copies are found among all records of a corpus, by hashes that parts keep: the first
one stays, whatever process read it.
"""

import re
import unicodedata
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from clearhead.calls import CodeRepr
from clearhead.errors import OptionError
from clearhead.registry import kind, options, register
from clearhead.text.shuffling import Indices, mix

Deduplicate = Literal["exact", "near"]
BANDS, ROWS = 14, 8
"""Near copies share one of 14 groups of 8 minima, as in FineWeb: texts with 3/4 of their shingles in common do so in 77
cases of 100.
"""
SHINGLE = 5
"""Words of a shingle."""
KEY = 16
"""Bytes of the hash of a text, which come before those of its groups of minima."""


@kind("filter")
@dataclass(frozen=True)
class TextFilter(CodeRepr, ABC):
    """A rule for which records of the training text stay. Of a long document it sees the first megabyte.

    Derive from it, and put `@clearhead.register` above a frozen dataclass, for a filter of your own.

    >>> import clearhead as ch
    >>> issubclass(ch.training.QualityFilter, ch.training.TextFilter)
    True
    """

    @abstractmethod
    def refuses(self, texts: Sequence[str]) -> str | None:
        """Return why a record with these texts is left out, in a few words; None if it stays."""

    def judge(self, records: Sequence[Sequence[str]]) -> list[str | None]:
        """Return what `refuses` says of each of many records."""
        return [self.refuses(texts) for texts in records]

    def state(self) -> str:
        """Return what its verdicts depend on beside its fields: if that changes, text is prepared again."""
        return ""


@final
@dataclass(frozen=True)
class LengthFilter(TextFilter):
    """Leave out records that are too short or too long.

    Args:
        least: Fewest characters of each text.
        most: Most characters of each text; None for no limit.

    Raises:
        OptionError: If the numbers do not fit together.

    >>> import clearhead as ch
    >>> ch.training.LengthFilter(least=3).refuses(["ab"])
    'too short'
    """

    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        if self.least < 0 or (self.most is not None and self.most < self.least):
            raise OptionError(f"LengthFilter: expected 0 <= least <= most; came {self.least} and {self.most}")

    def refuses(self, texts: Sequence[str]) -> str | None:
        for text in texts:
            if len(text) < self.least:
                return "too short"
            if self.most is not None and len(text) > self.most:
                return "too long"
        return None


@final
@dataclass(frozen=True)
class QualityFilter(TextFilter):
    """Leave out what is hardly running text, by the rules of Gopher (Rae et al. 2021, table A1).

    Args:
        least_words: Fewest words.
        most_words: Most words.
        stop_words: Of these two or more must occur; () for a language that has others.

    Raises:
        OptionError: If the numbers do not fit together.

    >>> import clearhead as ch
    >>> ch.training.QualityFilter(least_words=3).refuses(["# # # $ 1 2 3"])
    'words of odd length'
    """

    least_words: int = 50
    most_words: int = 100_000
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")

    def __post_init__(self) -> None:
        if not 0 <= self.least_words <= self.most_words:
            raise OptionError(
                f"QualityFilter: expected 0 <= least_words <= most_words; came {self.least_words}, {self.most_words}"
            )

    def refuses(self, texts: Sequence[str]) -> str | None:
        for text in texts:
            words, lines = text.split(), [line.strip() for line in text.splitlines() if line.strip()]
            n = max(1, len(words))
            if not self.least_words <= len(words) <= self.most_words:
                return "too few words" if len(words) < self.least_words else "too many words"
            if not 3 <= sum(map(len, words)) / n <= 10:
                return "words of odd length"
            if max(text.count("#"), text.count("...") + text.count("…")) > 0.1 * n:
                return "too many symbols"
            if sum(line[0] in "•-*" for line in lines) > 0.9 * len(lines):
                return "nearly all lines are bullet points"
            if sum(line.endswith(("...", "…")) for line in lines) > 0.3 * len(lines):
                return "many lines break off"
            if sum(any(map(str.isalpha, word)) for word in words) < 0.8 * n:
                return "many words without a letter"
            if self.stop_words and len({word.lower() for word in words} & set(self.stop_words)) < 2:
                return "no stop words"
        return None


register(LengthFilter, option="length")
register(QualityFilter, option="quality")

FILTERS: dict[str, type[TextFilter]] = options("filter")
"""The filters that have a short name."""


@dataclass
class LeftOut:
    """What filters and deduplication left out: records and bytes of text, by the reason."""

    records: Counter[str] = field(default_factory=Counter)
    text_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, records: int, n_bytes: int) -> None:
        self.records[reason] += records
        self.text_bytes[reason] += n_bytes

    def add_json(self, found: Mapping[str, Any]) -> None:
        for reason, (records, n_bytes) in found.items():
            self.add(reason, records, n_bytes)

    def to_json(self) -> dict[str, list[int]]:
        return {reason: [count, self.text_bytes[reason]] for reason, count in self.records.items()}

    def describe(self) -> Iterator[str]:
        for reason, count in self.records.most_common():
            yield f"left out: {count:,} records, {self.text_bytes[reason] / 1e6:,.1f} MB: {reason}"


def judge(filters: Iterable[TextFilter], records: Sequence[Sequence[str]]) -> list[str | None]:
    """Return why each record is left out, by the first filter that refuses it; None for those that stay."""
    reasons: list[str | None] = [None] * len(records)
    for each in filters:
        staying = [i for i, reason in enumerate(reasons) if reason is None]
        for i, reason in zip(staying, each.judge([records[i] for i in staying]), strict=True):
            reasons[i] = None if reason is None else f"{type(each).__name__}: {reason}"
    return reasons


class TextMinima:
    """Hashes a text so that near copies can be found: a minimum over its shingles for each of many hash functions.

    A text may come in pieces; a shingle lies within one.
    """

    FACTORS = np.random.default_rng(43).integers(0, 1 << 64, (2, BANDS * ROWS), np.uint64)

    def __init__(self) -> None:
        self.minima = np.full(BANDS * ROWS, np.iinfo(np.uint64).max, np.uint64)

    def add(self, text: str) -> None:
        shingles = shingle_hashes(text)
        for start in range(0, len(shingles), 1 << 12):  # a piece of a megabyte has 200,000
            some = shingles[start : start + (1 << 12), None]
            hashes = (some ^ self.FACTORS[0]) * (self.FACTORS[1] | np.uint64(1))
            self.minima = np.minimum(self.minima, (hashes ^ hashes >> np.uint64(32)).min(0))

    def key(self) -> bytes:
        """Return a hash of each group of minima. Near copies have one or more in common."""
        groups = self.minima.reshape(BANDS, ROWS)
        keys = np.zeros(BANDS, np.uint64)
        for column in groups.T:
            keys = mix(keys ^ column, np.uint64(ROWS))
        return keys.tobytes()

    @property
    def is_empty(self) -> bool:
        return bool((self.minima == np.iinfo(np.uint64).max).all())


def shingle_hashes(text: str) -> NDArray[np.uint64]:
    """Return a hash for each SHINGLE neighbouring words of a text, in lower case and without punctuation.

    A shorter text is one shingle.
    """
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    words = re.findall(r"\w+", folded)
    hashes = np.fromiter((zlib.crc32(word.encode()) for word in words), np.uint64, len(words))
    length = min(SHINGLE, len(hashes))
    joined = np.zeros(max(0, len(hashes) - length + 1) if length else 0, np.uint64)
    for place in range(length):
        joined = mix(joined ^ hashes[place : place + len(joined)], np.uint64(place + 1))
    return joined


def find_copies(keys: Iterable[bytes], how: Deduplicate) -> tuple[Indices, Indices]:
    """Return the numbers of texts that are copies of an earlier one, and of those that only nearly are.

    `keys` are the hashes of all texts. They are held in memory: 16 bytes a text, or 128 to find near copies.
    """
    table = np.frombuffer(b"".join(keys), np.uint64)
    table = table.reshape(-1, KEY // 8 + (BANDS if how == "near" else 0))
    order = np.lexsort((table[:, 1], table[:, 0]))
    copies = later_ones(order, (table[order[1:], :2] == table[order[:-1], :2]).all(1))
    gone = np.zeros(len(table), bool)
    for band in range(2, table.shape[1]):
        order = np.argsort(table[:, band], kind="stable")
        gone[later_ones(order, table[order[1:], band] == table[order[:-1], band])] = True
    gone[copies] = False
    return np.sort(copies), np.flatnonzero(gone)


def later_ones(order: Indices, same: NDArray[np.bool_]) -> Indices:
    """Return those of an order that are the same as the one before them."""
    return order[1:][same]
