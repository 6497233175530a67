"""Two processes that begin in one folder at once: one of them trains there, and nothing of it is lost.

One way draws a delay at every file call of both. The other is exhaustive: it stops the first process before its n-th
file call, for every n; the second begins and ends meanwhile; then the first goes on.
"""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from clearhead.errors import ClearheadError
from clearhead.text.sources import Aligned
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Budget, Checkpointing, Recipe
from tests.attack import forking
from tests.attack.calls import path_of
from tests.attack.forking import Child, Outcome
from tests.attack.small import go_on, make, recipe_of
from tests.attack.table import Row
from tests.training.tiny import differences

EVENTS = {
    *("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.listdir", "os.scandir"),
    *("os.truncate", "fcntl.flock"),
}
WRAPPED = ("stat", "lstat", "fsync", "write", "ftruncate")
MIDWAY = ("fcntl.flock", "listdir run", "open .run.json", "open .recipe.json", "open .evaluation.json", "rmdir")
"""Calls that the second is stopped at: it has no lock yet; has it; claims; has all but its recipe; ends; has ended."""
DELAYS = 0.003
"""Seconds that a file call waits at most, of those that wait."""

Step = Callable[[str], None]
"""Is given a file call, as "open run.json", just before it is made."""
Work = Callable[[], int]


class Watched:
    """Every file call under a folder, also those that only look, told to `step` before it is made."""

    def __init__(self, home: Path, step: Step) -> None:
        self.home, self.step, self.inside = os.path.realpath(home), step, False

    def watch(self) -> None:
        """Begin. There is no end: the process must be a child."""
        sys.addaudithook(
            lambda event, args: self.tell(event.removeprefix("os."), args[:1]) if event in EVENTS else None
        )
        for name in WRAPPED:
            setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def told(*args: Any, **named: Any) -> Any:
            self.tell(name, args[:1])
            return function(*args, **named)

        return told

    def tell(self, name: str, args: tuple[Any, ...]) -> None:
        if self.inside or not args or not isinstance(args[0], str | bytes | int | os.PathLike):
            return
        self.inside = True
        try:
            path = path_of(args[0])
            if path.startswith(self.home):
                self.step(f"{name} {Path(path).name}")
        finally:
            self.inside = False


def short_recipe(home: Path) -> Recipe:
    """Return the recipe of a run of two steps, which is begun and ended in a tenth of a second."""
    return replace(
        recipe_of(home),
        budget=Budget(steps=2),
        checkpointing=Checkpointing(log=1, evaluate=2, save=1, score_records=0, samples=0, film=False),
    )


def refused_recipe(recipe: Recipe, home: Path) -> Recipe:
    """Return a recipe whose text is refused, once its folder is claimed."""
    for name in ("bad.de", "bad.en"):
        (home / name).write_text("\n" * (2 if name == "bad.de" else 3), encoding="utf-8")
    bad = Aligned(source=(str(home / "bad.de"),), target=(str(home / "bad.en"),))
    return replace(recipe, corpus=replace(recipe.corpus, train=bad))


