"""Something made once for all workers of a session: a run takes seconds to train, and many tests want the same."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class MadeWhenAsked(dict[str, Any]):
    """Values by name, each made when it is first asked for: training some tokenizers starts threads, which no file may.

    >>> MadeWhenAsked(str.upper)["a"]
    'A'
    """

    def __init__(self, make: Callable[[str], Any]) -> None:
        self.make = make

    def __missing__(self, name: str) -> Any:
        made = self[name] = self.make(name)
        return made


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder of this name that `make` has filled; the other workers wait for the first that asks.

    What lies there is every test's: whoever changes it takes a copy.
    """
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    shared.mkdir(exist_ok=True)
    folder, done = shared / name, shared / f"{name}.done"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
