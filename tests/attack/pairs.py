"""Two processes that begin in one folder at once: one of them has it, and nothing of it is lost.

One way draws a delay at every file call of both. The other is exhaustive: it stops the first process before its n-th
file call, for every n; the second begins and ends meanwhile; then the first goes on. Readers are tried too.
"""

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from clearhead.errors import ClearheadError
from clearhead.experiments import comparing
from clearhead.experiments.comparing import Arm, compare
from clearhead.experiments.workers import TrainingJob
from clearhead.experiments.workers import work as work_on
from clearhead.interop.run import import_model
from clearhead.plots import curves
from clearhead.text.sources import Aligned
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Budget, Checkpointing, Recipe
from clearhead.training.run import load
from tests.attack import forking
from tests.attack.calls import Act, Calls, delays, stop_at
from tests.attack.forking import Child, Outcome
from tests.attack.small import Sketch, begun, copy, go_on, litter, make, recipe_of, said_error
from tests.attack.table import Row, Tries, attack
from tests.interop import saved_models
from tests.training.tiny import differences, quiet

MIDWAY = ("flock", "listdir run", "open .run.json", "open .recipe.json", "open .evaluation.json", "rmdir")
"""Calls that the second is stopped at: it has no lock yet; has it; claims; has all but its recipe; ends; has ended."""
Work = Callable[[], int]


