"""The line to beat: a simple model, fitted in seconds before the training, that a Transformer is compared with; and the
one for classes, a linear support vector machine on sparse features.

`clearhead/training/wide.py` makes the features, n-grams of the model's own tokens, and keeps the weights as the wide
part of a classifier.

For language models it is a byte n-gram model, interpolated modified Kneser–Ney (Chen and Goodman 1998) over bytes and
one sign for the end of a document. The last symbols of a text are packed into one whole number each, so that counting
is sorting, and the text is scored by looking up each different n-gram once. Nothing of it goes into the Transformer.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clearhead.model.outputs import ToNgramLogits
from clearhead.model.sizes import Spec
from clearhead.text.validation_split import is_drawn, spread

Fitted = TypeVar("Fitted")
MARGIN = 1.3
"""A larger share is thought to take so many times as long as the pilot's time says."""


class Baseline(ABC):
    """A fitted simple model with its score on the dev records."""

    @abstractmethod
    def announce(self) -> str:
        """Return the line that is printed before a Transformer is trained."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Return what baseline.json keeps, for the comparison at the end."""

    def wide_part(self) -> ToNgramLogits | None:
        """Return the model as a wide part of a Transformer's output; None if it cannot be one."""
        return None

    def joined(self, spec: Spec) -> Spec:
        """Return the spec of a model with this one as a part of it; as it is if it has no place for one."""
        return spec


def fit_in_time(fit: Callable[[float, float], Fitted], *, pilot: float, seconds: float) -> Fitted:
    """Return `fit(share, seconds)` for the largest share of the data that there is time for.

    A `pilot` share is fitted first, as quickly as can be. How long that took says how large the share can be; it is
    above 1 if there is time for more than all of the data.
    """
    if pilot >= 1 or math.isinf(seconds):
        return fit(math.inf, seconds)
    began = time.perf_counter()
    fitted = fit(pilot, 0.0)
    taken = time.perf_counter() - began
    share = pilot * (seconds - taken) / (MARGIN * taken)
    return fit(share, seconds - taken) if share > 2 * pilot else fitted


Keys = NDArray[np.int64]
MOST_BYTES = 20_000_000
"""Bytes of text that are learned from: what the time goes by."""
PENALTY = 2.0
"""The weight of half the squared norm of the weights beside the summed loss. From 1 to 4 accuracy hardly changes."""
ITERATIONS, TOLERANCE = 30, 0.003
"""The most steps of Newton's method, and how much smaller the gradient is at the end."""
MOST_DIRECTIONS, SOLVED, LINE_STEPS = 12, 0.2, 6
"""The most conjugate gradients of each, how much smaller the residual is then, and steps to find how far to go."""
TRY_PRETRAINED = "fine-tune a pretrained model (--from)"


@dataclass(frozen=True, kw_only=True)
class LinearScore:
    """How well a linear model does on the dev records: `accuracy` and `macro_f1`, the `features` it has, how many
    `records` it learned from, the `seconds` it took.
    """

    accuracy: float
    macro_f1: float
    features: int
    records: int
    seconds: float

    def announce(self) -> str:
        """Return the line that is printed before a Transformer is trained."""
        return (
            f"the line to beat: a linear model on {self.features:,} n-grams of {self.records:,} records is right on "
            f"{self.accuracy:.1%} of the dev records, macro F1 {self.macro_f1:.1%} ({self.seconds:.1f} s)"
        )

    def verdict(
        self, kept: "Figures", transformer: "Figures | None", shares: Sequence[float] = (), *, tuned: bool = False
    ) -> str:
        """Return the line that compares what is kept with this one, on the same records.

        `transformer` is the Transformer alone, where this linear model is a part of what is kept, and `shares` what the
        logits of the two are multiplied by. `tuned`: the
        Transformer was already fine-tuned from another run.
        """
        line = Figures(self.accuracy, self.macro_f1)
        if transformer is not None:
            alone = "the Transformer" if shares[0] else "the linear model"
            which = "the sum of both" if all(shares) else alone
            return f"kept is {which}: dev accuracy {kept}. The linear model has {line}, the Transformer {transformer}"
        if kept.accuracy >= self.accuracy:
            return f"dev accuracy {kept}; the linear model on n-grams has {line}"
        advice = "train longer, or start from a model that has seen more text" if tuned else TRY_PRETRAINED
        return (
            f"the linear model on n-grams is better: {line} of the dev records, and this model {kept}. For these "
            f"texts train without --from, which keeps the linear model as a part; or give more of them, or {advice}"
        )


