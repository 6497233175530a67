"""A linear support vector machine on sparse features: the line that a Transformer has to beat, trained in seconds.

`clearhead/training/wide.py` makes the features, n-grams of the model's own tokens, and keeps the weights as the wide
part of a classifier.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Keys = NDArray[np.int64]
MOST_RECORDS, MOST_BYTES, MOST_COST = 200_000, 20_000_000, 400_000_000
"""Records and bytes of text that are learned from, and bytes times classes: what the time goes by."""
COST_A_MINUTE = 80_000_000
"""Bytes times classes for each minute of a budget: half of the records, fitted to the end, are better than all of them
fitted in part (47,000 descriptions with 58 labels in 3 s: 71.5 and 68.4 %)."""
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


def unique_pairs(documents: Keys, keys: Keys) -> tuple[Keys, Keys, Keys]:
    """Return the different pairs of document and key, and how often each occurs."""
    if not len(keys):
        return documents, keys, keys
    order = np.lexsort((keys, documents))
    documents, keys = documents[order], keys[order]
    new = np.flatnonzero(np.r_[True, (documents[1:] != documents[:-1]) | (keys[1:] != keys[:-1])])
    return documents[new], keys[new], np.diff(np.r_[new, len(keys)])


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
    x: DesignMatrix, target: Tensor, class_weight: Tensor, penalty: float = PENALTY, *, seconds: float = math.inf
) -> Tensor:
    """Return the weights `(width + 1, classes)` of a linear support vector machine, the bias in the last row.

    `target` has a row for each record: 1 for its class, else 0. Each class is told from all others: the weights
    minimise the mean squared hinge loss, in which the records of a class weigh as `class_weight` says, plus
    penalty / (2 n) times the squared norm of all weights but the bias. They are found by Newton's method for all
    classes at once, each with a step length of its own; after some `seconds` they are what they are by then.
    """
    end, n, sign = time.perf_counter() + seconds, len(target), target * 2 - 1
    across = Transposed(x.records.transposed(), x.letters.transposed(), x.n_ngrams)
    share, decay = torch.where(target > 0, class_weight, 1.0) / n, torch.full((x.width + 1, 1), penalty / n)
    decay[-1] = 0
    weights = torch.zeros(x.width + 1, target.shape[1])
    weights[-1] = sign.mean(0)  # most classes are rare: from zero, the first steps would only find that out
    logits, first = weights[-1].expand_as(target).clone(), None
    for _ in range(ITERATIONS):
        short = (1 - sign * logits).clamp(min=0)
        gradient = across.times(-2 * share * sign * short) + decay * weights
        size = gradient.norm(dim=0)
        first = size if first is None else first
        if (size <= TOLERANCE * first).all() or time.perf_counter() > end:
            break
        direction, along = newton_direction(x, across, 2 * share * (short > 0), decay, gradient, end=end)
        length = step_length(sign * logits, sign * along, share, decay=decay, weights=weights, direction=direction)
        weights += length * direction
        logits += length * along
    return weights


def newton_direction(
    x: DesignMatrix, across: Transposed, curvature: Tensor, decay: Tensor, gradient: Tensor, *, end: float
) -> tuple[Tensor, Tensor]:
    """Return about where the quadratic that fits the loss here is least, and how the logits change on the way there.

    That is found by conjugate gradients, for each class apart.
    """
    direction, along = torch.zeros_like(gradient), torch.zeros_like(curvature)
    residual, search = -gradient, -gradient
    squared = residual.square().sum(0)
    enough = squared * SOLVED**2
    for _ in range(MOST_DIRECTIONS):
        change = x.logits(search)
        bent = across.times(curvature * change) + decay * search
        length = squared / (search * bent).sum(0).clamp(min=1e-30)
        direction += length * search
        along += length * change
        residual = residual - length * bent
        before, squared = squared, residual.square().sum(0)
        if (squared <= enough).all() or time.perf_counter() > end:
            break
        search = residual + squared / before.clamp(min=1e-30) * search
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


def records_apart(records: int, n_bytes: int, classes: int, minutes: float | None = None) -> int:
    """Return n where one record in n of a corpus is enough for a linear model: all of a small one. In a budget of some
    minutes, as many as can be fitted in a few seconds of each.

    >>> records_apart(60_000, 4_000_000, 2), records_apart(500_000, 40_000_000, 2)
    (1, 3)
    """
    return max(
        1,
        math.ceil(records / MOST_RECORDS),
        math.ceil(n_bytes / MOST_BYTES),
        math.ceil(n_bytes * classes / MOST_COST),
        1 if minutes is None else math.ceil(n_bytes * classes / (COST_A_MINUTE * minutes)),
    )
