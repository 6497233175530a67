"""Averaging: weights that follow the trained ones and are better than any of them, to evaluate and to use.

`Ema` is an exponential average of every step; `Last` is the plain mean over the end of the training, one snapshot every
few steps: what averaging the last checkpoints gives, without keeping them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from clearhead.errors import OptionError
from clearhead.registry import kind, options, register

__all__ = ["AVERAGES", "Averaging", "Ema", "Last", "Unaveraged"]


@kind("averaging")
class Averaging(ABC):
    """How the average moves towards the weights after a step."""

    @abstractmethod
    def ema_weight(self, step: int, total: int) -> float:
        """How far: 0 leaves the average alone, 1 makes it the weights. `step` counts from 1."""


@final
@dataclass(frozen=True)
class Unaveraged(Averaging):
    """The weights themselves."""

    def ema_weight(self, step: int, total: int) -> float:
        return 1.0


@final
@dataclass(frozen=True)
class Ema(Averaging):
    """An exponential average. It forgets faster at the start: after t steps it covers a ninth of them at least."""

    decay: float = 0.999

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise OptionError(f"Ema: decay must lie from 0 to 1, 1 left out; came {self.decay}")

    def ema_weight(self, step: int, total: int) -> float:
        return 1 - min(self.decay, step / (step + 9))


@final
@dataclass(frozen=True)
class Last(Averaging):
    """The mean of one snapshot every `every` steps over the last `share` of the training; before it, the weights."""

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
