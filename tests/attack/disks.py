"""Full disks: a call fails with ENOSPC or EIO, a file may not grow (RLIMIT_FSIZE), and a real small disk (a tmpfs).

The process must say so clearly and leave every checkpoint whole; with room again, the run goes on to the same end.
"""

import errno
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from tests.attack import forking
from tests.attack.calls import Calls, failing_disk, full_disk
from tests.attack.kills import counted, do_at
from tests.attack.small import Target, go_on, problem_of
from tests.attack.table import Row

ENDS = (0, 1)
PAGE = 4096


def attack(home: Path, seed: int, *, short: bool) -> list[Row]:
    draw = random.Random(f"{seed} disks")
    target = Target.make(home)
    most = 1 if short else None
    return [
        at_every_call(target, draw, most, half=False),
        at_every_call(target, draw, most, half=True),
        that_stays_broken(target, draw, 2 if short else None),
        with_small_files(target, draw, 1 if short else 40),
        on_a_small_disk(target, draw, 1 if short else 40),
    ]


def at_every_call(target: Target, draw: random.Random, most: int | None, *, half: bool) -> Row:
    """Let one call fail, each in turn, in a run that begins or goes on."""
    row = Row("a full or broken disk at every file-system call" + (" of a resume" if half else ""))
    made = counted(target, half=half)
    tries = [(k, draw.choice((full_disk, full_disk, failing_disk))) for k in range(1, len(made) + 1)]
    for k, act in tries if most is None else draw.sample(tries, most):
        run = target.run(f"full-{k}", half=half)
        problem = problem_of(do_at(target, run, k, act), ENDS)
        row.add(problem or target.finish(run), f"{act.__name__} at call {k} ({made[k - 1]})")
        shutil.rmtree(run, ignore_errors=True)
    return row


@final
class BrokenDisk(Calls):
    """A disk that is full at one call, and broken at all calls after it."""

    def count(self, name: str, what: Any) -> None:
        before = len(self.made)
        super().count(name, what)
        if self.at < len(self.made) and before < len(self.made):
            failing_disk(name, what)


def that_stays_broken(target: Target, draw: random.Random, most: int | None) -> Row:
    """Let a call fail as on a full disk, and all later ones as on a broken disk: the user is told of the full disk."""
    row = Row("a disk that stays broken: the first error is the one told")
    made = counted(target, half=False)
    # These may fail: the number in the lock, a removal, and making a folder that is there.
    tries = [k for k, call in enumerate(made, start=1) if not re.search(r" \.lock$|^r|^mkdir film$", call)]
    for k in tries if most is None else draw.sample(tries, min(most, len(tries))):
        run = target.run(f"broken-{k}", half=False)

        def work(run: Path = run, k: int = k) -> int:
            BrokenDisk(target.home, k, full_disk).watch()
            return go_on(run, target.recipe, log=lambda line: print(line, file=sys.stderr))

        ended = forking.run(work)
        problem = problem_of(ended, (1,))
        if not problem and os.strerror(errno.ENOSPC) not in ended.err:
            problem = f"it tells of a later error: {ended.err.strip()[-300:]}"
        row.add(problem or target.finish(run), f"call {k} ({made[k - 1]})")
        shutil.rmtree(run, ignore_errors=True)
    return row


def with_small_files(target: Target, draw: random.Random, tries: int) -> Row:
    """Let no file grow beyond a size that is drawn, which tears the file that is written."""
    row = Row("files that may not grow (RLIMIT_FSIZE)")
    largest = max(path.stat().st_size for path in target.reference.rglob("*") if path.is_file())
    for i in range(tries):
        run, most = target.run(f"small-{i}", half=False), int(largest ** draw.uniform(0.2, 1))

        def work(run: Path = run, most: int = most) -> int:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            code = go_on(run, target.recipe)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return code

        problem = problem_of(forking.run(work), ENDS)
        row.add(problem or target.finish(run), f"try {i}, at most {most:,} bytes a file")
        shutil.rmtree(run, ignore_errors=True)
    return row


@contextmanager
def mounted(folder: Path, size: int) -> Iterator[bool]:
    """Mount a disk in memory of so many bytes; False where that is not allowed. Give it back in the end."""
    folder.mkdir()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False, **quiet)
    except OSError:
        done = None
    mounts = done is not None and done.returncode == 0
    try:
        yield mounts
    finally:
        if mounts:
            subprocess.run(["umount", folder], check=True, **quiet)
        os.rmdir(folder)


def on_a_small_disk(target: Target, draw: random.Random, tries: int) -> Row:
    """Train on a disk that is too small, make it larger, and go on."""
    row = Row("a real disk that is too small")
    needed = sum(-(-path.stat().st_size // PAGE) for path in target.reference.rglob("*") if path.is_file())
    for i in range(tries):
        pages = draw.randint(1, 2 * needed)
        with mounted(target.home / f"disk-{i}", pages * PAGE) as mounts:
            if not mounts:
                row.note = "not tried: this user may not mount a disk"
                return row
            run = target.home / f"disk-{i}" / "run"
            problem = problem_of(forking.run(lambda run=run: go_on(run, target.recipe)), ENDS)
            subprocess.run(["mount", "-o", "remount,size=64m", run.parent], check=True)
            row.add(problem or target.finish(run), f"try {i}, {pages} pages of {needed}")
    return row
