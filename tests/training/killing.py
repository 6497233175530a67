"""A run that is killed again and again, and ends with the same bytes as one that never was.

`python -m tests.training.killing --kills 50` says of each kill at which step it fell, and whether within the writing of
a checkpoint: a hook slows that down, and says in a side file where it is.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from clearhead.errors import ClearheadError
from clearhead.training import checkpoints, loop
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Batching, Budget, Checkpointing, Optimizer
from clearhead.training.resume import resume
from clearhead.training.schedules import CosineDecay, Last
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.tiny import differences, quiet, recipe_for

STEPS, SAVE = 30, 5
PAUSE = 0.02
"""Seconds before each stage of the writing of a checkpoint."""
OUTSIDE = "outside"


class Kill(NamedTuple):
    """Where a process was when it was killed: after so many steps, before a stage of the writing or outside of it."""

    step: int
    stage: str

    @property
    def inside(self) -> bool:
        return self.stage != OUTSIDE

    def __str__(self) -> str:
        return f"step {self.step:>2}, {f'inside a write, before {self.stage}' if self.inside else 'outside a write'}"


def the_recipe(home: Path):
    """A translator with everything random about it, and an average, in thirty steps."""
    recipe = recipe_for(small_runs.translating, home / "text", budget=Budget(steps=STEPS))
    return replace(
        recipe,
        optimizer=Optimizer(
            lr=1e-2, schedule=CosineDecay(warmup=5), smoothing=0.1, r_drop=1.0, averaging=Last(share=0.5, every=4)
        ),
        batching=Batching(tokens=256, micro_batch_tokens=128, context=small_runs.CONTEXT),
        checkpointing=Checkpointing(log=4, evaluate=10, save=SAVE, score_records=2, samples=1),
    )


class Place:
    """The side file: where the process is."""

    def __init__(self, path: Path) -> None:
        self.handle, self.step = os.open(path, os.O_RDWR | os.O_CREAT), 0

    def tell(self, stage: str) -> None:
        os.pwrite(self.handle, f"{self.step:>8} {stage:<30}".encode(), 0)

    @staticmethod
    def read(path: Path) -> Kill:
        step, stage = path.read_text().split()
        return Kill(int(step), stage)


def work(home: Path, run: Path, hold: str | None = None) -> int:
    """What a process does that is to be killed: begins the run or goes on with it, and says so when it trains.

    At the stage `hold`, or before the step of that number, it waits until there is a file RUN.go.
    """
    place = Place(run.with_suffix(".place"))
    taken = loop.Trainer.step

    def wait_at(stage):
        while stage == hold and not run.with_suffix(".go").exists():
            time.sleep(0.01)

    def step(trainer, batches):
        if place.step == 0:
            place.step = trainer.done
            place.tell(OUTSIDE)
            print("ready", flush=True)
        if str(trainer.done + 1) == hold:
            place.tell("held")
            wait_at(hold)
        taken(trainer, batches)
        place.step = trainer.done
        place.tell(OUTSIDE)

    def slowly(stage):
        place.tell(stage)
        wait_at(stage)
        time.sleep(PAUSE)

    def watcher(line):
        if line["kind"] == "saved":
            place.tell(OUTSIDE)
            print(f"saved {line['step']}", flush=True)

    loop.Trainer.step = step
    checkpoints.between_writes = slowly
    try:
        if RunFolder(run).exists():
            resume(run, log=quiet, watcher=watcher, data=home / "data")
        else:
            train(run, the_recipe(home), log=quiet, watcher=watcher, data=home / "data")
    except ClearheadError as error:
        print(error, file=sys.stderr)
        return getattr(error, "exit_code", 1)
    return 0


def started(home: Path, run: Path, hold: str | None = None) -> tuple[subprocess.Popen[str], bool]:
    """A process at work on a run, and whether it trains: one that finds the run finished does not."""
    command = [sys.executable, "-m", "tests.training.killing", "--work", str(home), str(run)]
    command += ["--hold", hold] if hold else []
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    return process, process.stdout.readline() == "ready\n"


def ended(process: subprocess.Popen[str]) -> int:
    """Its exit code, once it has ended. What went wrong in it goes wrong here."""
    _, told = process.communicate()
    code = process.returncode
    if code not in (0, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGINT):
        raise RuntimeError(f"the process ended with {code}: {told}")
    return code


def whole(home: Path, run: Path) -> float:
    """Trains to the end; returns the seconds from the first step to the last save."""
    process, _ = started(home, run)
    since = taken = time.perf_counter()
    assert process.stdout is not None
    while process.stdout.readline():
        taken = time.perf_counter()
    if ended(process):
        raise RuntimeError(f"{run} was not to be stopped")
    return taken - since


def struck(home: Path, run: Path, delay: float, number: signal.Signals = signal.SIGKILL) -> Kill | None:
    """Sends a signal so many seconds after training goes on; returns where that ended it, None if it came too late."""
    process, ready = started(home, run)
    if ready:
        time.sleep(delay)
        process.send_signal(number)
    return None if ended(process) == 0 else Place.read(run.with_suffix(".place"))


def reach(kills: int) -> float:
    """How many saves a process may live at most, so that the run is not over before its last kill.

    >>> round(reach(50), 2), reach(5)
    (1.06, 2.5)
    """
    return 1 / (1 - min(0.6, 0.5 * STEPS / SAVE / kills))


def kill(home: Path, kills: int, seed: int, say=print) -> tuple[list[Kill], list[RunFolder]]:
    """Kills runs so many times in all, one after another, and lets the last one end; where each kill fell."""
    draw = random.Random(seed)
    between = whole(home, home / "undisturbed") / (STEPS / SAVE)
    fallen: list[Kill] = []
    runs = [RunFolder(home / "killed-1")]
    while len(fallen) < kills:
        fell = struck(home, runs[-1].path, draw.uniform(0, reach(kills)) * between)
        if fell is None:
            say(f"{runs[-1].path.name} came to its end; another one begins")
            runs.append(RunFolder(home / f"killed-{len(runs) + 1}"))
        else:
            fallen.append(fell)
            say(f"kill {len(fallen):>2}: {fell}")
    whole(home, runs[-1].path)
    return fallen, runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        return work(*asked.work, asked.hold)
    with tempfile.TemporaryDirectory() as home:
        fallen, runs = kill(Path(home), asked.kills, asked.seed)
        different = [said for run in runs for said in differences(run, RunFolder(Path(home) / "undisturbed"))]
    inside = sum(one.inside for one in fallen)
    print(f"{len(fallen)} kills, {inside} of them inside a write, over {len(runs)} run(s) of {STEPS} steps")
    print("\n".join(different) or "every run ended with the bytes of the undisturbed one, and with its metrics")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
