"""Damaged files in one process: what tests/training/mutating.py makes of runs and traces, of today and of the past."""

from pathlib import Path

from tests.attack.table import Row
from tests.training.mutating import attack_all


def attack(home: Path, seed: int, *, short: bool) -> list[Row]:
    rows = []
    for name, made in attack_all(100 if short else 10_000, seed, home).items():
        row = Row(f"damaged files of {name}", sum(made.counts.values()), made.faults)
        row.note = f"{made.counts['told']:,} refused"
        rows.append(row)
    return rows
