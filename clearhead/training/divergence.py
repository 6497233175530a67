"""Watch for divergence: notice a training loss that grows, before it is NaN."""

from collections import deque
from typing import final

WINDOW = 3
"""The number of log lines that the loss is averaged over."""
GROWN = 10.0
"""How many times its best a loss must be for a warning."""
CALM = 5.0
"""Below how many times its best it must fall before another warning."""
LEAST = 0.01
"""A best loss below this counts as this: ten times nearly nothing is still nearly nothing."""


@final
class LossWatch:
    """A comparison of the training loss, averaged over a few lines of the log, with its best since the warm-up.

    >>> watch = LossWatch(warmup=0)
    >>> [watch.see(step, loss) for step, loss in enumerate([0.5, 0.5, 0.5, 9.0, 9.0], start=1)]
    [None, None, None, None, 12.333333333333334]
    """

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.best: float | None = None
        self.is_high = False

    def see(self, step: int, loss: float) -> float | None:
        """Take the loss of a line; return how many times its best it is where it has just grown too high."""
        if step <= self.warmup:
            return None
        self.recent.append(loss)
        if len(self.recent) < WINDOW:
            return None
        mean = sum(self.recent) / WINDOW
        self.best = mean if self.best is None else min(self.best, mean)
        times = mean / max(self.best, LEAST)
        if times < CALM:
            self.is_high = False
        if times < GROWN or self.is_high:
            return None
        self.is_high = True
        return times
