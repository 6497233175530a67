"""The budget: what one answer may take, in attention weights that are computed and in bytes that are held meanwhile.

Every question is checked against the same budget before any of it is computed, and what would take more is refused
with a sentence. The longest text that can be traced follows from it.

>>> budget = AnswerBudget(cells=1_000_000, memory=1_000_000)
>>> budget.check(Cost(cells=640_000), "the column of a head", "ask for a row")
>>> budget.check(Cost(cells=2_250_000), "the column of a head", "ask for a row")
Traceback (most recent call last):
clearhead.serve.budget.TooMuchError: the column of a head takes 2,250,000 attention weights, and 1,000,000 are the most
for one answer; ask for a row
>>> budget.most(lambda n: Cost(cells=n * n), 100_000)
1000
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from clearhead.errors import OptionError
from clearhead.system import machine_memory

FLOAT = 4
"""Bytes of a number in a tensor."""
JSON_NUMBER = 80
"""Bytes of a number in a JSON answer: the Python object, its place in a list, its digits, and these encoded."""
JSON_OBJECT = 500
"""Bytes of a small JSON object: three names and their values."""


class TooMuchError(OptionError):
    """A question whose answer would cost more than the budget."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of an answer. A cell is the weight of one query with one key in one head, rebuilt."""

    cells: int = 0
    memory: int = 0
    """Bytes held at once."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(cells=self.cells + other.cells, memory=self.memory + other.memory)


def share_of_memory() -> int:
    """Return a quarter of the machine's memory, but 1 GB at least and 4 GB at most; 1 GB if it is unknown."""
    memory = machine_memory()
    return int(min(4e9, max(1e9, memory / 4))) if memory < math.inf else 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class AnswerBudget:
    """The largest cost of one answer: on one core some 7 to 20 seconds of weights, and a part of the memory."""

    cells: int = 400_000_000
    memory: int = field(default_factory=share_of_memory)
    """Bytes of one answer; and of all cached traces together. 4,096 tokens of 30 layers, 576 wide, take 1.7 GB."""

    def allows(self, cost: Cost) -> bool:
        return cost.cells <= self.cells and cost.memory <= self.memory

    def check(self, cost: Cost, action: str, instead: str) -> None:
        """Raise TooMuchError for a larger cost; the message says how much, and `instead` what to ask for in its
        place.
        """
        if cost.cells > self.cells:
            took = f"{cost.cells:,} attention weights, and {self.cells:,} are the most"
        elif cost.memory > self.memory:
            took = f"{megabytes(cost.memory)} MB of memory, and {megabytes(self.memory)} MB are the most"
        else:
            return
        raise TooMuchError(f"{action} takes {took} for one answer; {instead}")

    def most(self, cost_of: Callable[[int], Cost], limit: int) -> int:
        """Return the largest n up to a limit whose cost is within the budget; costs grow with n."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.allows(cost_of(middle)) else (low, middle - 1)
        return low


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f}"
