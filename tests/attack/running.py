"""Run the attacks, two side by side, and collect their rows."""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tests.attack import (
    commands,
    damage,
    disks,
    flips,
    folders,
    kills,
    pairs,
    readers,
    serving,
    signals,
    strangers,
    texts,
)
from tests.attack.small import warm_up
from tests.attack.table import Row, as_markdown, as_text, write_json, write_page

Attack = Callable[..., list[Row]]
ATTACKS: dict[str, Attack] = {
    "kills": kills.attack,
    "signals": signals.attack,
    "readers": readers.attack,
    "disks": disks.attack,
    "pairs": pairs.attack,
    "folders": folders.attack,
    "damage": damage.attack,
    "commands": commands.attack,
    "flips": flips.attack,
    "texts": texts.attack,
    "strangers": strangers.attack,
    "requests": serving.attack,
}
"""Every attack by its name, in the table's order."""
FAST = "/dev/shm"
"""A disk in memory: a kill does not need a slow one."""


def main(args: Sequence[str] | None = None) -> int:
    """Attack, print the table, and return 1 if anything was not survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="each attack a few times")
    parser.add_argument("--only", nargs="*", choices=[*ATTACKS], default=[*ATTACKS], help="these attacks")
    parser.add_argument("--jobs", type=int, default=2, help="how many attacks run at a time")
    parser.add_argument("--json", type=Path, default=Path("build/attack.json"), help="where the table goes as JSON")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    asked = parser.parse_args(args)
    torch.set_num_threads(1)
    since = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=FAST if os.access(FAST, os.W_OK) else None) as home:
        warm_up(Path(home))
        rows = run_all(Path(home), asked.only, asked.seed, short=asked.short, jobs=asked.jobs)
    seconds = time.perf_counter() - since
    print(as_text(rows))
    print(f"seed {asked.seed}, {seconds:.0f} s")
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(rows, asked.json, seed=asked.seed, seconds=seconds)
    if asked.write:
        write_page(as_markdown(rows, seed=asked.seed, seconds=seconds))
    return 1 if any(row.failures for row in rows) else 0


def run_all(home: Path, names: Sequence[str], seed: int, *, short: bool, jobs: int) -> list[Row]:
    """Run each attack in a forked process of its own, so many at a time; return their rows in the table's order."""
    waiting, working = list(names), {}
    rows: dict[str, list[Row]] = {}
    while waiting or working:
        while waiting and len(working) < jobs:
            name = waiting.pop(0)
            (home / name).mkdir()
            working[fork_attack(home / name, name, seed, short)] = (name, time.perf_counter())
        number, status = os.wait()
        name, since = working.pop(number)
        rows[name] = read_rows(home / name, name, status)
        print(f"{name}: {time.perf_counter() - since:.0f} s", file=sys.stderr, flush=True)
    return [row for name in names for row in rows[name]]


def fork_attack(home: Path, name: str, seed: int, short: bool) -> int:
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        found = ATTACKS[name](home, seed, short=short)
        told = [{**row.as_json(), "failures": row.failures} for row in found]
        (home / "rows.json").write_text(json.dumps(told), encoding="utf-8")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def read_rows(home: Path, name: str, status: int) -> list[Row]:
    """Return the rows that an attack wrote; an attack that broke down is a failure itself."""
    file = home / "rows.json"
    if status or not file.exists():
        return [Row(name, 1, [f"the attack itself broke down (status {status})"])]
    told = json.loads(file.read_text(encoding="utf-8"))
    return [Row(one["attack"], one["tried"], one["failures"], one["note"]) for one in told]
