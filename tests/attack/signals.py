"""Signals: SIGINT, SIGTERM and SIGHUP at random moments, before any file-system call, and a second one during the save.

The process must end with the exit code a shell expects and without a traceback, and the run must go on as if nothing
had happened.
"""

import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from tests.attack import forking
from tests.attack.calls import Calls
from tests.attack.forking import Outcome
from tests.attack.kills import counted, time_of
from tests.attack.small import Target, command, go_on, problem_of
from tests.attack.table import Row, Tries, attack

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ends(*numbers: int) -> tuple[int, ...]:
    """Return the exit codes that these signals may have: it came too late, it was asked to stop, it was stopped."""
    return (0, *(128 + number for number in numbers), *(-number for number in numbers))


@attack("signal", "SIGINT, SIGTERM or SIGHUP at a random moment of a training")
def at_random(home: Path, tries: Tries) -> Row:
    target = Target.make(home)
    lasts = time_of(target)

    def case(i: int, draw: random.Random) -> str:
        number, run = draw.choice(NUMBERS), target.run("random", half=False)
        child = forking.start(lambda: go_on(run, target.recipe))
        child.send(number, draw.uniform(0, lasts))
        problem = problem_of(child.wait(), ends(number)) or target.finish(run)
        shutil.rmtree(run, ignore_errors=True)
        return problem and f"{number.name}: {problem}"

    return tries.each(None, case, full=60)


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
