"""Argmax (hard) attention: all the weight on the best key, or shared among those that tie."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final, get_args

import torch
from torch import Tensor

from clearhead.attention.similarity import Scores
from clearhead.attention.weighting.base import Weighting, softmax_rows
from clearhead.errors import OptionError

__all__ = ["Argmax"]

Ties = Literal["first", "last", "average"]
Gradient = Literal["straight-through", "none"]


@final
@dataclass(frozen=True)
class Argmax(Weighting):
    """One winner a row. Scores within `tolerance` x max(1, |maximum|) of the row's maximum are tied.

    Equal keys do not give equal bits, so a tie needs a tolerance; it is the same on every kernel and with a cache.
    `gradient`: `straight-through` passes back softmax's gradient, `none` lets only the values learn.
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

    def weigh(self, masked: Scores, allowed: Tensor) -> Scores:
        if self.gradient == "straight-through":
            return StraightThrough.apply(masked, allowed, self)
        return self.choose(masked.detach(), allowed)

    def choose(self, masked: Tensor, allowed: Tensor) -> Tensor:
        """Exactly one-hot, or exactly averaged over the ties."""
        best = masked.amax(-1, keepdim=True)
        tied = (masked >= best - self.tolerance * best.abs().clamp(min=1)) & allowed
        if self.ties == "average":
            count = tied.sum(-1, keepdim=True).clamp(min=1)
            return tied.to(masked.dtype) / count
        order = tied.flip(-1) if self.ties == "last" else tied
        winner = order & (order.cumsum(-1) == 1)
        return (winner.flip(-1) if self.ties == "last" else winner).to(masked.dtype)


class StraightThrough(torch.autograd.Function):
    """Forward the choice; backward softmax's gradient at the same scores."""

    @staticmethod
    def forward(ctx: Any, masked: Tensor, allowed: Tensor, choice: Argmax) -> Tensor:
        ctx.save_for_backward(masked, allowed)
        return choice.choose(masked, allowed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        weight = softmax_rows(*ctx.saved_tensors)
        return weight * (grad - (weight * grad).sum(-1, keepdim=True)), None, None
