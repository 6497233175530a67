"""`clearhead runs`: list run folders, how far each has come, and its scores."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from clearhead.cli.options import Parts
from clearhead.cli.progress import ASKED, SCORES, format_main_score
from clearhead.cli.screen import align_table, keep_on_one_line, prose, rule, show, show_json
from clearhead.errors import ClearheadError, WordError
from clearhead.model.describe import describe
from clearhead.model.sizes import counts_in
from clearhead.options import Option
from clearhead.serialization import check_type
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Origin
from clearhead.training.reporting import replace_nonfinite

EXAMPLES = """\b
Examples:
  clearhead runs
  clearhead runs experiments --json"""

LONGEST = 500
"""The most characters of a problem that are shown."""
MOST_BLOCKS = 500
"""The most blocks of a model whose parameters are counted: more take too long for a list."""
DEPTH = 2
"""How many folders below the given one a run may be."""
MARKS = ("recipe.json", "model.json", "metrics.jsonl", "checkpoints")
"""Names that mark a folder as a run, or the beginning of one."""
HEAD = ("run", "task", "steps", "score", "loss", "size", "disk", "date")
LEFT = ("run", "task", "score", "date")


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run folder. If it is broken, `problem` says why, and the rest is what could be read."""

    name: str
    path: str
    task: str | None = None
    steps: int = 0
    finished: bool = False
    scores: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    parameters: int | None = None
    disk_bytes: int = 0
    changed: str = ""
    frames: int = 0
    """Frames of the training's film, beside the checkpoints."""
    problem: str | None = None


def runs(
    folder: Annotated[str, typer.Argument(help="Folder to search, two levels deep.", metavar="FOLDER")] = "runs",
    parts: Parts = None,
    as_json: Annotated[bool, Option("Print the list as one JSON object.", word="json")] = False,
) -> None:
    """List run folders and their scores.

    Each line has the task, steps, score, loss, parameters, size on disk and date of a run.
    """
    home = Path(folder)
    if not home.is_dir():
        raise WordError("FOLDER", f"there is no folder {folder!r}. Train a run: clearhead train --help")
    listed = [look_into(path, home) for path in run_folders(home)]
    if as_json:
        show_json(replace_nonfinite({"folder": folder, "runs": [asdict(run) for run in listed]}))
    else:
        show(*render_page(folder, listed))


def run_folders(home: Path, depth: int = DEPTH) -> list[Path]:
    """Return the folder itself if it is a run, else those in it and below, by name; none is inside a run."""
    if any(os.path.lexists(home / mark) for mark in MARKS):
        return [home]
    if not depth:
        return []
    try:
        inside = sorted(path for path in home.iterdir() if os.path.isdir(path) and not path.name.startswith("."))
    except OSError:
        return [home]
    return [run for path in inside for run in run_folders(path, depth - 1)]


def look_into(path: Path, home: Path) -> RunSummary:
    """Return what a folder holds. Whatever is wrong with it is part of the answer."""
    name = path.name if path == home else str(path.relative_to(home))
    always: dict[str, Any] = {"name": name, "path": str(path)}
    try:
        always |= {"disk_bytes": size_of(path), "changed": last_changed(path)}
        return RunSummary(**always, **read(RunFolder(path)))
    except ClearheadError as error:
        problem = str(error)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    except Exception as error:  # one bad folder, whatever is in it, must not hide the others
        problem = f"cannot be read ({error!r})"
    return RunSummary(**always, problem=next(iter(problem.splitlines()), "cannot be read")[:LONGEST])


def read(folder: RunFolder) -> dict[str, Any]:
    origin = folder.origin()
    imported = isinstance(origin, Origin)
    saved = folder.checkpoints.all()
    evaluated = folder.best_evaluation()
    where = str(folder.evaluation)
    scored = check_type(evaluated.get("scores", evaluated), dict, f"{where}: scores")
    scores = {key: scored[key] for key in (*(measure.key for measure in SCORES), ASKED) if key in scored}
    parameters = check_type(evaluated.get("parameters"), int | None, f"{where}: parameters")
    return {
        "task": origin.task,
        "steps": saved[0].step if saved else 0,
        "finished": bool(saved and saved[0].state["finished"]) and (imported or folder.evaluation.exists()),
        "scores": check_type(scores, dict[str, float], where),
        "loss": check_type(evaluated.get("loss"), float | None, f"{where}: loss"),
        "frames": len(folder.film.steps()),
        "parameters": origin.parameters if imported else parameters or parameters_of(folder, origin.batching.context),
    }


def parameters_of(folder: RunFolder, context: int) -> int | None:
    """Count the parameters of the model; None for a size that it would take long to count."""
    spec = folder.spec()
    large = max((count for _, count in counts_in(spec)), default=0) > 1 << 16
    if large or sum(len(stack.blocks) for stack in spec.stacks) > MOST_BLOCKS:
        return None
    return describe(spec, source=context, target=context).parameters


def size_of(path: Path) -> int:
    """Return the bytes of all files in a folder; a file that goes away meanwhile has none."""
    total = 0
    for inside, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(inside, name)).st_size
            except OSError:
                continue
    return total


def last_changed(path: Path) -> str:
    """Return when something was last written, in UTC."""
    marks = (path / mark for mark in ("evaluation.json", *MARKS))
    times = [os.lstat(mark).st_mtime for mark in marks if os.path.lexists(mark)]
    return datetime.fromtimestamp(max(times, default=path.stat().st_mtime), UTC).isoformat(timespec="seconds")


def render_page(folder: str, listed: list[RunSummary]) -> Iterator[RenderableType]:
    yield rule(f"Runs in {folder}")
    if not listed:
        yield prose("There is none yet. Train one:  clearhead train --help")
    rows = [cells(run) for run in listed if run.problem is None]
    lines = align_table(HEAD, rows, left=LEFT)
    if rows:
        yield next(lines)
    for run in listed:
        if run.problem is None:
            yield next(lines)
        else:
            yield keep_on_one_line(Text.assemble(f"  {run.name}  ", ("broken", "refused"), f"  {run.problem}"))
    if any(not run.finished for run in listed if run.problem is None):
        yield Text()
        yield prose("… not finished. Continue it:  clearhead train RUN --resume", style="quiet")
    yield Text()


def cells(run: RunSummary) -> tuple[str, ...]:
    steps = f"{run.steps:,}" + ("" if run.finished else "…")
    loss = "–" if run.loss is None else f"{run.loss:.4f}"
    parameters = "–" if run.parameters is None else short_count(run.parameters)
    score = format_main_score(run.scores) or "–"
    return run.name, run.task or "", steps, score, loss, parameters, in_bytes(run.disk_bytes), run.changed[:10]


def short_count(count: int) -> str:
    """Return a number of parameters in its short form.

    >>> short_count(980), short_count(1_894_400), short_count(124_439_808)
    ('980', '1.9M', '124M')
    """
    return "".join(scale_units(count, ("", "k", "M", "B", "T")))


def in_bytes(count: int) -> str:
    """Return a size on disk with its unit.

    >>> in_bytes(12), in_bytes(1_234_567)
    ('12 B', '1.2 MB')
    """
    return " ".join(scale_units(count, ("B", "kB", "MB", "GB", "TB")))


def scale_units(count: int, units: tuple[str, ...]) -> tuple[str, str]:
    """Return a count in the largest of the units, each a thousand times the last, that leaves 1 or more."""
    power = min(len(units) - 1, max(0, len(f"{count:,}".split(",")) - 1))
    value = count / 1000**power
    return (f"{value:.1f}" if power and value < 10 else f"{value:.0f}"), units[power]
