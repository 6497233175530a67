"""Schedules: the learning rate at each step, as a share of its peak.

>>> [round(CosineDecay(warmup=10).at(step, total=100), 2) for step in (0, 9, 55, 100)]
[0.1, 1.0, 0.55, 0.1]
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from clearhead.code_repr import CodeRepr
from clearhead.errors import OptionError
from clearhead.options import check_declared, option
from clearhead.registry import kind, options, register


@kind("schedule")
@dataclass(frozen=True, kw_only=True)
class Schedule(CodeRepr, ABC):
    """Rises to the peak over `warmup` steps, then goes its own way."""

    warmup: int = option(0, "Warm-up steps.", takes="STEPS", least=0)

    def __post_init__(self) -> None:
        check_declared(self)

    def at(self, step: int, *, total: int) -> float:
        """Return the share of the peak at this step, counted from 0, of `total`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return self.after(step, max(total, 1))

    @abstractmethod
    def after(self, step: int, total: int) -> float:
        """Return the share after the warm-up."""

    def check_share(self, name: str, value: float) -> None:
        """Raise where a share is not between 0 and 1."""
        if not 0 <= value <= 1:
            raise OptionError(f"{type(self).__name__}: {name} is a share, from 0 to 1; came {value}")


@final
@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """Stays at the peak."""

    def after(self, step: int, total: int) -> float:
        return 1.0


@final
@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Schedule):
    """Falls with the root of the step, as in the paper; it knows no end."""

    def after(self, step: int, total: int) -> float:
        return math.sqrt(max(self.warmup, 1) / (step + 1))


@final
@dataclass(frozen=True, kw_only=True)
class CosineDecay(Schedule):
    """Falls along half a cosine to `floor` of the peak at the end."""

    floor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_share("floor", self.floor)

    def after(self, step: int, total: int) -> float:
        progress = min(1.0, (step - self.warmup) / max(total - self.warmup, 1))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2


@final
@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay(Schedule):
    """Stays at the peak, and falls in a line to `floor` over the last `decay` share of the steps.

    A warm-up that reaches into that share leaves the steps after it to fall in.
    """

    decay: float = 0.2
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_share("decay", self.decay)
        self.check_share("floor", self.floor)

    def after(self, step: int, total: int) -> float:
        remaining = (total - step) / max(min(self.decay * total, total - self.warmup), 1)
        return self.floor + (1 - self.floor) * min(1.0, max(0.0, remaining))


register(Constant, option="constant")
register(CosineDecay, option="cosine")
register(InverseSqrt, option="inverse-sqrt")
register(WarmupStableDecay, option="wsd")

SCHEDULES: dict[str, type[Schedule]] = options("schedule")
"""Every schedule by name."""
