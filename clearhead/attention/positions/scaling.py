"""Scaling of rotary frequencies, by which a model trained on short texts reads longer ones. One class a kind."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from clearhead.calls import CodeRepr
from clearhead.errors import OptionError
from clearhead.registry import kind, register


@kind("rotary scaling")
class RotaryScaling(CodeRepr, ABC):
    """Base class: change how fast the pairs of a rotary position turn.

    >>> import clearhead as ch
    >>> issubclass(ch.positions.YaRNScaling, ch.positions.RotaryScaling)
    True
    """

    @abstractmethod
    def scale(self, frequency: Tensor, base: float) -> Tensor:
        """Return the frequencies, one a pair and highest first; they were base^(-2i/width)."""


@final
@register
@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    """Every frequency divided by `factor` (Chen et al., 2023).

    Args:
        factor: Position p turns as p / factor did.

    >>> import clearhead as ch
    >>> position = ch.positions.Rotary(scaling=ch.positions.LinearScaling(4.0))
    """

    factor: float

    def __post_init__(self) -> None:
        check_positive(self, "factor")

    def scale(self, frequency: Tensor, base: float) -> Tensor:
        return frequency / self.factor


@final
@register
@dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    """Divide only the slow frequencies, as Llama 3.1 does.

    Args:
        factor: Divisor of the slow frequencies.
        low: Pairs that turn fewer times than this within the `original` context are divided.
        high: Pairs that turn more times than this stay; in between the two are mixed.
        original: Context length of the pre-training.

    Raises:
        OptionError: If a number is out of range.

    >>> import clearhead as ch
    >>> scaling = ch.positions.Llama3Scaling(8.0, low=1.0, high=4.0, original=8192)
    """

    factor: float
    low: float
    high: float
    original: int

    def __post_init__(self) -> None:
        check_positive(self, "factor", "low", "high", "original")
        if not self.low < self.high:
            raise OptionError(f"Llama3Scaling: low must be less than high; came {self.low} and {self.high}")

    def scale(self, frequency: Tensor, base: float) -> Tensor:
        turns = self.original * frequency / (2 * math.pi)
        unscaled = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequency * (unscaled + (1 - unscaled) / self.factor)


@final
@register
@dataclass(frozen=True)
class YaRNScaling(RotaryScaling):
    """Divide the slow frequencies, along a straight line over the pairs (Peng et al., 2023).

    YaRN also makes the scores larger: that is the temperature of the weighting, `Softmax(temperature=...)`.

    Args:
        factor: Divisor of the slow frequencies.
        original: Context length of the pre-training.
        fast: The line begins at the pair that turns this often within the original context.
        slow: It ends at the pair that turns this often.
        whole: Round both ends outwards to an integer.

    >>> import clearhead as ch
    >>> scaling = ch.positions.YaRNScaling(4.0, original=2048)
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True

    def __post_init__(self) -> None:
        check_positive(self, "factor", "original", "fast", "slow")

    def scale(self, frequency: Tensor, base: float) -> Tensor:
        if base == 1:
            raise OptionError("YaRNScaling: with base = 1 all pairs turn alike, so none of them turns slowly")
        width = 2 * len(frequency)
        first, last = (
            width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.fast, self.slow)
        )
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        pairs = torch.arange(len(frequency), device=frequency.device, dtype=frequency.dtype)
        divided = ((pairs - first) / (last - first or 0.001)).clamp(0, 1)  # 0.001: a line must have a length
        return frequency * (1 - divided + divided / self.factor)


def check_positive(part: RotaryScaling, *names: str) -> None:
    for name in names:
        number = getattr(part, name)
        if not 0 < number < math.inf:
            raise OptionError(f"{type(part).__name__}: {name} must be above 0; came {number}")
