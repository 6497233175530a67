"""Run the attacks: each in processes of its own, several side by side; collect their rows."""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from tests.attack import (  # noqa: F401 - they put their attacks into the table
    bombs,
    commands,
    damage,
    disks,
    doors,
    flips,
    folders,
    kills,
    load,
    mutants,
    pairs,
    preparing,
    requests,
    signals,
    strangers,
    texts,
)
from tests.attack.small import warm_up
from tests.attack.table import ATTACKS, Row, Tries, as_markdown, as_text, commit_here, read_json, write_json, write_page

FAST = "/dev/shm"
"""A disk in memory: a kill does not need a slow one."""


def main(args: Sequence[str] | None = None) -> int:
    """Attack, print the table, and return 1 if anything was not survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="each attack a few times")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="these attacks, or those that begin so")
    parser.add_argument("--count", type=int, help="how many cases of each")
    parser.add_argument("--workers", type=int, default=2, help="how many processes attack at a time")
    parser.add_argument("--case", default="", metavar="TEXT", help="of an attack's list of cases, those with this text")
    parser.add_argument("--first", action="store_true", help="stop an attack at the first try that is not survived")
    parser.add_argument("--seconds", type=int, default=10_000, help="how long an attack may take; more is a failure")
    parser.add_argument("--minutes", type=float, help="how long the load lasts")
    parser.add_argument("--json", type=Path, default=Path("build/attack.json"), help="where the table goes as JSON")
    parser.add_argument(
        "--join", type=Path, nargs="*", default=[], metavar="JSON", help="take the rows of earlier runs; attack --only"
    )
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/results/attack.md")
    parser.add_argument(
        "--mutations", action="store_true", help="break the package, one promise at a time, and attack it"
    )
    asked = parser.parse_args(args)
    if asked.mutations:
        return mutants.main(asked.only, asked.workers)
    names = [name for name in ATTACKS if not (asked.only or asked.join) or any(map(name.startswith, asked.only))]
    if asked.only and all(one in ATTACKS for one in asked.only):  # `kill` is one of them, and begins others
        names = [name for name in ATTACKS if name in asked.only]
    if not names and not asked.join:
        parser.error(f"there is no attack called {asked.only}; there are {', '.join(ATTACKS)}")
    torch.set_num_threads(1)
    since = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=FAST if os.access(FAST, os.W_OK) else None) as home:
        warm_up(Path(home))
        form = {
            name: getattr(asked, name) for name in ("seed", "short", "count", "seconds", "minutes", "case", "first")
        }
        tries = Tries(**form)
        rows = run_all(Path(home), names, tries, asked.workers)
    seconds = time.perf_counter() - since
    commits, seeds = ({commit_here()}, {asked.seed}) if names else (set(), set())
    joined = {row.attack: row for row in rows}
    for earlier in asked.join:  # an attack that was made in several parts has one row
        found, took, commit, seed = read_json(earlier)
        for name, row in found.items():
            joined.setdefault(name, Row(name)).include(row)
        seconds, commits, seeds = seconds + took, commits | {commit}, seeds | {seed}
    rows = [joined[name] for name in ATTACKS if name in joined]
    print(as_text(rows))
    print(f"seed {asked.seed}, {seconds:.0f} s")
    write_json(rows, asked.json, seed=asked.seed, seconds=seconds)
    if asked.write:
        write_page(as_markdown(rows, mutants.mutants_of, seeds=seeds, seconds=seconds, commits=commits))
    return 1 if any(row.failures or not row.tried for row in rows) else 0


def run_all(home: Path, names: Sequence[str], tries: Tries, workers: int) -> list[Row]:
    """Run attacks in forked processes, so many at a time; an attack with a count is shared by all of them."""
    parts = workers if tries.count else 1
    waiting = [(name, replace(tries, part=part, parts=parts)) for name in names for part in range(parts)]
    working: dict[int, tuple[str, Path, float]] = {}
    rows = {name: Row(name) for name in names}
    try:
        while waiting or working:
            while waiting and len(working) < workers:
                name, part = waiting.pop(0)
                folder = home / f"{name}-{part.part}"
                folder.mkdir()
                working[fork_attack(folder, name, part)] = name, folder, time.perf_counter()
            number, status = os.wait()
            if number in working:
                name, folder, since = working.pop(number)
                merge(rows[name], folder / "row.json", status)
                print(f"{name}: {time.perf_counter() - since:.0f} s", file=sys.stderr, flush=True)
    finally:
        for number in working:
            os.killpg(number, signal.SIGKILL)
    return [*rows.values()]


def fork_attack(folder: Path, name: str, tries: Tries) -> int:
    """Attack in a process of its own; it is killed with all that it started once it takes longer than any should."""
    number = os.fork()
    if number:
        return number
    code = 1
    os.setpgid(0, 0)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(tries.seconds)
    try:
        row = ATTACKS[name][1](folder, tries)
        (folder / "row.json").write_text(json.dumps(row.as_json()), encoding="utf-8")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def merge(row: Row, file: Path, status: int) -> None:
    """Add what a process found to the row of its attack; one that broke down is a failure itself."""
    if status or not file.exists():
        row.add(f"status {status}", "the attack itself broke down")
        return
    found = json.loads(file.read_text(encoding="utf-8"))
    row.include(Row("", found["tried"], found["failures"], found["note"]))