class Figures(NamedTuple):
    """How often a classifier is right, and the mean F1 of its labels."""

    accuracy: float
    macro_f1: float

    def __str__(self) -> str:
        return f"{self.accuracy:.1%} (macro F1 {self.macro_f1:.1%})"


class Sparse(NamedTuple):
    """A sparse matrix by rows: `columns` and `values` of row i lie from `starts[i]` to `starts[i + 1]`."""

    starts: Tensor
    columns: Tensor
    values: Tensor
    width: int

    def times(self, weights: Tensor) -> Tensor:
        """Return the product with a dense matrix."""
        return F.embedding_bag(
            self.columns, weights, self.starts, mode="sum", per_sample_weights=self.values, include_last_offset=True
        )

    def transposed(self) -> "Sparse":
        """Return it by columns."""
        rows = torch.repeat_interleave(torch.arange(len(self.starts) - 1), self.starts.diff())
        order = torch.argsort(self.columns, stable=True)
        starts = torch.searchsorted(self.columns[order], torch.arange(self.width + 1))
        return Sparse(starts, rows[order], self.values[order], len(self.starts) - 1)


class DesignMatrix(NamedTuple):
    """The features of all records: the product of two sparse matrices in part.

    The columns of `records` are n-grams, and then tokens once more, from column `n_ngrams` on. For these `letters` has
    the groups of letters of each token, so that a group is not stored for each place where its token occurs.
    """

    records: Sparse
    letters: Sparse
    n_ngrams: int

    @property
    def width(self) -> int:
        return self.n_ngrams + self.letters.width

    def logits(self, weights: Tensor) -> Tensor:
        """Return the product with all rows of the weights but the last, plus the last."""
        tokens = self.letters.times(weights[self.n_ngrams : -1])
        return self.records.times(torch.cat([weights[: self.n_ngrams], tokens])) + weights[-1]


class Transposed(NamedTuple):
    """A design by columns."""

    records: Sparse
    letters: Sparse
    n_ngrams: int

    def times(self, slope: Tensor) -> Tensor:
        """Return the product with a number for each record and class; in the last row their sums, for the bias."""
        columns = self.records.times(slope)
        letters = self.letters.times(columns[self.n_ngrams :])
        return torch.cat([columns[: self.n_ngrams], letters, slope.sum(0, keepdim=True)])


@torch.no_grad()
def fit_linear(
    x: DesignMatrix,
    target: Tensor,
    class_weight: Tensor,
    penalty: float = PENALTY,
    *,
    start: Tensor | None = None,
    seconds: float = math.inf,
) -> Tensor:
    """Return the weights `(width + 1, classes)` of a linear support vector machine, the bias in the last row.

    `target` has a row for each record: 1 for its class, else 0. Each class is told from all others: the weights
    minimise the mean squared hinge loss, in which the records of a class weigh as `class_weight` says, plus
    penalty / (2 n) times the squared norm of all weights but the bias. They are found by Newton's method for all
    classes at once, each with a step length of its own, from the weights `start` if they are given; after some
    `seconds` they are what they are by then, but no less than one step of it is made.
    """
    end, n, sign = time.perf_counter() + seconds, len(target), target * 2 - 1
    across = Transposed(x.records.transposed(), x.letters.transposed(), x.n_ngrams)
    share, decay = torch.where(target > 0, class_weight, 1.0) / n, torch.full((x.width + 1, 1), penalty / n)
    decay[-1] = 0
    weights = torch.zeros(x.width + 1, target.shape[1])
    weights[-1] = sign.mean(0)  # most classes are rare: from zero, the first steps would only find that out
    logits = weights[-1].expand_as(target).clone()
    short = (1 - sign * logits).clamp(min=0)
    gradient = across.times(-2 * share * sign * short)
    small = TOLERANCE * gradient.norm(dim=0)
    if start is not None:
        weights, logits = start.clone(), x.logits(start)
    for number in range(ITERATIONS):
        short = (1 - sign * logits).clamp(min=0)
        gradient = across.times(-2 * share * sign * short).addcmul_(decay, weights)
        over = number > 0 and time.perf_counter() > end
        if over or (gradient.norm(dim=0) <= small).all():
            break
        direction, along = newton_direction(
            x, across, 2 * share * (short > 0), decay, gradient, end=end if number else math.inf
        )
        length = step_length(sign * logits, sign * along, share, decay=decay, weights=weights, direction=direction)
        weights.addcmul_(direction, length)
        logits.addcmul_(along, length)
    return weights


