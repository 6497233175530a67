"""Spaces: parts of the residual stream with names. A category is a direction; a number lies along one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from clearhead.errors import ProgramError


@dataclass(frozen=True, eq=False, kw_only=True)
class Space:
    """The directions of one sequence: one for each value, or a single one for numbers."""

    name: str
    values: tuple[Any, ...] = ()
    numeric: bool = False

    @property
    def size(self) -> int:
        return 1 if self.numeric else len(self.values)

    def place(self, value: Any) -> int:
        return 0 if self.numeric else self.values.index(value)

    @property
    def labels(self) -> list[str]:
        return [self.name] if self.numeric else [f"{self.name}:{value}" for value in self.values]


ONE = Space(name="one", numeric=True)
"""1 at every token."""
HERE = Space(name="here", numeric=True)
"""1 at every token of the text itself."""
SINK = Space(name="sink", numeric=True)
"""1 at the token that is attended to where nothing else is chosen."""


class Directions:
    """Where each space lies in the residual stream."""

    def __init__(self, spaces: Iterable[Space]) -> None:
        self.first: dict[Space, int] = {}
        self.names: list[str] = []
        for space in (ONE, HERE, SINK, *spaces):
            if space not in self.first:
                self.first[space] = len(self.names)
                self.names += space.labels

    def __len__(self) -> int:
        return len(self.names)

    def of(self, space: Space, value: Any = None) -> int:
        """Return the direction of a value, or of a number."""
        if space not in self.first:
            raise ProgramError(f"{space.name} has no place in this model")
        return self.first[space] + space.place(value)

    def all(self, space: Space) -> range:
        return range(self.first[space], self.first[space] + space.size)
