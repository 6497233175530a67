"""What follows from the step alone: the learning rate as a share of its peak, and how far averaged weights move.

>>> [round(CosineDecay(warmup=10).at(step, total=100), 2) for step in (0, 9, 55, 100)]
[0.1, 1.0, 0.55, 0.1]

Averaged weights are a second copy that follows those in training, and scores better than any of them. `Ema` is an
exponential moving average over every step; `Last` is the plain mean over the end of the training, one snapshot every
few steps: what averaging the last checkpoints gives, without keeping them.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from clearhead.calls import CodeRepr
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
        """Raise if a share is not between 0 and 1."""
        if not 0 <= value <= 1:
            raise OptionError(f"{type(self).__name__}: {name} is a share, from 0 to 1; came {value}")


@final
@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """Stays at the peak.

    Args:
        warmup: Steps of linear warm-up.

    >>> import clearhead as ch
    >>> schedule = ch.training.Constant(warmup=100)
    """

    def after(self, step: int, total: int) -> float:
        return 1.0


@final
@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Schedule):
    """Fall with the square root of the step, as in the paper; it does not depend on the number of steps.

    Args:
        warmup: Steps of linear warm-up.

    >>> import clearhead as ch
    >>> schedule = ch.training.InverseSqrt(warmup=4000)
    """

    def after(self, step: int, total: int) -> float:
        return math.sqrt(max(self.warmup, 1) / (step + 1))


@final
@dataclass(frozen=True, kw_only=True)
class CosineDecay(Schedule):
    """Fall along half a cosine.

    Args:
        warmup: Steps of linear warm-up.
        floor: Share of the peak at the end.

    >>> import clearhead as ch
    >>> schedule = ch.training.CosineDecay(warmup=100, floor=0.0)
    """

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
    """Stay at the peak, and fall linearly over the last steps.

    Args:
        warmup: Steps of linear warm-up. If it reaches into the decay, the fall takes the steps after it.
        decay: Share of the steps in which the rate falls.
        floor: Share of the peak at the end.

    >>> import clearhead as ch
    >>> schedule = ch.training.WarmupStableDecay(warmup=100, decay=0.1)
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


@kind("averaging")
class Averaging(CodeRepr, ABC):
    """A way to move the averaged weights towards the trained ones after a step."""

    @abstractmethod
    def ema_weight(self, step: int, total: int) -> float:
        """Return how far the average moves: 0 leaves it alone, 1 makes it the weights. `step` counts from 1."""


@final
@dataclass(frozen=True)
class Unaveraged(Averaging):
    """No averaging: the weights themselves.

    >>> import clearhead as ch
    >>> averaging = ch.training.Unaveraged()
    """

    def ema_weight(self, step: int, total: int) -> float:
        return 1.0


@final
@dataclass(frozen=True)
class Ema(Averaging):
    """An exponential moving average. It forgets faster at first: after t steps it covers at least t / 9 of them.

    Args:
        decay: Weight of the old average.

    Raises:
        OptionError: If it is not between 0 and 1.

    >>> import clearhead as ch
    >>> averaging = ch.training.Ema(0.99)
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise OptionError(f"Ema: decay must lie from 0 to 1, 1 left out; came {self.decay}")

    def ema_weight(self, step: int, total: int) -> float:
        return 1 - min(self.decay, step / (step + 9))


@final
@dataclass(frozen=True)
class Last(Averaging):
    """The mean of snapshots over the last part of training; before it, the weights.

    Args:
        share: Share of the training that is averaged.
        every: Steps between snapshots.

    Raises:
        OptionError: If a number is out of range.

    >>> import clearhead as ch
    >>> averaging = ch.training.Last(share=0.1)
    """

    share: float = 0.2
    every: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.every < 1:
            raise OptionError(f"Last: share must lie in (0, 1] and every be 1 or more; came {self}")

    def ema_weight(self, step: int, total: int) -> float:
        since = step - int((1 - self.share) * total)
        if since <= 0:
            return 1.0
        return 1 / (1 + since // self.every) if since % self.every == 0 else 0.0


register(Unaveraged, option="none")
register(Ema, option="ema")
register(Last, option="last")

AVERAGES: dict[str, Averaging] = {name: made() for name, made in options("averaging").items()}
"""Every way by name."""
