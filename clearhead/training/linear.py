"""A linear support vector machine on sparse features: the line that a Transformer has to beat, trained in seconds.

`clearhead/training/wide.py` makes the features, n-grams of the model's own tokens, and keeps the weights as the wide
part of a classifier.
"""

import math
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
COST_A_MINUTE = 200_000_000
"""Bytes times classes for each minute of a budget: some four seconds of it on a quiet machine."""
PENALTY = 2.0
"""The weight of half the squared norm of the weights beside the summed loss. From 1 to 4 accuracy hardly changes."""
ITERATIONS = 60
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

    def logits(self, weights: Tensor) -> Tensor:
        """Return the product with all rows of the weights but the last, plus the last."""
        return self.times(weights[:-1]) + weights[-1]

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


def fit_linear(x: Sparse, target: Tensor, class_weight: Tensor, penalty: float = PENALTY) -> Tensor:
    """Return the weights `(width + 1, classes)` of a linear support vector machine, the bias in the last row.

    `target` has a row for each record: 1 for its class, else 0. Each class is told from all others: the weights
    minimise the mean squared hinge loss, in which the records of a class weigh as `class_weight` says, plus
    penalty / (2 n) times the squared norm of all weights but the bias.
    """
    across, n, sign = x.transposed(), len(target), target * 2 - 1
    share = torch.where(target > 0, class_weight, 1.0) / n
    weights = torch.zeros(x.width + 1, target.shape[1])
    weights[-1] = sign.mean(0)  # most classes are rare: from zero, the first steps would only find that out
    solver = torch.optim.LBFGS(
        [weights], max_iter=ITERATIONS, history_size=8, tolerance_change=1e-6, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        short = (1 - sign * x.logits(weights)).clamp(min=0)
        slope = -2 * share * sign * short
        decayed = weights[:-1] * (penalty / n)
        weights.grad = torch.cat([across.times(slope) + decayed, slope.sum(0, keepdim=True)])
        return (share * short.square()).sum() + (decayed * weights[:-1]).sum() / 2

    with torch.no_grad():
        solver.step(objective)  # pyright: ignore[reportArgumentType] - a closure that returns a tensor is what it takes
    return weights


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
