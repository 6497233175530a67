"""Sparsemax: the nearest distribution to the scores, with exact zeros (Martins and Astudillo, 2016)."""

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from clearhead.attention.similarity import Scores
from clearhead.attention.weighting.base import Weighting


@final
@dataclass(frozen=True)
class Sparsemax(Weighting):
    """max(score - τ, 0), with τ such that the row sums to one.

    >>> import torch, clearhead as ch
    >>> ch.explain(3 * torch.eye(2), torch.eye(2), torch.eye(2), weighting=ch.weighting.Sparsemax()).weight.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    @property
    def page_arithmetic(self) -> dict[str, Any]:
        return {"kind": "sparsemax"}

    def weigh(self, masked: Scores, allowed: Tensor) -> Scores:
        empty = ~allowed.any(-1, keepdim=True)
        scores = masked.masked_fill(empty, 0)
        scores = (
            scores - scores.amax(-1, keepdim=True).detach()
        )  # the weights do not change, and large scores keep their digits
        ranked = scores.sort(-1, descending=True).values
        rank = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
        finite = ranked.masked_fill(ranked.isinf(), 0)
        inside = (1 + rank * ranked > finite.cumsum(-1)) & ~ranked.isinf()
        size = inside.sum(-1, keepdim=True)
        threshold = (finite.masked_fill(~inside, 0).sum(-1, keepdim=True) - 1) / size
        return (scores - threshold).clamp(min=0).masked_fill(empty, 0)
