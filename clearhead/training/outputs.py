"""Output files: a command never writes over its own input, nor over a file of a run."""

import os
from collections.abc import Iterable
from pathlib import Path

from clearhead.errors import OptionError
from clearhead.training.claiming import FILES, is_run_name
from clearhead.training.holding import LOCK

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
