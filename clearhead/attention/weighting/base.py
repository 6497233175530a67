"""`Weighting`, the base class: it turns a row of scores into a row of weights."""

import inspect
import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from clearhead.attention.parts import HeadShape, Part
from clearhead.attention.similarity import ScaledDot, Scores, Similarity
from clearhead.registry import kind

Amounts = Literal["exponential", "score", "none"]


@kind("weighting")
class Weighting(Part, ABC):
    """Base class: turns scores into weights, row by row. A row's weights depend on its own scores only."""

    form: ClassVar[str] = "rows"
    """Kind by which kernels are chosen: `softmax`, `argmax`, `kernelized`, or `rows` for another function of a row."""
    sums_to_one: ClassVar[bool] = True
    """True if the weights of every row that may attend to something sum to one. A part of your own whose rows do not,
    such as softmax with a 1 added to the sum of exponentials, says `sums_to_one = False`."""
    blocked: ClassVar[float] = float("-inf")
    """Value of `masked` where the query may not attend."""

    temperature: float = 1.0
    """Divisor of the scores, in the weightings that have one."""

    def build(self, shape: HeadShape) -> "Weighting":
        """Return the part with new learned values, for one layer; itself if it has none."""
        return self

    @abstractmethod
    def weigh(self, masked: Scores, allowed: Tensor) -> Scores:
        """Return the weights of each row, 0 where not `allowed`; a row with nothing allowed is 0 throughout."""

    @property
    def summary(self) -> str:
        """First sentence of its class's docstring, without a full stop: what it does."""
        text = " ".join((inspect.getdoc(type(self)) or "").split()).replace("`", "")
        return re.split(r"[.;](?:\s|$)", text, maxsplit=1)[0]

    @property
    def amounts(self) -> Amounts:
        """Say what each weight is a share of: the row's sum of its `exponential` or of its `score`; else `none`."""
        return "exponential" if self.form == "softmax" else "none"

    @property
    def page_arithmetic(self) -> dict[str, Any] | None:
        """Return how a saved page, which has no Python, computes the weights of a row again.

        It is a kind that web/src/lib/arithmetic.ts knows, with its numbers. None: the page is given the weights.
        """
        return None

    @property
    def similarity(self) -> Similarity:
        """Similarity used where none is named."""
        return ScaledDot()


def softmax_rows(scores: Tensor, allowed: Tensor) -> Tensor:
    """Return softmax in which a row with nothing allowed is zero, forward and backward.

    Args:
        scores: Rows of scores.
        allowed: True where a query may attend.

    Returns:
        The weights.

    >>> import torch, clearhead as ch
    >>> ch.weighting.softmax_rows(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]])).tolist()
    [[0.5, 0.5], [0.0, 0.0]]
    """
    empty = ~allowed.any(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0), -1).masked_fill(empty, 0)
