"""Problems: what is wrong with lines of the user's files, told together with their places, or skipped and counted."""

from collections import Counter
from dataclasses import dataclass
from typing import final

from clearhead.errors import DataError

__all__ = ["Place", "Problems", "shown_name"]


@final
@dataclass(frozen=True)
class Place:
    """A line of a file, counted from 1.

    >>> print(Place("train.de.gz", 17))
    train.de.gz:17
    >>> print(Place("-", 3))
    stdin:3
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{shown_name(self.file)}:{self.line}"


@final
class Problems:
    """What was wrong with lines of the user's files: collected, then told together, or skipped and counted.

    With `skip` nothing is raised: the lines are left out, and `counts` says how many of each kind. The first `shown`
    problems are kept with their places, however many there are.
    """

    def __init__(self, *, skip: bool = False, shown: int = 10) -> None:
        self.skip = skip
        self.shown = shown
        self._first: list[str] = []
        self._counts: Counter[str] = Counter()

    def add(self, place: Place, what: str, kind: str) -> None:
        """One more: `what` is wrong there, told to the user; `kind` is its short name, the same for all like it."""
        self._counts[kind] += 1
        if len(self._first) < self.shown:
            self._first.append(f"{place}: {what}")

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each kind."""
        return dict(self._counts)

    def settle(self) -> None:
        """Raises DataError with the first of them and how many there are, unless they are skipped or there are none."""
        total = self._counts.total()
        if self.skip or total == 0:
            return
        kinds = ", ".join(f"{kind}: {count}" for kind, count in self._counts.most_common())
        more = total - len(self._first)
        raise DataError(
            "\n".join(
                [
                    f"{total} {'line' if total == 1 else 'lines'} cannot be used ({kinds})",
                    *(f"  {problem}" for problem in self._first),
                    *([f"  and {more} more"] if more else []),
                    "mend them, or pass --skip-bad to leave them out",
                ]
            )
        )


def shown_name(path: str) -> str:
    """A file's name as messages give it: "-" is stdin, and what cannot be printed is escaped."""
    if path == "-":
        return "stdin"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in path)
