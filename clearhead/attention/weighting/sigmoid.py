"""Sigmoid: each weight by itself, with no competition in the row."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from clearhead.attention.similarity import Scores
from clearhead.attention.weighting.base import Weighting


@final
@dataclass(frozen=True)
class Sigmoid(Weighting):
    """sigmoid(score + offset), for each score alone.

    Args:
        offset: If None, minus the logarithm of how many keys the query may attend, so that the weights of a row of
            scores near 0 sum to about one, whatever its length.

    >>> import torch, clearhead as ch
    >>> zero = torch.zeros(1, 2)
    >>> ch.explain(zero, zero, zero, weighting=ch.weighting.Sigmoid(0.0)).weight.item()
    0.5
    """

    sums_to_one: ClassVar[bool] = False
    offset: float | None = None

    @property
    def page_arithmetic(self) -> dict[str, Any]:
        return {"kind": "sigmoid", "offset": self.offset}

    def weigh(self, masked: Scores, allowed: Tensor) -> Scores:
        return torch.sigmoid(masked + (self.fit_offset(masked, allowed) if self.offset is None else self.offset))

    def fit_offset(self, masked: Tensor, allowed: Tensor) -> Tensor:
        count = allowed.expand(masked.shape).sum(-1, keepdim=True).clamp(min=1)
        return -torch.log(count.to(masked.dtype))
