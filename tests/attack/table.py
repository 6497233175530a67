"""The table of attacks: how often each was tried, and how often it was survived; as text, JSON and Markdown."""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- attack table: begin -->", "<!-- attack table: end -->"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
SHOWN = 20


@dataclass
class Row:
    """An attack: how often it was tried, what failed, and a figure worth telling."""

    attack: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def survived(self) -> int:
        return self.tried - len(self.failures)

    def add(self, problem: str, what: str) -> None:
        """Count one try; a problem that is not empty is a failure."""
        self.tried += 1
        if problem:
            self.failures.append(f"{what}: {problem}")

    def as_json(self) -> dict[str, Any]:
        return {
            "attack": self.attack,
            "tried": self.tried,
            "survived": self.survived,
            "note": self.note,
            "failures": self.failures[:SHOWN],
        }


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


def as_markdown(rows: Sequence[Row], *, seed: int, seconds: float) -> str:
    """Return the table for docs/reliability.md, with its seed, date and machine.

    >>> print(as_markdown([Row("kill -9 at random moments", 2, ["one"])], seed=3, seconds=60.0).splitlines()[-1])
    | kill -9 at random moments | 2 | 1 | |
    """
    import torch

    lines = [
        f"Seed {seed}, {time.strftime('%d %B %Y')}, {platform.system()} on {platform.machine()}, "
        f"Python {platform.python_version()}, torch {torch.__version__.split('+')[0]}, {seconds / 60:.0f} minutes.",
        "",
        "| attack | tried | survived | |",
        "|---|---:|---:|---|",
    ]
    for row in rows:
        lines.append(f"| {row.attack} | {row.tried:,} | {row.survived:,} | {row.note + ' ' if row.note else ''}|")
    return "\n".join(lines)


def write_page(table: str, page: Path = PAGE) -> None:
    """Put the table between the two markers of the page."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    if not rest or END not in rest:
        raise RuntimeError(f"{page.name}: the markers of the table are missing")
    page.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}", encoding="utf-8")


def write_json(rows: Sequence[Row], path: Path, *, seed: int, seconds: float) -> None:
    content = {"seed": seed, "seconds": round(seconds, 1), "rows": [row.as_json() for row in rows]}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
