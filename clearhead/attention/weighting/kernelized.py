"""Kernelized (linear) attention: weights in proportion to φ(q)·φ(k), so that keys and values can be summed first."""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from clearhead.attention.similarity import Scores, Similarity
from clearhead.attention.weighting.base import Amounts, Weighting, softmax_rows
from clearhead.attention.weighting.features import FEATURES, FeatureDot, Features, LogFeatureDot, LogFeatures
from clearhead.errors import OptionError


@final
@dataclass(frozen=True)
class Kernelized(Weighting):
    """Linear attention: weight = φ(q)·φ(k). It takes no similarity: φ takes its place. A row whose sum is 0 gets zeros.

    Random features are exponentials of any size. If normalised, their score is log φ(q)·φ(k) and the weights are its
    softmax, which is the same and never overflows; otherwise it is φ(q)·φ(k) as for the others.

    Args:
        features: A name (elu, relu, softmax, random) or a part.
        normalised: Divide by the row's sum.

    Raises:
        OptionError: If there is no such feature map.

    >>> import clearhead as ch
    >>> layer = ch.Attention(16, heads=4, weighting=ch.weighting.Kernelized("relu"))
    """

    form: ClassVar[str] = "kernelized"
    words: ClassVar[str] = "kernelized (linear) attention"
    features: str | Features = "elu"
    normalised: bool = True

    def __post_init__(self) -> None:
        valid = self.features in FEATURES if isinstance(self.features, str) else isinstance(self.features, Features)
        if not valid:
            raise OptionError(
                f"Kernelized: features must be one of {', '.join(FEATURES)} or a part; came {self.features!r}"
            )

    @property
    def sums_to_one(self) -> bool:  # type: ignore[override]
        """Return whether the weights of a row sum to one: only if they are normalised."""
        return self.normalised

    @property
    def part(self) -> Features:
        """Feature map itself, if it was given by name."""
        return FEATURES[self.features] if isinstance(self.features, str) else self.features

    @property
    def amounts(self) -> Amounts:
        return "exponential" if self.normalised and isinstance(self.part, LogFeatures) else "score"

    @property
    def blocked(self) -> float:  # type: ignore[override]
        """Value of `masked` where the query may not attend: 0 where weights are shares of scores."""
        return 0.0 if self.amounts == "score" else float("-inf")

    @property
    def similarity(self) -> Similarity:
        if isinstance(self.features, str) and not torch.compiler.is_compiling():
            return named_similarity(self.features, self.normalised)
        return feature_similarity(self.part, self.normalised)

    @property
    def page_arithmetic(self) -> dict[str, Any]:
        if self.amounts == "exponential":
            return {"kind": "softmax", "temperature": self.temperature}
        return {"kind": "kernelized", "normalised": self.normalised}

    def weigh(self, masked: Scores, allowed: Tensor) -> Scores:
        if self.amounts == "exponential":
            return softmax_rows(masked, allowed)
        return self.divide(masked, masked.sum(-1, keepdim=True))

    def divide(self, amount: Tensor, total: Tensor) -> Tensor:
        """Divide each row by its total; zeros where the total is 0. Unnormalised, return the amount as it is."""
        if not self.normalised:
            return amount
        nothing = total == 0
        return (amount / torch.where(nothing, torch.ones_like(total), total)).masked_fill(nothing, 0)


def feature_similarity(part: Features, normalised: bool) -> Similarity:
    return LogFeatureDot(part) if normalised and isinstance(part, LogFeatures) else FeatureDot(part)


@functools.cache
def named_similarity(features: str, normalised: bool) -> Similarity:
    """Return the similarity of features given by name, made once: `attend` asks for it in every call."""
    return feature_similarity(FEATURES[features], normalised)
