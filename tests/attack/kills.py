"""Kill -9: at random moments, before every call that changes a file, in the middle of a write, and during resume.

After each kill the run goes on, and in the end its weights and metrics must be those of the run that was never killed.
"""

import random
import shutil
import time
from pathlib import Path

from tests.attack import forking
from tests.attack.calls import Act, Calls
from tests.attack.forking import Outcome
from tests.attack.small import Target, go_on, make
from tests.attack.table import Row


def attack(home: Path, seed: int, *, short: bool) -> list[Row]:
    draw = random.Random(f"{seed} kills")
    target = Target.make(home)
    most = 2 if short else None
    return [
        at_every_call(target, draw, most, half=False),
        at_every_call(target, draw, most, half=True),
        at_random(target, draw, 1 if short else 100),
    ]


def counted(target: Target, *, half: bool) -> list[str]:
    """Return the calls of one run to its end that change files."""
    run = target.run("counted", half=half)

    def work() -> list[str]:
        calls = Calls(target.home).watch()
        if go_on(run, target.recipe):
            raise RuntimeError("the run that is counted failed")
        return calls.made

    made = forking.run(work).value
    shutil.rmtree(run)
    return made


def do_at(target: Target, run: Path, k: int, act: str | Act, share: float = 0.5) -> Outcome:
    """Go on with a run in a child that does something before its k-th call: "kill", "tear" or a function."""

    def work() -> int:
        calls = Calls(target.home, k)
        calls.act = {"kill": calls.kill, "tear": calls.tear(share)}[act] if isinstance(act, str) else act
        calls.watch()
        return go_on(run, target.recipe)

    return forking.run(work)


def at_every_call(target: Target, draw: random.Random, most: int | None, *, half: bool) -> Row:
    """Kill a run before each of its calls, and before each flush with a part of the file written."""
    row = Row("kill -9 before every file-system call" + (" of a resume" if half else ""))
    made = counted(target, half=half)
    tries = [(k, "kill") for k in range(1, len(made) + 1)]
    tries += [(k, "tear") for k, call in enumerate(made, start=1) if call.startswith("fsync")]
    for k, act in tries if most is None else draw.sample(tries, most):
        run = target.run(f"{act}-{k}", half=half)
        ended = do_at(target, run, k, act, draw.random())
        problem = "" if ended.code == -9 else f"was not killed: {ended.code} {ended.err[-200:]}"
        row.add(problem or target.finish(run), f"{act} at call {k} of {len(made)} ({made[k - 1]})")
        shutil.rmtree(run, ignore_errors=True)
    row.note = f"{len(made)} calls"
    return row


def at_random(target: Target, draw: random.Random, kills: int) -> Row:
    """Kill a run again and again, also while it goes on from the kill before, until it has reached its end."""
    row = Row("kill -9 at random moments, run after run")
    lasts = time_of(target)
    runs = 0
    while row.tried < kills:
        runs += 1
        run = target.run(f"random-{runs}", half=False)
        fallen: list[str] = []
        for _ in range(draw.randint(1, 5)):
            delay = draw.uniform(0, 1.05 * lasts)
            child = forking.start(lambda run=run: go_on(run, target.recipe))
            child.send(9, delay)
            if (ended := child.wait()).code == 0:
                break
            fallen.append(f"{delay:.3f} s" if ended.code == -9 else f"exit code {ended.code}: {ended.err[-200:]}")
        problem = target.finish(run)
        for where in fallen:
            row.add(problem or ("" if where.endswith(" s") else where), f"run {runs}, killed after {where}")
            problem = ""
        shutil.rmtree(run, ignore_errors=True)
    row.note = f"{runs} runs"
    return row


def time_of(target: Target) -> float:
    """Return how many seconds a run takes that nothing disturbs."""
    since = time.perf_counter()
    make(target.home / "timed", target.recipe)
    return time.perf_counter() - since
