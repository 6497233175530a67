"""What a weighting is: a row of scores becomes a row of weights."""

import inspect
import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from clearhead.attention.parts import HeadShape, Part
from clearhead.attention.similarity import ScaledDot, Scores, Similarity

__all__ = ["Amounts", "Weighting", "softmax_rows"]

Amounts = Literal["exponential", "score", "none"]


class Weighting(Part, ABC):
    """Weights from scores, one row at a time: what a row gets depends on nothing outside it."""

    form: ClassVar[str] = "rows"
    """What kernels choose by: `softmax`, `argmax`, `kernelized`, or `rows` for any other function of a row."""
    sums_to_one: ClassVar[bool] = True
    blocked: ClassVar[float] = float("-inf")
    """What `masked` holds where the query may not attend."""

    temperature: float = 1.0
    """What the scores are divided by, in the weightings that have one."""

    def build(self, shape: HeadShape) -> "Weighting":
        """The part with values of its own, for one layer; itself if it has none."""
        return self

    @abstractmethod
    def weigh(self, masked: Scores, allowed: Tensor) -> Scores:
        """The weights of each row, 0 where not `allowed`; a row with nothing allowed is 0 throughout."""

    @property
    def summary(self) -> str:
        """What it does, in a sentence without a full stop: the first of its class's docstring."""
        said = " ".join((inspect.getdoc(type(self)) or "").split()).replace("`", "")
        return re.split(r"[.;](?:\s|$)", said, maxsplit=1)[0]

    @property
    def amounts(self) -> Amounts:
        """What a weight is a share of the row's sum of: the `exponential` of the score, or the `score`; else `none`."""
        return "exponential" if self.form == "softmax" else "none"

    @property
    def page_arithmetic(self) -> dict[str, Any] | None:
        """Return how a saved page, which has no Python, computes the weights of a row again.

        It is a kind that web/src/lib/arithmetic.ts knows, with its numbers. None: the page is given the weights.
        """
        return None

    @property
    def similarity(self) -> Similarity:
        """The similarity used where none is named."""
        return ScaledDot()


def softmax_rows(scores: Tensor, allowed: Tensor) -> Tensor:
    """Softmax in which a row with nothing allowed is zero, forward and backward."""
    empty = ~allowed.any(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0), -1).masked_fill(empty, 0)
