"""See every file call of a process before it is made: to count, delay or stop it, to kill the process, to let it fail.

Python tells an audit hook about opening, renaming, making and removing, also inside `shutil` and `pathlib`. Writing,
flushing and looking are wrapped. It is for a forked child: an audit hook cannot be taken away again.
"""

import errno
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clearhead.training import checkpoints

CHANGING = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
LOOKING = {"os.listdir", "os.scandir", "fcntl.flock"}
WRITING, STATS = ("fsync", "write", "pwrite", "ftruncate"), ("stat", "lstat")
TO_CHANGE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Act = Callable[[str, Any], None]
"""Is given the name of a call and its first argument, before the call."""


class Calls:
    """The calls under a folder so far, as "open model.json"; before the `at`-th (from 1), `act` is called; `always` is
    called before each. `looks`: calls that change nothing count too.
    """

    def __init__(
        self, home: Path, at: int = 0, act: Act | None = None, *, always: Act | None = None, looks: bool = False
    ) -> None:
        self.home, self.at, self.act, self.always, self.looks = os.path.realpath(home), at, act, always, looks
        self.made: list[str] = []
        self.inside = False
        self.flushed: dict[int, int] = {}
        self.before = {path.stat().st_ino: path.stat().st_size for path in home.rglob("*") if path.is_file()}

    def watch(self) -> "Calls":
        """Begin to count. There is no end: the process must be a child."""
        sys.addaudithook(self.hear)
        for name in (*WRITING, *(STATS if self.looks else ())):
            setattr(os, name, self.wrap(name, getattr(os, name)))
        if hasattr(checkpoints, "save_file"):  # written in Rust, which no audit hook sees
            checkpoints.save_file = self.wrap("save_file", checkpoints.save_file)  # type: ignore[attr-defined]
        return self

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.inside or not args or not (event in CHANGING or (self.looks and event in LOOKING)):
            return
        if event == "open" and (isinstance(args[0], int) or not self.looks):
            changes = isinstance(args[2], int) and args[2] & TO_CHANGE
            if isinstance(args[0], int) or not changes:  # a file made of a handle that is open already
                return
        what = args[0]
        if event in ("os.remove", "os.rmdir") and args[1] >= 0:  # by a name in a folder that is open, as rmtree does
            what = os.path.join(os.readlink(f"/proc/self/fd/{args[1]}"), os.fsdecode(what))
        self.count(event.removeprefix("os."), what)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            what = args[1] if name == "save_file" else args[0] if args else None
            if not self.inside and what not in (1, 2, None):
                self.count(name, what)
            result = function(*args, **named)
            if name == "fsync":
                about = os.fstat(args[0])
                self.flushed[about.st_ino] = about.st_size
            return result

        return counted

    def count(self, name: str, what: Any) -> None:
        if not isinstance(what, str | bytes | int | os.PathLike):
            return
        self.inside = True
        try:
            path = path_of(what)
            if path.startswith("/") and not path.startswith(self.home):
                return
            self.made.append(f"{name} {Path(path).name}")
            if self.always is not None:
                self.always(name, what)
            if len(self.made) == self.at and self.act is not None:
                self.act(name, what)
        finally:
            self.inside = False

    def kill(self, name: str, what: Any) -> None:
        """Kill this process."""
        os.kill(os.getpid(), signal.SIGKILL)

    def tear(self, name: str, what: Any) -> None:
        """Kill the process as if it were in the middle of writing: half of what it has not flushed is there."""
        if name == "fsync" and Path(path_of(what)).is_file():
            about = os.fstat(what)
            kept = self.flushed.get(about.st_ino, self.before.get(about.st_ino, 0))
            os.truncate(path_of(what), kept + max(0, about.st_size - kept) // 2)
        self.kill(name, what)

    def cut_power(self, name: str, what: Any) -> None:
        """Kill the process as if the power failed: of every file that it has written, what was not flushed is lost."""
        for path in Path(self.home).rglob("*"):
            if path.is_file() and not path.is_symlink():
                about = path.stat()
                kept = self.flushed.get(about.st_ino, self.before.get(about.st_ino, 0))
                if about.st_size > kept:
                    os.truncate(path, kept)
        self.kill(name, what)


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


def delays(seed: float, share: float, most: float = 0.003) -> Act:
    """Return an act that waits a little before a share of the calls."""
    draw = random.Random(seed)

    def wait(name: str, what: Any) -> None:
        if draw.random() < share:
            time.sleep(draw.uniform(0, most))

    return wait


def stop_at(*, count: int = 0, begins: str = "") -> Act:
    """Return an act that stops the process before its n-th call, or before the first call that begins so."""
    made = 0

    def stop(name: str, what: Any) -> None:
        nonlocal made, begins
        made += 1
        if made == count or (begins and f"{name} {Path(path_of(what)).name}".startswith(begins)):
            begins = ""
            os.kill(os.getpid(), signal.SIGSTOP)

    return stop
