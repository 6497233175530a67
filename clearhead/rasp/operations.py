"""What a program is made of inside a model: heads of attention, and units of networks, that read and write spaces."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clearhead.rasp.spaces import Space

Direction = tuple[Space, Any]
"""A space, and a value in it (None for a number)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadCondition:
    """One condition of a head: which values of the keys fit which values of the queries."""

    keys: Space
    queries: Space
    predicate: Callable[[Any, Any], bool]


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadOperation:
    """Attends to the chosen keys, and copies what they hold. Each condition that is met adds 2 to a score.

    Where not all are met, the sink wins, by one. With `values` None the sink ties with what is chosen, and it is
    counted how much of the weight it has: 1 / (1 + how many are chosen).
    """

    choices: tuple[HeadCondition, ...]
    values: Space | None
    out: Space
    cross: bool = False

    @property
    def reads(self) -> list[Space]:
        read = [space for choice in self.choices for space in (choice.keys, choice.queries)]
        return read if self.values is None else [*read, self.values]

    @property
    def d_head(self) -> int:
        return 1 + sum(choice.keys.size for choice in self.choices)

    @property
    def sink_score(self) -> int:
        return 2 * len(self.choices) - (self.values is not None)


@dataclass(frozen=True, kw_only=True)
class HiddenUnit:
    """A hidden unit: relu of a weighted sum of directions, and what it adds to other directions when it is 1."""

    reads: Mapping[Direction, float]
    writes: Mapping[Direction, float]


@dataclass(frozen=True, eq=False, kw_only=True)
class HiddenUnits:
    """Units that belong together."""

    units: tuple[HiddenUnit, ...]
    out: Space

    @property
    def reads(self) -> list[Space]:
        return [space for unit in self.units for space, _ in unit.reads]


Operation = HeadOperation | HiddenUnits