def newton_direction(
    x: DesignMatrix, across: Transposed, curvature: Tensor, decay: Tensor, gradient: Tensor, *, end: float
) -> tuple[Tensor, Tensor]:
    """Return about where the quadratic that fits the loss here is least, and how the logits change on the way there.

    That is found by conjugate gradients, for each class apart.
    """
    # In place: the vectors are as large as the weights, and a new one costs more than the sum that it is for.
    direction, along = torch.zeros_like(gradient), torch.zeros_like(curvature)
    residual, search, product = -gradient, -gradient, torch.empty_like(gradient)
    squared = torch.mul(residual, residual, out=product).sum(0)
    enough = squared * SOLVED**2
    for _ in range(MOST_DIRECTIONS):
        change = x.logits(search)
        bent = across.times(curvature * change).addcmul_(decay, search)
        length = squared / torch.mul(search, bent, out=product).sum(0).clamp(min=1e-30)
        direction.addcmul_(search, length)
        along.addcmul_(change, length)
        residual.addcmul_(bent, length, value=-1)
        before, squared = squared, torch.mul(residual, residual, out=product).sum(0)
        if (squared <= enough).all() or time.perf_counter() > end:
            break
        search.mul_(squared / before.clamp(min=1e-30)).add_(residual)
    return direction, along


def step_length(
    margin: Tensor, change: Tensor, share: Tensor, *, decay: Tensor, weights: Tensor, direction: Tensor
) -> Tensor:
    """Return for each class the multiple of the direction at which the loss is least.

    `margin` is the logit times the sign that it should have, and `change` what one whole step adds to it.
    """
    straight, bent = (decay * weights * direction).sum(0), (decay * direction.square()).sum(0)
    length = torch.ones_like(straight)
    for _ in range(LINE_STEPS):
        short = (1 - margin - length * change).clamp(min=0)
        slope = straight + length * bent - 2 * (share * change * short).sum(0)
        curvature = bent + 2 * (share * change.square() * (short > 0)).sum(0)
        length = length - slope / curvature.clamp(min=1e-30)
    return length


Floats = NDArray[np.float64]
ORDER = 7
"""Symbols of an n-gram: as many as fit into 63 bits. Fewer are no quicker, and worse on every text that was tried."""
END, SYMBOLS, BITS = 256, 257, 9
"""The sign that ends a document and stands before its first byte, how many symbols there are, and bits of each."""
PILOT_BYTES = 200_000
"""Bytes whose counting says how many more can be counted in time."""
BLOCK = 1 << 16
"""A sample of a text is made of blocks of so many bytes."""
MOST_TIMES = 30.0
"""A training that would have to be longer than this many times is not foretold."""


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
    rates = [0.0]
    for n, few, more in ((1, once, twice), (2, twice, thrice), (3, thrice, four)):
        rate = n - (n + 1) * kept * more / few if few else 0.0
        # In a short text the estimate may be all or nothing; without anything taken, what is new has no probability.
        rates.append(rate if 0 < rate < n else n * 0.5)
    taken = np.array(rates)[np.minimum(counts, 3)]
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
    """Return how many times as long a training must be at least to reach `goal`; None if that cannot be told.

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
