"""Claim a folder for a run: which folders may be trained in, what is written there first, and which files nothing else
may be written over.

`run.json`, with the run's id, is the first file of a run and `recipe.json` the last before training begins. A run
with the first and without the last was interrupted, and the same command starts it again. A folder that holds
something with a name of ours and is no run of ours is never touched.
"""

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

from clearhead.errors import ClearheadError, DataError, OptionError, RunError, ShardError
from clearhead.files import PARTIAL, os_errors_as_run_errors, remove_partials, write_sealed
from clearhead.model.sizes import Spec
from clearhead.text.templates import ChatTemplate
from clearhead.training.checkpoints import MARKER, UNTRAINED, Checkpoints, check_no_link
from clearhead.training.folder import NGRAMS, PRETRAINED, RunFolder
from clearhead.training.folder_lock import LOCK, Hold
from clearhead.training.recipe import Origin, Recipe
from clearhead.training.reporting import read_metrics
from clearhead.training.tasks import Task

BEGINNING = ("model.json", "checkpoints.json", "data", "checkpoints", PRETRAINED, NGRAMS)
"""Names that a run may have before its recipe.json."""
LATER = ("metrics.jsonl", "evaluation.json", "curves.svg", "tensorboard", "film")
"""Names that a run has only after it."""
PATTERNS = re.compile(r"tokenizer.*\.json|metrics\.\d+\.jsonl|step-.*")
FILES = (
    *("run.json", "recipe.json", "model.json", "checkpoints.json", "evaluation.json", "curves.svg"),
    *("tokenizer.json", "tokenizer.source.json", "tokenizer.target.json", "job.json", "recall.json", "demo.json"),
    *("chat_template.jinja", PRETRAINED, NGRAMS, "baseline.json", "program.json"),
)
"""Every file that is replaced as a whole, of which a killed process may leave a part."""


def is_run_name(name: str) -> bool:
    """Return whether a run's own files or folders have this name."""
    return name in ("run.json", "recipe.json", *BEGINNING, *LATER) or bool(PATTERNS.fullmatch(name))


def find_names(folder: Path) -> list[str]:
    """Return the names in a folder, none if it is not there; RunError if it is no folder that can be read."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{folder}: cannot be written to ({error.strerror}); choose another folder") from None


def check_new(folder: RunFolder) -> None:
    """Raise RunError unless a new run may begin here. Nothing is changed."""
    names = [*filter(is_run_name, find_names(folder.path))]
    if "recipe.json" in names:
        raise RunError(f"{folder.path}: there is a run already; go on with --resume, or choose another folder")
    if "run.json" not in names:
        if names:
            raise RunError(
                f"{folder.path}: holds {list_names(names)}, and is no run of Clearhead's; nothing was touched. "
                "Choose another folder"
            )
        return
    folder.id()
    check_unlinked(folder.path, names)
    if "data" in names:
        for path, folders, files in os.walk(folder.data):
            check_unlinked(Path(path), [*folders, *files])
    steps = [name for name in find_names(folder.path / "checkpoints") if is_run_name(name) and name.startswith("step-")]
    if later := [name for name in names if name in LATER or name.startswith("metrics.")] or steps:
        raise RunError(
            f"{folder.path}: holds {list_names(later)} of a run whose recipe.json is missing; nothing was touched. "
            "Put recipe.json back and go on with --resume, or choose another folder"
        )


def list_names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check_unlinked(folder: Path, names: Iterable[str] = (LOCK, "metrics.jsonl", "tensorboard")) -> None:
    """Raise RunError if one of these names is a link: nothing is written through links."""
    for name in names:
        path = folder / name
        if path.is_symlink():
            raise RunError(
                f"{path}: is a link, and nothing is written through links. Put what it points to in its place"
            )


@contextlib.contextmanager
def leave_nothing(hold: Hold) -> Iterator[None]:
    """Remove what was written to a new folder, if training is refused before it begins.

    An interrupted training keeps its files, and the same command continues it; so does one that could not get a shard
    of its text. What was there before stays too. The folder is held from before the first look to after the last
    removal, so what is new there was made here.
    """
    folder = RunFolder(hold.run)
    before = set(find_names(folder.path))
    try:
        yield
    except ClearheadError as error:
        if hold.guarded and "run.json" not in before and not isinstance(error, ShardError):
            with contextlib.suppress(OSError, RunError):  # the first error counts
                hold.check()
                # recipe.json is the last file before training; but what the model starts from is read after it.
                if not folder.exists() or (isinstance(error, OptionError | DataError) and has_no_step(folder)):
                    remove_new(folder, before)
        raise


def remove_new(folder: RunFolder, before: set[str]) -> None:
    """Remove a run of which no step was trained. Its run.json goes last: a kill in between leaves a run that is begun
    again, and no folder that nobody owns.
    """
    if folder.checkpoints_file.exists() and not folder.checkpoints.folders():
        (folder.checkpoints.folder / MARKER).unlink()
    names = {name for name in find_names(folder.path) if is_run_name(name) or name in FILES}
    for name in sorted(names - before, key=lambda name: name == "run.json"):
        remove_path(folder.path / name)


def has_no_step(folder: RunFolder) -> bool:
    """Return whether a run has nothing that a step of training has written, here or elsewhere."""
    return not folder.metrics.exists() and not folder.checkpoints_file.exists() and not folder.checkpoints.folders()


def remove_path(path: Path) -> None:
    """Remove a file, a link or a whole folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def claim(folder: RunFolder) -> None:
    """Make the locked folder a run of ours: write run.json."""
    check_new(folder)
    if folder.run_file.exists():
        remove_litter(folder)
    else:  # what lies in a folder that is not ours yet is not our litter
        with os_errors_as_run_errors(folder.run_file):
            write_sealed(folder.run_file, {"run": secrets.token_hex(8)})
    with os_errors_as_run_errors(folder.checkpoints_file):
        folder.checkpoints_file.unlink(missing_ok=True)
        folder.pretrained_file.unlink(missing_ok=True)