class Pair:
    """What is begun at once, and how it must end: a run that is whole, or none where both were to be refused."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.good = short_recipe(home)
        self.bad = refused_recipe(self.good, home)
        self.reference = make(home / "reference", self.good)

    def new(self) -> Path:
        """Return the path of a run that is not there: its folder and the one above are made by the training."""
        shutil.rmtree(self.home / "runs", ignore_errors=True)
        return self.home / "runs" / "run"

    def work(self, run: Path, recipe: Recipe, step: Step | None = None) -> Work:
        def begun() -> int:
            if step is not None:
                Watched(run.parent, step).watch()
            return go_on(run, recipe)

        return begun

    def fault(self, run: Path, *ended: Outcome) -> str:
        """Return what was lost, or "": a run that was trained is as the one nothing disturbed, to the last bit."""
        unclear = [outcome.unclear() for outcome in ended if outcome.unclear()]
        if unclear:
            return unclear[0]
        trained = [outcome for outcome in ended if outcome.code == 0]
        if not trained:
            return ""
        folder = RunFolder(run)
        missing = [name for name in os.listdir(self.reference) if not (run / name).exists()]
        if missing:
            return f"it ended with exit code 0, and {', '.join(sorted(missing))} is missing"
        try:
            return "; ".join(differences(folder, RunFolder(self.reference)))
        except (ClearheadError, OSError, LookupError) as error:  # whatever is wrong with what is left of the run
            return f"the run is damaged: {error}"


def attack(home: Path, seed: int, *, short: bool) -> list[Row]:
    pair = Pair(home)
    draw = random.Random(f"{seed} pairs")
    return [at_random(pair, draw, 3 if short else 200), at_every_call(pair, draw, 4 if short else None)]


def at_random(pair: Pair, draw: random.Random, count: int) -> Row:
    """Begin two trainings at once, with random delays at their file calls; a third is there for what both leave."""
    row = Row("two trainings begun in one folder at once")
    refused = 0
    for i in range(count):
        run = pair.new()
        seeds = draw.random(), draw.random()
        recipes = draw.choice([(pair.good, pair.good), (pair.good, pair.good), (pair.good, pair.bad)])
        share = draw.choice((0.02, 0.1, 0.5))
        children = [
            forking.start(pair.work(run, recipe, delays(each, share)))
            for recipe, each in zip(recipes, seeds, strict=True)
        ]
        ended = [child.wait() for child in children]
        refused += sum(outcome.code != 0 for outcome in ended)
        row.add(pair.fault(run, *ended) or again(pair, run, ended), f"pair {i}")
    row.note = f"{refused} refused"
    return row


def delays(seed: float, share: float) -> Step:
    draw = random.Random(seed)

    def step(call: str) -> None:
        if draw.random() < share:
            time.sleep(draw.uniform(0, DELAYS))

    return step


def again(pair: Pair, run: Path, ended: list[Outcome]) -> str:
    """Return what stands in the way of a training after both were refused, or ""."""
    if any(outcome.code == 0 for outcome in ended):
        return ""
    third = forking.run(pair.work(run, pair.good))
    return f"nobody can train there any more: {third.err[-300:]}" if third.code else pair.fault(run, third)


def at_every_call(pair: Pair, draw: random.Random, most: int | None, *, every: int = 1) -> Row:
    """Stop a training before each of its file calls, and let another begin meanwhile.

    The other runs to its end first, or is stopped itself on the way until the first has ended. Once the first has the
    lock, the other can only be refused: there `every` n-th call will do.
    """
    row = Row("a training stopped at each file call while another begins")
    tries: list[tuple[str, int, str, str]] = []
    for ways in ("good good", "good bad", "bad good"):
        made = calls_of(pair, ways)
        locked = made.index("fcntl.flock .lock") + 1
        early = [n for n in range(1, len(made) + 1) if n <= locked or made[n - 1].startswith("r")]
        late = [n for n in range(locked + 1, len(made) + 1) if n % every == 0 or len(made) < 100]
        tries += [(ways, n, made[n - 1], stop) for n in early if n <= locked for stop in MIDWAY]
        tries += [(ways, n, made[n - 1], "") for n in sorted({*early, *late})]
    for ways, n, call, stop in tries if most is None else draw.sample(tries, most):
        on_the_way = f", the other at {stop!r}" if stop else ""
        row.add(stopped_at(pair, n, ways, stop), f"{ways}, stopped at call {n} ({call}){on_the_way}")
    row.note = f"{len(tries)} ways"
    return row


def recipes_of(pair: Pair, ways: str) -> Iterator[Recipe]:
    return (getattr(pair, way) for way in ways.split())


def calls_of(pair: Pair, ways: str) -> list[str]:
    """Return the file calls of the first of the two when nothing disturbs it."""
    run, (recipe, _) = pair.new(), recipes_of(pair, ways)

    def work() -> list[str]:
        made: list[str] = []
        pair.work(run, recipe, made.append)()
        return made

    return forking.run(work).value


def stopped_at(pair: Pair, n: int, ways: str, stop: str = "") -> str:
    """Stop the first before its n-th call and begin the second, which goes on to its end or to a call that begins with
    `stop`. Then the first goes on to its end, and then the second. Return what was lost, or "".
    """
    run = pair.new()
    count = 0

    def stop_at_count(call: str) -> None:
        nonlocal count
        count += 1
        if count == n:
            os.kill(os.getpid(), signal.SIGSTOP)

    stopped_before = False

    def stop_at_name(call: str) -> None:
        nonlocal stopped_before
        if stop and call.startswith(stop) and not stopped_before:
            stopped_before = True
            os.kill(os.getpid(), signal.SIGSTOP)

    recipes = recipes_of(pair, ways)
    children: list[Child] = []
    for step in (stop_at_count, stop_at_name):
        children.append(forking.start(pair.work(run, next(recipes), step)))
        wait_for_stop(children[-1])
    ended: list[Outcome] = []
    for child in children:
        if child.status is None:
            child.send(signal.SIGCONT)
        ended.append(child.wait())
    return pair.fault(run, *ended) or again(pair, run, ended)


def wait_for_stop(child: Child) -> None:
    """Wait until a child has stopped itself, or ended."""
    status = os.waitpid(child.number, os.WUNTRACED)[1]
    if not os.WIFSTOPPED(status):
        child.status = status