def short_recipe(home: Path) -> Recipe:
    """Return the recipe of a run of three steps, which is begun and ended in a tenth of a second."""
    return replace(
        recipe_of(home),
        budget=Budget(steps=3),
        checkpointing=Checkpointing(log=1, evaluate=3, save=1, score_records=0, samples=0, film=False),
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

    def work(self, run: Path, recipe: Recipe, always: Act | None = None) -> Work:
        return watched(run.parent, lambda: go_on(run, recipe), always)

    def fault(self, run: Path, *ended: Outcome) -> str:
        """Return what was lost, or "": a run that was trained is as the one nothing disturbed, to the last bit."""
        if unclear := [outcome.unclear() for outcome in ended if outcome.unclear()]:
            return unclear[0]
        return compare_runs(run, self.reference) if any(outcome.code == 0 for outcome in ended) else ""

    def again(self, run: Path, ended: list[Outcome]) -> str:
        """Return what stands in the way of a training after both were refused, or ""."""
        if any(outcome.code == 0 for outcome in ended):
            return ""
        third = forking.run(self.work(run, self.good))
        return f"nobody can train there any more: {third.err[-300:]}" if third.code else self.fault(run, third)


def watched(home: Path, work: Work, always: Act | None) -> Work:
    """Return the work with an act before each file call, also those that only look."""

    def begun() -> int:
        if always is not None:
            Calls(home, always=always, looks=True).watch()
        return work()

    return begun


def compare_runs(run: Path, reference: Path) -> str:
    """Return what is missing or other in a run that should be as another, or ""."""
    missing = [name for name in os.listdir(reference) if not (run / name).exists()]
    if missing:
        return f"it ended with exit code 0, and {', '.join(sorted(missing))} is missing"
    try:
        return "; ".join([*differences(RunFolder(run), RunFolder(reference)), *litter(run)])
    except (ClearheadError, OSError, LookupError) as error:  # whatever is wrong with what is left of the run
        return f"the run is damaged: {error}"


def both(works: list[Callable[[Act], Work]], draw: random.Random) -> list[Outcome]:
    """Begin works at once, each with delays of its own at its file calls; return how they ended."""
    share = draw.choice((0.02, 0.1, 0.5))
    children = [forking.start(work(delays(draw.random(), share))) for work in works]
    return [child.wait() for child in children]


def none_won(ended: list[Outcome]) -> str:
    return "" if any(one.code == 0 for one in ended) else f"both were refused: {[one.err[-200:] for one in ended]}"


@attack("pairs-train", "two trainings begun in one folder at once, with delays at every file call")
def trainings(home: Path, tries: Tries) -> Row:
    pair = Pair(home)

    def case(i: int, draw: random.Random) -> str:
        run = pair.new()
        recipes = draw.choice([(pair.good, pair.good), (pair.good, pair.good), (pair.good, pair.bad)])
        ended = both([lambda act, recipe=recipe: pair.work(run, recipe, act) for recipe in recipes], draw)
        return pair.fault(run, *ended) or pair.again(run, ended)

    return tries.each(None, case, full=150, short=6)


@attack("pairs-resume", "two resumes of one run begun at once, with delays at every file call")
def resumes(home: Path, tries: Tries) -> Row:
    pair = Pair(home)
    half = begun(home / "half", pair.good, at=2)

    def case(i: int, draw: random.Random) -> str:
        run = pair.new()
        run.parent.mkdir()
        copy(half, run)
        ended = both([lambda act: pair.work(run, pair.good, act)] * 2, draw)
        return none_won(ended) or pair.fault(run, *ended)

    return tries.each(None, case, full=50, short=4)


def arms_of(home: Path) -> list[Arm]:
    """Return two arms of a comparison, each of them a run of three steps."""
    recipe = short_recipe(home)
    other = replace(recipe, batching=replace(recipe.batching, tokens=64))
    return [Arm(name="a", recipe=recipe), Arm(name="b", recipe=other)]


def compare_in(folder: Path, arms: list[Arm]) -> int:
    """Compare in this process, which has imported everything; a worker would need seconds for it."""
    curves.figure_of = lambda lines, title: Sketch()  # type: ignore[assignment]
    comparing.run_all = run_here
    comparing.prepare_text = lambda jobs, log: None
    comparing.draw_comparison = lambda *args: None
    return said_error(lambda: compare(folder, arms, seeds=(1,), log=quiet))


def run_here(jobs: Sequence[TrainingJob], parallel: int, log: object) -> dict[str, str]:
    """Do jobs in this process; return why some have failed, as the workers do."""
    problems: dict[str, str] = {}
    for job in jobs:
        try:
            work_on(job)
        except ClearheadError as error:
            problems[job.name] = str(error)
    return problems


@attack("pairs-compare", "two comparisons begun in one folder at once, with delays at every file call")
def comparisons(home: Path, tries: Tries) -> Row:
    arms = arms_of(home)
    reference = home / "reference"
    if (ended := forking.run(lambda: compare_in(reference, arms))).code:
        raise RuntimeError(f"the comparison that nothing disturbs failed: {ended.err}")

    def case(i: int, draw: random.Random) -> str:
        folder = home / "runs" / "all"
        shutil.rmtree(folder.parent, ignore_errors=True)
        ended = both([lambda act: watched(folder.parent, lambda: compare_in(folder, arms), act)] * 2, draw)
        problem = none_won(ended) or next((one.unclear() for one in ended if one.unclear()), "")
        for name in ("a-seed1", "b-seed1"):
            problem = problem or compare_runs(folder / name, reference / name)
        written = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        problem = problem or ("" if written == sorted(os.listdir(reference)) else f"there are {written}")
        failures = [] if problem else json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["failed"]
        return problem or (f"the comparison lacks a run: {failures}" if failures else "")

    return tries.each(None, case, full=20, short=2)


@attack(
    "pairs-import",
    "two imports into one folder begun at once: one is whole, and what the other has begun is not taken from it",
)
def imports(home: Path, tries: Tries) -> Row:
    forking.run(lambda: bool(saved_models.save("bert", home / "source", rows=3)))
    names = sorted(os.listdir(forking_import(home)))

    run = home / "runs" / "run"
    work = lambda act: watched(run.parent, lambda: import_into(home / "source", run), act)  # noqa: E731

    def case(i: int, draw: random.Random) -> str:
        shutil.rmtree(run.parent, ignore_errors=True)
        ended = both([work] * 2, draw) if i % 2 else [interrupted(work, draw)]
        unclear = next((one.unclear() for one in ended if one.unclear()), "")
        if none_won(ended) or unclear:
            return (
                none_won(ended) or unclear if i % 2 else f"what the first had begun was taken from it: {ended[0].err}"
            )
        if i % 2 and (left := sorted(os.listdir(run.parent))) != ["run"]:
            return f"they left {left}"
        return "" if sorted(os.listdir(run)) == names else f"the run has {sorted(os.listdir(run))}"

    return tries.each(None, case, full=40, short=6)


def interrupted(work: Callable[[Act], Work], draw: random.Random) -> Outcome:
    """Stop an import while it writes; another begins and is killed before it renames; return how the first ends."""
    first = forking.start(work(stop_at(begins=draw.choice(("open .model.json", "open .recipe.json", "rename .run.")))))
    wait_for_stop(first)
    second = forking.start(work(stop_at(begins="rename .run.")))
    wait_for_stop(second)
    for child, number in ((second, signal.SIGKILL), (first, signal.SIGCONT)):
        child.send(number)
    second.wait()
    return first.wait()


def import_into(source: Path, run: Path) -> int:
    return said_error(lambda: import_model(source, run, device="cpu", log=quiet))


def forking_import(home: Path) -> Path:
    """Import once, undisturbed."""
    ended = forking.run(lambda: import_into(home / "source", home / "whole"))
    if ended.code:
        raise RuntimeError(f"the import that nothing disturbs failed: {ended.err}")
    return home / "whole"


@attack(
    "pairs-stop", "a training stopped at each of its file calls while another begins, and is stopped on its way too"
)
def stops(home: Path, tries: Tries) -> Row:
    """Once the first has the lock, the other can only be refused: of those calls every tenth will do."""
    pair = Pair(home)
    cases: list[tuple[str, int, str, str]] = []
    for ways in ("good good", "good bad", "bad good"):
        made = calls_of(pair, ways)
        locked = made.index("fcntl.flock .lock") + 1
        early = [n for n in range(1, len(made) + 1) if n <= locked or made[n - 1].startswith("r")]
        late = [n for n in range(locked + 1, len(made) + 1) if n % 10 == 0 or len(made) < 100]
        cases += [(ways, n, made[n - 1], stop) for n in early if n <= locked for stop in MIDWAY]
        cases += [(ways, n, made[n - 1], "") for n in sorted({*early, *late})]
    return tries.each(cases, lambda case, draw: stopped_at(pair, *case), full=400, short=40)


def calls_of(pair: Pair, ways: str) -> list[str]:
    """Return the file calls of the first of the two when nothing disturbs it."""
    run, recipe = pair.new(), getattr(pair, ways.split(maxsplit=1)[0])

    def work() -> list[str]:
        calls = Calls(run.parent, looks=True).watch()
        go_on(run, recipe)
        return calls.made

    return forking.run(work).value


def stopped_at(pair: Pair, ways: str, n: int, call: str, stop: str) -> str:
    """Stop the first before its n-th call and begin the second, which goes on to its end or to a call that begins with
    `stop`. Then the first goes on to its end, and then the second. Return what was lost, or "".
    """
    run = pair.new()
    children: list[Child] = []
    for way, act in zip(ways.split(), (stop_at(count=n), stop_at(begins=stop)), strict=True):
        children.append(forking.start(pair.work(run, getattr(pair, way), act)))
        wait_for_stop(children[-1])
    ended: list[Outcome] = []
    for child in children:
        if child.status is None:
            child.send(signal.SIGCONT)
        ended.append(child.wait())
    return pair.fault(run, *ended) or pair.again(run, ended)


def wait_for_stop(child: Child) -> None:
    """Wait until a child has stopped itself, or ended."""
    status = os.waitpid(child.number, os.WUNTRACED)[1]
    if not os.WIFSTOPPED(status):
        child.status = status


@attack("readers", "loads of a run, again and again, while another process trains it")
def readers(home: Path, tries: Tries) -> Row:
    recipe = recipe_of(home)
    row, draw = Row(""), tries.draw()
    recipe = replace(
        recipe, checkpointing=replace(recipe.checkpointing, save=1, checkpoints=1), seed=draw.randrange(100)
    )
    while row.tried < (tries.count or (60 if tries.short else 300)):
        run = home / "read"
        child = forking.start(lambda run=run: go_on(run, recipe))
        loaded = False
        while not child.ended():
            if RunFolder(run).exists():
                loaded = load_once(row, run, loaded)
        if problem := child.wait().unclear():
            row.add(problem, "the run in training")
        shutil.rmtree(run)
    return row


def load_once(row: Row, run: Path, loaded: bool) -> bool:
    """Load a run; return whether it ever was loaded, after which a load may not fail."""
    try:
        load(run, device="cpu", log=lambda line: None)
    except ClearheadError as error:
        row.add(str(error) if loaded else "", f"load {row.tried}")
        return loaded
    except BaseException as error:
        row.add(f"{type(error).__name__}: {error}", f"load {row.tried}")
        return loaded
    row.add("", "")
    return True