def write_imported(
    folder: RunFolder,
    spec: Spec,
    task: Task,
    tensors: dict[str, Tensor],
    origin: Origin,
    *,
    chat: ChatTemplate | None,
) -> None:
    """Write a run that was not trained here into a new folder: all that using it needs."""
    claim(folder)
    folder.describe(spec, task, chat=chat)
    folder.checkpoints.create()
    folder.checkpoints.save(0, tensors, {}, {**UNTRAINED, "finished": True})
    folder.begin(origin)


def keep_elsewhere(folder: RunFolder, hold: Hold, checkpoints: str | Path) -> None:
    """Hold a folder for the checkpoints of a claimed run, mark it as this run's, and write checkpoints.json."""
    elsewhere = Path(os.path.abspath(checkpoints))
    check_no_link(elsewhere)
    with os_errors_as_run_errors(elsewhere):
        folder.checkpoints_at(elsewhere).is_marked()  # another folder is refused before it is given a lock
    hold.add(elsewhere)
    folder.checkpoints_at(elsewhere).create()
    folder.write_own(folder.checkpoints_file, {"folder": str(elsewhere)})


def move_checkpoints(folder: RunFolder, place: Path) -> Checkpoints:
    """Return this run's checkpoints in the folder they were moved to; RunError if it is not that folder."""
    check_no_link(place)
    checkpoints = folder.checkpoints_at(Path(os.path.abspath(place)))
    checkpoints.check_marker()
    return checkpoints


def remove_litter(folder: RunFolder) -> None:
    """Remove what killed processes have left of files of a run. The folder is locked, and `data` in it is the run's."""
    with os_errors_as_run_errors(folder.path):
        remove_partials(folder.path, "|".join(map(re.escape, FILES)))
        for name in find_names(folder.data):
            if name.startswith(".") and name.endswith(PARTIAL):
                remove_path(folder.data / name)


def find_evidence_of_checkpoints(folder: RunFolder, recipe: Recipe) -> str | None:
    """Return the file that shows that this run has saved checkpoints, even if they are lost; or None.

    The loop goes on past a step at which it saves only when it has saved.
    """
    if folder.evaluation.exists():
        return folder.evaluation.name
    first = min(recipe.checkpointing.evaluate, recipe.checkpointing.save or recipe.checkpointing.evaluate)
    try:
        lines = read_metrics(folder.metrics)
    except RunError:
        return None if not folder.metrics.exists() or folder.metrics.stat().st_size == 0 else folder.metrics.name
    steps = [line["step"] for line in lines if isinstance(line.get("step"), int)]
    return folder.metrics.name if max(steps, default=0) > first else None


MARKS = ("run.json", "recipe.json")
"""A folder that holds one of these is a run folder."""
DEEP = 4
"""How many folders above a file are searched for a run: its checkpoints and data are at most so deep."""


def check_output(path: Path, *, option: str, inputs: Iterable[str | Path] = ()) -> Path:
    """Return the path if writing there destroys nothing; raise OptionError otherwise, before any work is done."""
    for input_path in inputs:
        if same_file(path, input_path):
            raise OptionError(f"{option}: {path} is {input_path}, which is read; name another file")
    if path.is_dir() or not path.parent.is_dir():
        problem = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise OptionError(f"{option}: {path} cannot be written, {problem}; name a file in a folder that is there")
    real_path = Path(os.path.realpath(path))
    for folder in real_path.parents[:DEEP]:
        name = real_path.relative_to(folder).parts[0]
        is_run = any((folder / mark).exists() for mark in MARKS)
        if is_run and (is_run_name(name) or name in (*FILES, LOCK, "program.json")):
            raise OptionError(f"{option}: {path} is a file of the run {folder.name}; name another file")
    return path


def same_file(path: Path, other: str | Path) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # one of them is not there, so they are not one
        return False
