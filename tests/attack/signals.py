"""Signals: SIGINT, SIGTERM and SIGHUP at random moments, before any file-system call, and a second one during the save.

The process must end with the exit code a shell expects and without a traceback, and the run must go on as if nothing
had happened.
"""

import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

from tests.attack import forking
from tests.attack.calls import Calls
from tests.attack.forking import Outcome
from tests.attack.kills import counted, time_of
from tests.attack.small import Target, command, go_on, problem_of
from tests.attack.table import Row

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def attack(home: Path, seed: int, *, short: bool) -> list[Row]:
    draw = random.Random(f"{seed} signals")
    target = Target.make(home)
    tries = 2 if short else 60
    return [at_random(target, draw, tries), twice(target, draw, tries)]


def ends(*numbers: int) -> tuple[int, ...]:
    """Return the exit codes that these signals may have: it came too late, it was asked to stop, it was stopped."""
    return (0, *(128 + number for number in numbers), *(-number for number in numbers))


def at_random(target: Target, draw: random.Random, tries: int) -> Row:
    """Send one signal at a random moment, to a run that begins."""
    row = Row("SIGINT, SIGTERM or SIGHUP at a random moment")
    lasts = time_of(target)
    for i in range(tries):
        number, delay, run = draw.choice(NUMBERS), draw.uniform(0, lasts), target.run(f"random-{i}", half=False)
        child = forking.start(lambda run=run: go_on(run, target.recipe))
        child.send(number, delay)
        problem = problem_of(child.wait(), ends(number))
        row.add(problem or target.finish(run), f"try {i}, {number.name} after {delay:.3f} s")
        shutil.rmtree(run, ignore_errors=True)
    return row


def twice(target: Target, draw: random.Random, tries: int) -> Row:
    """Send a signal to `clearhead train RUN --resume`, and another one while it saves because of the first."""
    row = Row("a second signal while the first one's save is written")
    made = counted(target, half=True)
    for i in range(tries):
        first, second = (draw.choice(NUMBERS) for _ in range(2))
        k, later = draw.randint(1, len(made)), draw.randint(1, 12)
        run = target.run(f"twice-{i}", half=True)
        problem = problem_of(send_two(target, run, (first, second), (k, k + later)), ends(first, second))
        what = f"try {i}, {first.name} at call {k} ({made[k - 1]}) and {second.name} {later} calls later"
        row.add(problem or target.finish(run), what)
        shutil.rmtree(run, ignore_errors=True)
    return row


def send_two(target: Target, run: Path, numbers: tuple[int, int], calls: tuple[int, int]) -> Outcome:
    """Resume a run by the command, which sends itself one signal at each of two calls."""

    def work() -> int:
        def send(name: str, what: Any) -> None:
            first, hook.at = hook.at == calls[0], calls[1]
            os.kill(os.getpid(), numbers[0] if first else numbers[1])

        hook = Calls(target.home, calls[0], send)
        hook.watch()
        return command("train", run, "--resume")()

    return forking.run(work)
