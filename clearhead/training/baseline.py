"""The line to beat: a simple model, fitted in seconds before the training, that a Transformer is compared with; and the
one for classes, a linear support vector machine on sparse features.

`clearhead/training/wide.py` makes the features, n-grams of the model's own tokens, and keeps the weights as the wide
part of a classifier. byte_ngrams.py is the one for language models.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clearhead.model.outputs import ToNgramLogits
from clearhead.model.sizes import Spec

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
MOST_RECORDS, MOST_BYTES, MOST_COST = 200_000, 20_000_000, 400_000_000
"""Records and bytes of text that are learned from, and bytes times classes: what the time goes by."""
PENALTY = 2.0
"""The weight of half the squared norm of the weights beside the summed loss. From 1 to 4 accuracy hardly changes."""
ITERATIONS, TOLERANCE = 30, 0.003
"""The most steps of Newton's method, and how much smaller the gradient is at the end."""
MOST_DIRECTIONS, SOLVED, LINE_STEPS = 12, 0.2, 6
"""The most conjugate gradients of each, how much smaller the residual is then, and steps to find how far to go."""
TRY_PRETRAINED = "fine-tune a pretrained model (--from)"


@final
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


def one_key(documents: Keys, keys: Keys) -> Keys:
    """Return a number for each pair of document and key, in the order of the pairs. Keys are below 2³¹."""
    return documents << 31 | keys


def unique_pairs(documents: Keys, keys: Keys) -> tuple[Keys, Keys]:
    """Return the different pairs of document and key, in order."""
    pairs = np.sort(one_key(documents, keys))  # numpy's own `unique` hashes whole numbers: such ones take minutes
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return pairs >> 31, pairs & ((1 << 31) - 1)


def class_weights(target: Tensor) -> Tensor:
    """Return a weight for each class: the root of its inverse frequency, scaled so that the mean over records is 1.

    >>> class_weights(torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]])).tolist()
    [0.833..., 1.666...]
    """
    count = target.sum(0)
    weight = count.clamp(min=1).rsqrt()
    return weight * (len(target) / (weight * count).sum())


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


def most_records(records: int, n_bytes: int, classes: int) -> int:
    """Return how many records of a corpus are enough for a linear model: all of a small one.

    >>> most_records(60_000, 4_000_000, 2), most_records(500_000, 40_000_000, 2)
    (60000, 200000)
    """
    cost = max(1.0, n_bytes / MOST_BYTES, n_bytes * classes / MOST_COST)
    return min(MOST_RECORDS, math.ceil(records / cost))
