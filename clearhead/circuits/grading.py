"""Grades of a ranking: average precision first, then the area under the ROC curve; ties count as any order would."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.calls import public


class Interval(NamedTuple):
    """A mean over programs, and its 95 % interval by bootstrap."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@public
def average_precision(scores: Float[Tensor, "edge"], truth: Bool[Tensor, "edge"]) -> float:
    """Return the mean precision at the true edges, from the highest score down; for ties, the mean over random orders.

    Args:
        scores: A score for each edge.
        truth: True for the true edges.

    Returns:
        A number from 0 to 1.

    >>> import torch
    >>> average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([True, False, True]))
    0.8333333333333333
    >>> average_precision(torch.zeros(4), torch.tensor([True, False, False, False]))    # (1 + 1/2 + 1/3 + 1/4) / 4
    0.5208333333333333
    """
    seen = found = 0
    total = 0.0
    for size, true in tied_groups(scores, truth):
        for place in range(1, size + 1):
            before = 0.0 if size == 1 else (place - 1) * (true - 1) / (size - 1)
            total += true / size * (found + 1 + before) / (seen + place)
        seen, found = seen + size, found + true
    return total / found


@public
def roc_area(scores: Float[Tensor, "edge"], truth: Bool[Tensor, "edge"]) -> float:
    """Return how often a true edge is ranked above a false one; a tie counts a half.

    >>> import torch
    >>> roc_area(torch.tensor([3.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, False, False]))
    0.875
    """
    wins = below = 0.0
    n_true = int(truth.sum())
    for size, true in reversed(tied_groups(scores, truth)):
        wins += true * (below + (size - true) / 2)
        below += size - true
    return wins / (n_true * (len(truth) - n_true))


def tied_groups(scores: Tensor, truth: Tensor) -> list[tuple[int, int]]:
    """Return the size of each group of equal scores, from the highest down, and how many of it are true.

    Scores closer than a billionth of the largest are equal: such differences are rounding.
    """
    scores = scores.double()
    rounded = (scores / scores.abs().max().clamp(min=1e-300) * 1e9).round()
    _, group = torch.unique(rounded, return_inverse=True)
    sizes = torch.bincount(group)
    true = torch.bincount(group, weights=truth.double())
    return [(int(size), int(hits)) for size, hits in zip(sizes.flip(0), true.flip(0), strict=True)]


def bootstrap(values: Sequence[float], *, draws: int = 2000, seed: int = 0) -> Interval:
    """Return the mean of values and its 95 % interval, by drawing programs anew."""
    tensor = torch.tensor(values, dtype=torch.float64)
    rows = torch.randint(len(tensor), (draws, len(tensor)), generator=torch.Generator().manual_seed(seed))
    means = tensor[rows].mean(1)
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(float(tensor.mean()), low, high)


def rank_by_mean(scores: Float[Tensor, "pair edge"]) -> Float[Tensor, "edge"]:
    """Return the size of the mean over pairs: the field's usual ranking."""
    return scores.mean(0).abs()


def rank_by_size(scores: Float[Tensor, "pair edge"]) -> Float[Tensor, "edge"]:
    """Return the mean of the sizes, in which changes of different pairs do not cancel."""
    return scores.abs().mean(0)


def rank_by_sign(scores: Float[Tensor, "pair edge"]) -> Float[Tensor, "edge"]:
    """Return by how much patching raises the metric: the ranking if the sign is taken the wrong way."""
    return scores.mean(0)


RANKINGS: dict[str, Callable[[Tensor], Tensor]] = {"mean": rank_by_mean, "size": rank_by_size, "sign": rank_by_sign}
