"""The small runs under attack: begun, gone on with, finished and compared, each in a tenth of a second or so."""

import io
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from clearhead import cli
from clearhead.errors import ClearheadError
from clearhead.model.presets import Size
from clearhead.plots import curves
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Batching, Budget, Checkpointing, Optimizer, Recipe
from clearhead.training.resume import resume
from clearhead.training.schedules import CosineDecay, Last
from clearhead.training.train import train
from tests.attack import forking
from tests.attack.forking import Outcome
from tests.training import small_runs
from tests.training.tiny import differences, quiet, recipe_for

STEPS, SAVE = 6, 2
TINY = Size(1, 8, 2, 2, 16)
TASKS = {
    "translate": small_runs.translating,
    "generate": small_runs.documents,
    "fill": small_runs.filling,
    "classify": small_runs.classifying,
}


def recipe_of(home: Path, task: str = "translate") -> Recipe:
    """Return the recipe of a run of six steps with dropout, an averaged copy, evaluations and pruning."""
    before, small_runs.SIZE = small_runs.SIZE, TINY
    try:
        recipe = recipe_for(TASKS[task], home / f"text-{task}", budget=Budget(steps=STEPS))
    finally:
        small_runs.SIZE = before
    return replace(
        recipe,
        optimizer=Optimizer(lr=1e-2, schedule=CosineDecay(warmup=2), smoothing=0.1, averaging=Last(share=0.5, every=2)),
        batching=Batching(tokens=96, context=small_runs.CONTEXT),
        checkpointing=Checkpointing(log=2, evaluate=3, save=SAVE, score_records=1, samples=1),
    )


class Sketch:
    """A figure that is quick to draw: matplotlib takes longer than all the rest of a small run."""

    def savefig(self, to: Any, **_: Any) -> None:
        if isinstance(to, io.IOBase):
            to.write(b"<svg/>")
        else:
            Path(to).write_bytes(b"<svg/>")


def go_on(run: Path, recipe: Recipe, log: Callable[[str], None] = quiet) -> int:
    """Begin a run, or go on with it, as a user would after a crash; return an exit code, with problems on stderr."""
    curves.figure_of = lambda lines, title: Sketch()  # type: ignore[assignment]
    return said_error(lambda: resume(run, log=log) if RunFolder(run).exists() else train(run, recipe, log=log))


def said_error(work: Callable[[], object]) -> int:
    """Do the work as the command does; return its exit code, with its error on stderr."""
    try:
        work()
    except ClearheadError as error:
        print(f"clearhead: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        return 130
    return 0


def litter(run: Path) -> list[str]:
    """Return what dead processes left in a run that was gone on with, told as problems.

    Of run.json a part may stay until the next resume: the folder was nobody's when it was written.
    """
    left = [path for path in run.rglob(".*") if path.name != ".lock" and not path.name.startswith(".run.json.")]
    return [f"{path.relative_to(run)} was left by a dead process" for path in left]


def command(*args: object) -> Callable[[], int]:
    """Return a function that runs one `clearhead` command, and returns its exit code."""

    def work() -> int:
        curves.figure_of = lambda lines, title: Sketch()  # type: ignore[assignment]
        return cli.run([str(arg) for arg in args])

    return work


def warm_up(home: Path) -> None:
    """Train a run in this process, so that its children find everything imported that is imported late."""
    drawn = curves.figure_of
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            codes = go_on(home / "warm", recipe_of(home)), command("train", home / "warm", "--resume")()
        if any(codes):
            raise RuntimeError("the first run failed")
    finally:
        curves.figure_of = drawn


def make(run: Path, recipe: Recipe) -> Path:
    """Train a run that nothing disturbs."""
    ended = forking.run(lambda: go_on(run, recipe))
    if ended.code:
        raise RuntimeError(f"the undisturbed run failed: {ended.err}")
    return run


class Target(NamedTuple):
    """What is attacked: a recipe, the run of it that nothing disturbed, and one that was killed half-way."""

    home: Path
    recipe: Recipe
    reference: Path
    half: Path

    @classmethod
    def make(cls, home: Path, task: str = "translate") -> "Target":
        recipe = recipe_of(home, task)
        return cls(home, recipe, make(home / "reference", recipe), begun(home / "half", recipe))

    def run(self, name: str, *, half: bool) -> Path:
        """Return the path of a run to attack: there already and half-way, or not there yet."""
        path = self.home / name
        return copy(self.half, path) if half else path

    def finish(self, run: Path, *, metrics: bool = True) -> str:
        """Go on to the end; return what is wrong with how it ends, or "" if it is as the run nothing disturbed.

        Without `metrics` only weights and what the optimiser holds are compared.
        """
        ended = forking.run(lambda: go_on(run, self.recipe))
        if ended.code:
            return f"cannot go on: {ended.unclear() or ended.err.strip()[-400:]} (exit code {ended.code})"
        try:
            found = differences(RunFolder(run), RunFolder(self.reference))
            odd = [one for one in found if metrics or "metrics" not in one]
            return "; ".join([*odd, *litter(run)]).replace(str(run), run.name)
        except (ClearheadError, OSError, LookupError) as error:
            return f"cannot be compared: {error}"


def begun(run: Path, recipe: Recipe, at: int = 2 * SAVE + 1) -> Path:
    """Train a run up to a step, by default after its second checkpoint, and kill it there."""
    ended = signal_in_step(run, recipe, at, 9)
    if ended.code != -9:
        raise RuntimeError(f"the run was not begun: {ended}")
    return run


def signal_in_step(run: Path, recipe: Recipe, at: int, number: int) -> Outcome:
    """Train a run that sends itself a signal before the step after `at`; return how it ends."""
    from clearhead.training import loop

    def work() -> int:
        before = loop.Trainer.step

        def step(trainer: Any, batches: Any) -> None:
            if trainer.done == at:
                os.kill(os.getpid(), number)
            before(trainer, batches)

        loop.Trainer.step = step  # type: ignore[method-assign]
        return go_on(run, recipe)

    return forking.run(work)


def copy(run: Path, to: Path) -> Path:
    """Copy a run folder, links as links."""
    shutil.copytree(run, to, symlinks=True)
    return to


def contents(folder: Path) -> dict[str, bytes | str]:
    """Return everything under a folder: files with their bytes, links with where they lead, folders."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = path.read_bytes() if path.is_file() else "folder"
    return found


def changes(before: dict[str, bytes | str], folder: Path, but: tuple[str, ...] = (".lock",)) -> str:
    """Return which files were changed, added or removed, or ""."""
    after = contents(folder)
    odd = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return ", ".join(name for name in odd if Path(name).name not in but)


def problem_of(outcome: Outcome, allowed: tuple[int, ...]) -> str:
    """Return what is wrong with how a child ended: an unclear error, or an exit code that it may not have."""
    unclear = outcome.unclear()
    if unclear or outcome.code in allowed:
        return unclear
    return f"ended with exit code {outcome.code}: {outcome.err.strip()[-300:]}"
