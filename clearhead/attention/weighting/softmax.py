"""Softmax: each weight is the score's exponential over the row's sum of them."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor

from clearhead.attention.similarity import Scores
from clearhead.attention.weighting.base import Weighting, softmax_rows
from clearhead.errors import OptionError


@final
@dataclass(frozen=True)
class Softmax(Weighting):
    """softmax(score / temperature).

    Args:
        temperature: Divisor of the scores.

    Raises:
        OptionError: If it is not positive.

    >>> import torch, clearhead as ch
    >>> weight = ch.explain(torch.eye(2), torch.eye(2), torch.eye(2), weighting=ch.weighting.Softmax(0.1)).weight
    >>> weight.round(decimals=2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    form: ClassVar[str] = "softmax"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise OptionError(
                f"Softmax: temperature must be above 0 and finite; came {self.temperature}. For 0 use Argmax()"
            )

    @property
    def page_arithmetic(self) -> dict[str, Any]:
        return {"kind": "softmax", "temperature": self.temperature}

    def weigh(self, masked: Scores, allowed: Tensor) -> Scores:
        return softmax_rows(masked / self.temperature, allowed)
