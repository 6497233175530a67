"""Signals: SIGINT, SIGTERM and SIGHUP at random moments, before any file-system call, and a second one during the save.

The process must end with the exit code a shell expects and without a traceback, and the run must go on as if nothing
had happened.
"""

import os
import random
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from tests.attack import forking
from tests.attack.calls import Calls
from tests.attack.forking import Outcome
from tests.attack.kills import counted, time_of
from tests.attack.small import STEPS, Target, command, go_on, problem_of, signal_in_step
from tests.attack.table import Row, Tries, attack

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ends(*numbers: int) -> tuple[int, ...]:
    """Return the exit codes that these signals may have: it came too late, it was asked to stop, it was stopped."""
    return (0, *(128 + number for number in numbers), *(-number for number in numbers))


@attack("signal", "SIGINT, SIGTERM or SIGHUP at a random moment or in a step of a training")
def at_random(home: Path, tries: Tries) -> Row:
    target = Target.make(home)
    lasts = time_of(target)

    def case(i: int, draw: random.Random) -> str:
        number, run = draw.choice(NUMBERS), target.run("random", half=False)
        if i % 2:  # most of a small run is not in its steps
            ended = signal_in_step(run, target.recipe, draw.randrange(STEPS), number)
        else:
            child = forking.start(lambda: go_on(run, target.recipe))
            child.send(number, draw.uniform(0, lasts))
            ended = child.wait()
        problem = problem_of(ended, ends(number)) or unsaved(run, ended.err) or target.finish(run)
        shutil.rmtree(run, ignore_errors=True)
        return problem and f"{number.name}: {problem}"

    return tries.each(None, case, full=60)


def unsaved(run: Path, err: str) -> str:
    """Return whether a step that the training says it has saved is not there, or ""."""
    said = re.search(r"stopped at step (\d+), and saved", err)
    there = said is None or (run / "checkpoints" / f"step-{int(said[1]):08d}").is_dir()
    return "" if there else f"it says that step {said[1]} is saved, and it is not"


@attack("signal-twice", "a second signal while the first one's save is written")
def twice(home: Path, tries: Tries) -> Row:
    """Send a signal to `clearhead train RUN --resume`, and another one some calls later."""
    target = Target.make(home)
    made = counted(target, half=True)

    def case(i: int, draw: random.Random) -> str:
        numbers, k = (draw.choice(NUMBERS), draw.choice(NUMBERS)), draw.randint(1, len(made))
        later, run = draw.randint(1, 12), target.run("twice", half=True)
        problem = problem_of(send_two(target, run, numbers, (k, k + later)), ends(*numbers)) or target.finish(run)
        shutil.rmtree(run, ignore_errors=True)
        return problem and f"{numbers} at call {k} ({made[k - 1]}) and {later} later: {problem}"

    return tries.each(None, case, full=60)


def send_two(target: Target, run: Path, numbers: tuple[int, int], calls: tuple[int, int]) -> Outcome:
    """Resume a run by the command, which sends itself one signal at each of two calls."""

    def work() -> int:
        def send(name: str, what: Any) -> None:
            first, hook.at = hook.at == calls[0], calls[1]
            hook.always = None if first else end_at_rename
            os.kill(os.getpid(), numbers[0] if first else numbers[1])

        def end_at_rename(name: str, what: Any) -> None:
            if name == "rename":
                print("clearhead: it goes on to save after the second signal", file=sys.stderr, flush=True)
                os._exit(99)

        hook = Calls(target.home, calls[0], send)
        hook.watch()
        return command("train", run, "--resume")()

    return forking.run(work)
