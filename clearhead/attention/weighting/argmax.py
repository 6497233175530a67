"""Argmax (hard) attention: all the weight on the best key, or shared among those that tie."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final, get_args

import torch
from torch import Tensor

from clearhead.attention.similarity import Scores
from clearhead.attention.weighting.base import Weighting, softmax_rows
from clearhead.errors import OptionError

Ties = Literal["first", "last", "average"]
Gradient = Literal["straight-through", "none"]
SUMMARIES: dict[Ties, str] = {
    "first": "All the weight of a row on its best key, the first of them if several tie",
    "last": "All the weight of a row on its best key, the last of them if several tie",
    "average": "All the weight of a row on its best keys, in equal parts if several tie",
}


@final
@dataclass(frozen=True)
class Argmax(Weighting):
    """Put all the weight of a row on its best key.

    Equal keys do not give equal bits, so a tie needs a tolerance; it is the same on every kernel and with a cache.

    Args:
        ties: Which of tied keys gets the weight: `first`, `last`, or `average` for all of them.
        gradient: `straight-through` passes back softmax's gradient; with `none` only the values learn.
        tolerance: Scores within tolerance x max(1, |maximum|) of the row's maximum are tied.

    Raises:
        OptionError: If a value is not allowed.

    >>> import torch, clearhead as ch
    >>> ch.explain(torch.eye(2), torch.eye(2), torch.eye(2), weighting=ch.weighting.Argmax()).weight.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    form: ClassVar[str] = "argmax"
    ties: Ties = "first"
    gradient: Gradient = "straight-through"
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("ties", self.ties, get_args(Ties)),
            ("gradient", self.gradient, get_args(Gradient)),
        ):
            if value not in choices:
                raise OptionError(f"Argmax: {name} must be one of {', '.join(choices)}; came {value!r}")
        if not self.tolerance >= 0:
            raise OptionError(f"Argmax: tolerance must be 0 or more; came {self.tolerance}")

    @property
    def summary(self) -> str:
        return SUMMARIES[self.ties]

    @property
    def page_arithmetic(self) -> dict[str, Any]:
        return {"kind": "argmax", "ties": self.ties, "tolerance": self.tolerance}

    def weigh(self, masked: Scores, allowed: Tensor) -> Scores:
        hard = self.choose(masked.detach(), allowed)
        if self.gradient == "none" or not torch.is_grad_enabled():
            return hard
        # In plain operations, which compile, vmap and differentiate to any order. The difference is exactly 0, so the
        # choice goes on as it is; its gradient is softmax's.
        soft = softmax_rows(masked, allowed)
        return hard + (soft - soft.detach())

    def choose(self, masked: Tensor, allowed: Tensor) -> Tensor:
        """Return exactly one-hot weights, or exactly averaged over ties; NaN if the scores of a row are NaN."""
        best = masked.amax(-1, keepdim=True)
        tied = (masked >= best - self.tolerance * best.abs().clamp(min=1)) & allowed
        if self.ties == "average":
            weight = tied.to(masked.dtype) / tied.sum(-1, keepdim=True).clamp(min=1)
        else:
            order = tied.flip(-1) if self.ties == "last" else tied
            winner = order & (order.cumsum(-1) == 1)
            weight = winner.flip(-1) if self.ties == "last" else winner
        return torch.where(best.isnan() & allowed, best, weight.to(masked.dtype))
