"""A run's metrics while they grow: each line is read once, and a page is sent only the new ones."""

import os
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from clearhead.errors import RunError
from clearhead.files import open_regular
from clearhead.system import NO_LINK, NO_WAIT, check_no_link, has_no_locks, is_alive, try_lock, unlock
from clearhead.training.folder import RunFolder
from clearhead.training.folder_lock import LOCK
from clearhead.training.reporting import parse_line


class Curves:
    """The lines of a metrics file, followed as it grows; from the start again where a resume has cut it back."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, Lock()
        self.lines: list[dict[str, Any]] = []
        self.read, self.last = 0, b""

    def all(self) -> list[dict[str, Any]]:
        """Return every whole line so far, none where there is no file."""
        with self.lock:
            try:
                with open_regular(self.path) as file:
                    self.follow(file)
            except FileNotFoundError:
                self.begin_again()
            except OSError as error:
                raise RunError(f"{self.path}: the metrics cannot be read ({error.strerror or error})") from None
            return self.lines

    def follow(self, file: BinaryIO) -> None:
        """Read new lines after the last known one; start over if the file has changed before it."""
        before = len(self.last)
        file.seek(self.read - before)
        if file.read(before) != self.last:
            self.begin_again()
        file.seek(self.read)
        new = file.read()
        *complete, _ = new.split(b"\n")
        self.lines = [
            *self.lines,
            *(parse_line(line, self.path, len(self.lines) + i) for i, line in enumerate(complete, 1)),
        ]
        if complete:
            self.read += sum(len(line) + 1 for line in complete)
            self.last = complete[-1] + b"\n"

    def begin_again(self) -> None:
        self.lines, self.read, self.last = [], 0, b""

    def after(self, step: int) -> list[dict[str, Any]]:
        """Return the lines past a step in the page's form: `training` or `evaluation`, the scores among the rest."""
        return [flatten_line(line) for line in self.all() if isinstance(line.get("step"), int) and line["step"] > step]


def flatten_line(line: dict[str, Any]) -> dict[str, Any]:
    scores = line.get("scores")
    flat = {key: value for key, value in line.items() if key != "scores"} | (scores if isinstance(scores, dict) else {})
    return flat | {"kind": "training" if line.get("kind") == "step" else line.get("kind")}


def is_training(folder: RunFolder) -> bool:
    """Return whether a process holds the folder. A dead one is known by its number, without touching the lock."""
    try:
        check_no_link(folder.path / LOCK)
        handle = os.open(folder.path / LOCK, os.O_RDONLY | NO_LINK | NO_WAIT)
    except OSError:
        return False
    try:
        number = os.read(handle, 32).decode(errors="replace")
        if not (number.isascii() and number.isdigit()) or not is_alive(int(number)):
            return False
        if not try_lock(handle, shared=True):
            return True
        unlock(handle)
        return False
    except OSError as error:  # without locks, the number of a process that lives must do
        return has_no_locks(error)
    finally:
        os.close(handle)
