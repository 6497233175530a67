"""Averaging: a second copy of the weights that follows those in training, and scores better than any of them.

`Ema` is an exponential moving average over every step; `Last` is the plain mean over the end of the training, one
snapshot every few steps: what averaging the last checkpoints gives, without keeping them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from clearhead.code_repr import CodeRepr
from clearhead.errors import OptionError
from clearhead.registry import kind, options, register


@kind("averaging")
class Averaging(CodeRepr, ABC):
    """A way to move the averaged weights towards the trained ones after a step."""

    @abstractmethod
    def ema_weight(self, step: int, total: int) -> float:
        """Return how far the average moves: 0 leaves it alone, 1 makes it the weights. `step` counts from 1."""


@final
@dataclass(frozen=True)
class Unaveraged(Averaging):
    """No averaging: the weights themselves."""

    def ema_weight(self, step: int, total: int) -> float:
        return 1.0


@final
@dataclass(frozen=True)
class Ema(Averaging):
    """An exponential moving average. It forgets faster at first: after t steps it covers at least t / 9 of them."""

    decay: float = 0.999

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise OptionError(f"Ema: decay must lie from 0 to 1, 1 left out; came {self.decay}")

    def ema_weight(self, step: int, total: int) -> float:
        return 1 - min(self.decay, step / (step + 9))


@final
@dataclass(frozen=True)
class Last(Averaging):
    """The mean of a snapshot every `every` steps over the last `share` of the training; before it, the weights."""

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
