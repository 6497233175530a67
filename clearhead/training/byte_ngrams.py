"""A byte n-gram model with Kneser–Ney smoothing: the line that a language model has to beat, counted in seconds.

It is interpolated modified Kneser–Ney (Chen and Goodman 1998) over bytes and one sign for the end of a document. The
last symbols of a text are packed into one whole number each, so that counting is sorting, and the text is scored by
looking up each different n-gram once. Nothing of it goes into the Transformer.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from clearhead.text.drawing import is_drawn, spread
from clearhead.training.baseline import Baseline, fit_in_time

Keys = NDArray[np.int64]
Floats = NDArray[np.float64]
ORDER = 7
"""Symbols of an n-gram: as many as fit into 63 bits. Fewer are no quicker, and worse on every text that was tried."""
END, SYMBOLS, BITS = 256, 257, 9
"""The sign that ends a document and stands before its first byte, how many symbols there are, and bits of each."""
MOST_BYTES = 20_000_000
"""Bytes that are counted, and bytes that are scored, at most: a few hundred megabytes of memory."""
PILOT_BYTES = 200_000
"""Bytes whose counting says how many more can be counted in time."""
BLOCK = 1 << 16
"""A sample of a text is made of blocks of so many bytes."""
MOST_TIMES = 30.0
"""A training that would have to be longer than this many times is not foretold."""


@final
@dataclass(frozen=True, kw_only=True)
class NgramScore(Baseline):
    """The bits that a byte n-gram model needs for each byte of the dev text, and what it was counted on."""

    bits_per_byte: float
    order: int
    train_bytes: int
    text_bytes: int
    dev_bytes: int
    seconds: float

    def announce(self) -> str:
        """Return the line that is printed before a Transformer is trained."""
        of = "" if self.train_bytes == self.text_bytes else f" of {self.text_bytes / 1e6:,.1f}"
        return (
            f"the line to beat: a byte {self.order}-gram (Kneser–Ney) counted on {self.train_bytes / 1e6:,.1f}{of} MB "
            f"has {self.bits_per_byte:.3f} bits/byte on the dev text ({self.seconds:.1f} s)"
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def verdict(self, bits_per_byte: float, curve: Sequence[tuple[int, float]], *, text_is_used_up: bool) -> str:
        """Return the line that compares a Transformer on the same text with this one; if the Transformer is worse, with
        what would change that.

        `curve` has its evaluations: step and bits per byte. `text_is_used_up`: it has had all epochs that are good.
        """
        ours, theirs = f"{bits_per_byte:.3f}", f"{self.bits_per_byte:.3f}"
        if bits_per_byte < self.bits_per_byte:
            return f"{ours} bits/byte on the dev text; the byte {self.order}-gram has {theirs}"
        times = times_longer(curve, self.bits_per_byte)
        if text_is_used_up:
            help_ = "More minutes would not help: all that this text is good for was used. Give more text"
        elif times is None:
            help_ = "Train longer, or on more text; the curve of this training does not tell how much longer"
        else:
            help_ = f"By the curve of this training, one at least {times:.1f} times as long would pass it"
        return f"the byte {self.order}-gram is better: {theirs} bits/byte on the dev text, this model {ours}. {help_}"


@final
class ByteSample:
    """The documents of a text of `n_bytes`; of one with more than `most` bytes, blocks from all over it."""

    def __init__(self, n_bytes: int, most: float | int) -> None:
        self.every = max(1, math.ceil(n_bytes / most))
        self.documents: list[bytes] = []
        self.pieces: list[bytes] = []
        self.blocks = 0

    def add(self, text: bytes, *, ends: bool) -> None:
        """Add the next piece of a document; `ends` says whether it is the last one."""
        if self.every == 1:
            self.pieces.append(text)
            if ends:
                self.documents.append(b"".join(self.pieces))
                self.pieces = []
            return
        for start in range(0, len(text), BLOCK):
            if is_drawn(self.blocks, self.every):
                self.documents.append(text[start : start + BLOCK])
            self.blocks += 1


class NgramCounts(NamedTuple):
    """The n-grams of one length: sorted keys with their discounted probabilities, and sorted contexts with the weight
    that is left to shorter n-grams.
    """

    keys: Keys
    share: Floats
    contexts: Keys
    rest: Floats


def pack(documents: Iterable[bytes], order: int) -> Keys:
    """Return, for each byte of the documents and each end, the symbol and the `order - 1` before it as one number."""
    packed = [np.zeros(0, np.int64)]
    for document in documents:
        ends = np.full(order, END, np.uint16)
        symbols = np.concatenate([ends[1:], np.frombuffer(document, np.uint8), ends[:1]])
        keys = np.zeros(len(document) + 1, np.int64)
        for place in range(order):  # in place: the keys are most of the memory
            keys <<= BITS
            keys |= symbols[place : place + len(keys)]
        packed.append(keys)
    return np.concatenate(packed) if len(packed) > 2 else packed[-1]


def count_unique(keys: Keys) -> tuple[Keys, Keys]:
    """Return the different keys in order, and how often each occurs. The array that is given gets sorted."""
    keys.sort()
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.diff(first, append=len(keys))


def count_ngrams(documents: Iterable[bytes], order: int = ORDER) -> list[NgramCounts]:
    """Return the model of these documents: the counts of n-grams of 1, 2, … `order` symbols.

    The longest are counted as they occur. A shorter one counts the different symbols that it was seen after.
    """
    keys, counts = count_unique(pack(documents, order))
    model = [discount(keys, counts)]
    for length in range(order - 1, 0, -1):
        keys, counts = count_unique(keys & ((1 << BITS * length) - 1))
        model.append(discount(keys, counts))
    return model[::-1]


def discount(keys: Keys, counts: Keys) -> NgramCounts:
    """Take from each count what modified Kneser–Ney takes from it, and give that to the shorter n-grams."""
    once, twice, thrice, four = (int((counts == n).sum()) for n in (1, 2, 3, 4))
    kept = once / (once + 2 * twice) if once else 0.5
    rates = [
        (n - (n + 1) * kept * more / few) if few and more else n * 0.5
        for n, few, more in ((1, once, twice), (2, twice, thrice), (3, thrice, four))
    ]
    taken = np.clip(np.array([0.0, *rates]), 0.0, [0.0, 1.0, 2.0, 3.0])[np.minimum(counts, 3)]
    contexts, first = np.unique(keys >> BITS, return_index=True)
    totals = np.add.reduceat(counts, first)
    share = (counts - taken) / np.repeat(totals, np.diff(np.append(first, len(keys))))
    return NgramCounts(keys, share, contexts, np.add.reduceat(taken, first) / totals)


def probabilities(model: Sequence[NgramCounts], keys: Keys) -> Floats:
    """Return the probability of the last symbol of each key after those before it. Sorted keys are looked up faster."""
    found = np.full(len(keys), 1 / SYMBOLS)
    for length, counts in enumerate(model, start=1):
        if not len(counts.keys):
            continue
        short = keys & ((1 << BITS * length) - 1)
        found = look_up(counts.contexts, counts.rest, short >> BITS, 1.0) * found
        found += look_up(counts.keys, counts.share, short, 0.0)
    return found


def look_up(known: Keys, values: Floats, keys: Keys, otherwise: float) -> Floats:
    """Return the value of each key, `otherwise` for one that is not known."""
    at = np.searchsorted(known, keys).clip(max=len(known) - 1)
    return np.where(known[at] == keys, values[at], otherwise)


def draw_blocks(documents: Sequence[bytes], share: float) -> Sequence[bytes]:
    """Return the documents; of a smaller share than all of them, blocks from all over them, each as a document."""
    if share >= 1:
        return documents
    size = min(BLOCK, PILOT_BYTES // 8)
    blocks = [document[i : i + size] for document in documents for i in range(0, len(document), size)]
    return [blocks[i] for i in spread(len(blocks), max(1, round(share * len(blocks))))]


def score_ngrams(
    train: Sequence[bytes],
    dev: Sequence[bytes],
    *,
    text_bytes: int | None = None,
    order: int = ORDER,
    seconds: float = math.inf,
) -> NgramScore:
    """Count the training documents, and return the bits for each byte of the dev documents; their ends cost bits too,
    as they do in a Transformer. `text_bytes` is how long the whole training text is, if these are a sample. In so many
    `seconds` less of it may be counted.
    """
    started, counted = time.perf_counter(), list[Sequence[bytes]]()

    def count(share: float, seconds: float) -> list[NgramCounts]:
        counted.append(draw_blocks(train, share))
        return count_ngrams(counted[-1], order)

    model = fit_in_time(count, pilot=PILOT_BYTES / max(1, sum(map(len, train))), seconds=seconds)
    keys, counts = count_unique(pack(dev, order))
    bits = -(np.log2(probabilities(model, keys)) * counts).sum()
    train_bytes, dev_bytes = (sum(map(len, documents)) for documents in (counted[-1], dev))
    return NgramScore(
        bits_per_byte=float(bits / max(1, dev_bytes)),
        order=order,
        train_bytes=train_bytes,
        text_bytes=max(train_bytes, text_bytes or 0),
        dev_bytes=dev_bytes,
        seconds=time.perf_counter() - started,
    )


def times_longer(curve: Sequence[tuple[int, float]], goal: float) -> float | None:
    """Return how many times as long a training must be at least to reach `goal`; None where that cannot be told.

    `curve` has step and bits of each evaluation. What each doubling of the steps brings becomes less and less, so the
    smaller of the last two, from a quarter to a half and from there to the end, is more than the next will bring.

    >>> times_longer([(250, 3.0), (500, 2.5), (1000, 2.0)], goal=1.5)
    2.0
    """
    steps, bits = (np.array(column, float) for column in zip(*curve, strict=True)) if curve else (np.zeros(0),) * 2
    if len(steps) < 3 or steps[0] > steps[-1] / 4:
        return None
    quarter, half, end = np.interp(np.log(steps[-1] / np.array([4, 2, 1])), np.log(steps), bits)
    doubling = min(quarter - half, half - end)
    times = 2 ** ((end - goal) / doubling) if doubling > 0 else math.inf
    return float(times) if times <= MOST_TIMES else None
