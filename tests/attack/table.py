"""The table of attacks: each by its name, which of its cases are tried, and how often it was survived."""

import json
import platform
import random
import re
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.attack import forking

BEGIN, END = "<!-- attack table: begin -->", "<!-- attack table: end -->"
PAGE = Path(__file__).parents[2] / "benchmarks/results/attack.md"
SHOWN = 20


@dataclass
class Row:
    """What came of an attack: how often it was tried, what failed, and a figure worth telling."""

    attack: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def survived(self) -> int:
        return max(0, self.tried - len(self.failures))

    def add(self, problem: str, what: str) -> None:
        """Count one try; a problem that is not empty is a failure."""
        self.tried += 1
        if problem:
            self.failures.append(f"{what}: {problem}")

    def include(self, other: "Row") -> None:
        """Add the tries of another process or run."""
        self.tried += other.tried
        self.failures += other.failures
        self.note = self.note or other.note

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "survived": self.survived}


@dataclass
class Tries:
    """Which cases of an attack this process tries: its part of them all, of `count` that are drawn, or of a few;
    `first`: up to the first that is not survived.
    """

    seed: int
    short: bool = False
    count: int | None = None
    part: int = 0
    parts: int = 1
    seconds: int = 10_000
    minutes: float | None = None
    case: str = ""
    first: bool = False

    def numbers(self, there: int | None, *, full: int, short: int) -> list[int]:
        """Return the numbers of the cases to try, of those there are; None: any number is a case."""
        wanted = self.count or (short if self.short else full)
        if there is None:
            chosen = list(range(wanted))
        elif wanted >= there:
            chosen = [number % there for number in range(wanted if self.count else there)]
        else:
            chosen = sorted(random.Random(f"{self.seed}").sample(range(there), wanted))
        return chosen[self.part :: self.parts]

    def draw(self, *names: object) -> random.Random:
        """Return what draws the choices of one case."""
        return random.Random(" ".join(map(str, (self.seed, self.part, *names))))

    def each(
        self,
        cases: Sequence[Any] | None,
        case: Callable[[Any, random.Random], str],
        *,
        full: int = 10**9,
        short: int = 2,
        note: str = "",
    ) -> Row:
        """Try each case, which returns what is wrong or ""; without a list, a case is its number."""
        row = Row("", note=note)
        if cases is not None and self.case:
            cases = [one for one in cases if re.search(self.case, str(getattr(one, "__name__", one)))]
        for turn, number in enumerate(self.numbers(None if cases is None else len(cases), full=full, short=short)):
            one = number if cases is None else cases[number]
            try:
                problem = case(one, self.draw(turn, number))
            except Exception as error:  # an attack that breaks down is a failure of its own
                problem = f"{type(error).__name__}: {error!s:.300} ({traceback.format_exc().splitlines()[-2].strip()})"
            row.add(problem, f"{number} ({getattr(one, '__name__', one)})" if cases is not None else f"try {number}")
            if problem and self.first:
                break
        return row

    def batches(
        self, case: Callable[[int, random.Random], str], *, full: int, short: int, memory: int | None = None
    ) -> Row:
        """Try cases that are quick, a hundred in each child; what a child prints may not be a panic."""
        numbers = self.numbers(None, full=full, short=short)

        def one(i: int) -> str:
            return case(numbers[i], self.draw(numbers[i]))

        if not self.first:
            return Row("", len(numbers), forking.in_batches(len(numbers), one, size=100, memory=memory))
        row = Row("")
        while row.tried < len(numbers) and not row.failures:
            row.failures = forking.in_batches(row.tried + 1, one, first=row.tried, memory=memory)
            row.tried += 1
        return row


Attack = Callable[[Path, Tries], Row]
ATTACKS: dict[str, tuple[str, Attack]] = {}
"""Every attack by its name, with what it does."""


def attack(name: str, does: str) -> Callable[[Attack], Attack]:
    """Put an attack into the table."""

    def register(function: Attack) -> Attack:
        if name in ATTACKS:
            raise ValueError(f"there are two attacks called {name}")
        ATTACKS[name] = does, function
        return function

    return register


def as_text(rows: Sequence[Row]) -> str:
    """Return the table for a terminal, with the failures under it."""
    wide = max(len(row.attack) for row in rows)
    lines = [f"{'attack':<{wide}} {'tried':>9} {'survived':>9}"]
    lines += [f"{row.attack:<{wide}} {row.tried:>9,} {row.survived:>9,}  {row.note}".rstrip() for row in rows]
    for row in rows:
        lines += [f"  {row.attack}: {failure}" for failure in row.failures[:SHOWN]]
        if len(row.failures) > SHOWN:
            lines.append(f"  {row.attack}: and {len(row.failures) - SHOWN} more")
    return "\n".join(lines)


def as_markdown(
    rows: Sequence[Row], notices: Callable[[str], str], *, seeds: set[int], seconds: float, commits: set[str]
) -> str:
    """Return the table of results/attack.md, with its seeds, date, commits and machine, and the mutants of each
    attack.
    """
    import torch

    lines = [
        f"Seed {' and '.join(map(str, sorted(seeds)))}, {time.strftime('%d %B %Y')}, "
        f"{platform.system()} on {platform.machine()}, "
        f"Python {platform.python_version()}, torch {torch.__version__.split('+')[0]}, {seconds / 60:.0f} minutes; "
        f"commit {', '.join(sorted(commits))}.",
        "",
        "| attack | what it does | tried | survived | | it notices |",
        "|---|---|---:|---:|---|---|",
    ]
    for row in rows:
        does, note = ATTACKS[row.attack][0], row.note + " " if row.note else ""
        lines.append(f"| `{row.attack}` | {does} | {row.tried:,} | {row.survived:,} | {note}| {notices(row.attack)} |")
    return "\n".join(lines)


def commit_here() -> str:
    """Return the commit that is checked out, marked if files differ from it."""
    told = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def write_page(table: str, page: Path = PAGE) -> None:
    """Put the table between the two markers of the page."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    if not rest or END not in rest:
        raise RuntimeError(f"{page.name}: the markers of the table are missing")
    page.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}", encoding="utf-8")


def write_json(rows: Sequence[Row], path: Path, *, seed: int, seconds: float) -> None:
    shown = [{**row.as_json(), "failures": row.failures[:SHOWN]} for row in rows]
    content = {"seed": seed, "seconds": round(seconds, 1), "commit": commit_here(), "rows": shown}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> tuple[dict[str, Row], float, str, int]:
    """Return the rows that an earlier run has written, by attack, the seconds that it took, its commit and its seed."""
    content = json.loads(path.read_text(encoding="utf-8"))
    fields = ("attack", "tried", "failures", "note")
    rows = {row["attack"]: Row(*(row[name] for name in fields)) for row in content["rows"]}
    return rows, content["seconds"], content["commit"], content["seed"]
