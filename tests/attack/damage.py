"""Damaged files in one process: what tests/training/mutating.py makes of runs and traces, of today and of the past."""

from pathlib import Path

from tests.attack.table import Row, Tries, attack
from tests.training.mutating import attack_all


@attack("damage", "damaged files of runs and traces, of today and of the past: they load, or give one clear error")
def damage(home: Path, tries: Tries) -> Row:
    found = attack_all(tries.count or (100 if tries.short else 10_000), tries.seed * 100 + tries.part, home)
    row = Row("", note=f"{sum(made.counts['told'] for made in found.values()):,} refused")
    for name, made in found.items():
        row.tried += sum(made.counts.values())
        row.failures += [f"{name}: {fault}" for fault in made.faults]
    return row
