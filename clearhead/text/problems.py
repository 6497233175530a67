"""Problems with lines of the user's files: reported together with their places, or skipped and counted."""

from collections import Counter
from dataclasses import dataclass
from typing import final

from clearhead.errors import DataError


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
        return f"{display_name(self.file)}:{self.line}"


NOT_UTF8 = "invalid UTF-8"
TO_UTF8 = " (if the file is in another encoding, such as {0}, convert it: iconv -f {0} -t UTF-8 OLD > NEW)"


@final
class Problems:
    """A collection of what is wrong with lines of the user's files: raised together, or skipped and counted.

    With `skip` nothing is raised: the lines are left out, and `counts` says how many of each kind. The first `shown`
    problems are kept with their places, however many there are.
    """

    def __init__(self, *, skip: bool = False, shown: int = 10) -> None:
        self.skip = skip
        self.shown = shown
        self._first: list[str] = []
        self._counts: Counter[str] = Counter()
        self.encodings: Counter[str] = Counter()
        """What lines that are no UTF-8 are likely to be in, and how many."""

    def add(self, place: Place, message: str, kind: str) -> None:
        """Add a problem: `message` says what is wrong there; `kind` is its short name, the same for all
        like it.
        """
        self._counts[kind] += 1
        if len(self._first) < self.shown:
            self._first.append(f"{place}: {message}")

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of problems of each kind."""
        return dict(self._counts)

    def settle(self) -> None:
        """Raise DataError with the first problems and their number, unless they are skipped or there are none."""
        total = self._counts.total()
        if self.skip or total == 0:
            return
        kinds = ", ".join(f"{kind}: {count}" for kind, count in self._counts.most_common())
        more = total - len(self._first)
        # One line with a byte that only Windows has tells the encoding of them all.
        encoding = "WINDOWS-1252" if self.encodings["WINDOWS-1252"] else "LATIN1"
        convert = TO_UTF8.format(encoding) if NOT_UTF8 in self._counts else ""
        raise DataError(
            "\n".join(
                [
                    f"{total} {'line' if total == 1 else 'lines'} cannot be used ({kinds})",
                    *(f"  {problem}" for problem in self._first),
                    *([f"  and {more} more"] if more else []),
                    f"mend them{convert}, or pass --skip-bad to leave them out",
                ]
            )
        )


def display_name(path: str) -> str:
    """Return a file's name for messages: "-" is stdin, and what cannot be printed is escaped."""
    if path == "-":
        return "stdin"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in path)
