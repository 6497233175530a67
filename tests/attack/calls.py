"""Count the calls with which a process changes files, and do something just before the k-th of them.

Python tells an audit hook about every open, rename, mkdir and removal, also those inside `shutil` and `pathlib`.
Writing and flushing are wrapped. It is for a forked child: an audit hook cannot be taken away again.
"""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clearhead.training import checkpoints

EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
WRAPPED = ("fsync", "write", "pwrite", "ftruncate")
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Act = Callable[[str, Any], None]
"""Is given the name of a call and its first argument, before the call."""


class Calls:
    """The calls so far, as "open model.json"; before the `at`-th (from 1), `act` is called."""

    def __init__(self, home: Path, at: int = 0, act: Act | None = None) -> None:
        self.home, self.at, self.act = str(home), at, act
        self.made: list[str] = []
        self.inside = False
        self.flushed: dict[int, int] = {}

    def watch(self) -> "Calls":
        """Begin to count. There is no end: the process must be a child."""
        sys.addaudithook(self.hear)
        for name in WRAPPED:
            setattr(os, name, self.wrap(name, getattr(os, name)))
        if hasattr(checkpoints, "save_file"):  # written in Rust, which no audit hook sees
            checkpoints.save_file = self.wrap("save_file", checkpoints.save_file)  # type: ignore[attr-defined]
        return self

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in EVENTS or self.inside:
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & CHANGES):
            return
        if isinstance(args[0], int) and event == "open":  # a file made of a handle that is open already
            return
        self.count(event.removeprefix("os."), args[0])
        if event == "open" and not args[2] & os.O_TRUNC:
            with contextlib.suppress(OSError):
                about = os.stat(args[0])
                self.flushed.setdefault(about.st_ino, about.st_size)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            what = args[1] if name == "save_file" else args[0]
            if what not in (1, 2):
                self.count(name, what)
            result = function(*args, **named)
            if name == "fsync":
                self.remember(args[0])
            return result

        return counted

    def remember(self, handle: int) -> None:
        about = os.fstat(handle)
        self.flushed[about.st_ino] = about.st_size

    def count(self, name: str, what: Any) -> None:
        path = path_of(what)
        if path.startswith("/") and not path.startswith(self.home):
            return
        self.made.append(f"{name} {Path(path).name}")
        if len(self.made) == self.at and self.act is not None:
            self.inside = True
            try:
                self.act(name, what)
            finally:
                self.inside = False

    def kill(self, name: str, what: Any) -> None:
        """Kill this process."""
        os.kill(os.getpid(), signal.SIGKILL)

    def tear(self, share: float) -> Act:
        """Return an act that kills the process as if it were in the middle of writing: part of what it wrote is there.

        What had been flushed before stays, as a kernel would have it.
        """

        def torn(name: str, what: Any) -> None:
            if name == "fsync" and Path(path_of(what)).is_file():
                about = os.fstat(what)
                kept = self.flushed.get(about.st_ino, 0)
                os.truncate(path_of(what), kept + int(share * max(0, about.st_size - kept)))
            self.kill(name, what)

        return torn


def path_of(what: Any) -> str:
    """Return the path that a call is about, also where it was given a handle."""
    if isinstance(what, int):
        try:
            return os.readlink(f"/proc/self/fd/{what}")
        except OSError:
            return f"handle-{what}"
    return os.path.abspath(os.fsdecode(what))


def full_disk(name: str, what: Any) -> None:
    """Fail as a full disk does."""
    if name not in ("remove", "rmdir"):  # removing works on a full disk
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path_of(what))


def failing_disk(name: str, what: Any) -> None:
    """Fail as a broken disk does, with removing too."""
    raise OSError(errno.EIO, os.strerror(errno.EIO), path_of(what))
