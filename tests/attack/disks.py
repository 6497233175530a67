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
from tests.attack.table import Row, Tries, attack

ENDS = (0, 1)
PAGE = 4096


def at_every_call(home: Path, tries: Tries, *, half: bool) -> Row:
    """Let one call fail, each in turn, in a run that begins or goes on."""
    target = Target.make(home)
    made = counted(target, half=half)

    def case(one: tuple[int, str], draw: random.Random) -> str:
        run, act = target.run("full", half=half), draw.choice((full_disk, full_disk, failing_disk))
        problem = problem_of(do_at(target.home, lambda: go_on(run, target.recipe), one[0], act), ENDS)
        problem = problem or target.finish(run)
        shutil.rmtree(run, ignore_errors=True)
        return problem

    return tries.each([*enumerate(made, start=1)], case, short=4)


@attack("disk", "a full or broken disk at every file call of a training")
def disk(home: Path, tries: Tries) -> Row:
    return at_every_call(home, tries, half=False)


@attack("disk-resume", "the same in a resume")
def disk_resume(home: Path, tries: Tries) -> Row:
    return at_every_call(home, tries, half=True)


@final
class BrokenDisk(Calls):
    """A disk that is full at one call, and broken at all calls after it."""

    def count(self, name: str, what: Any) -> None:
        before = len(self.made)
        super().count(name, what)
        if self.at < len(self.made) and before < len(self.made):
            failing_disk(name, what)


@attack("disk-broken", "a disk that is full at one call and broken from then on: the first error is the one told")
def that_stays_broken(home: Path, tries: Tries) -> Row:
    target = Target.make(home)
    made = counted(target, half=False)
    # These may fail: the number in the lock, a removal, and making a folder that is there.
    cases = [(k, call) for k, call in enumerate(made, start=1) if not re.search(r" \.lock$|^r|^mkdir film$", call)]

    def case(one: tuple[int, str], draw: random.Random) -> str:
        run = target.run("broken", half=False)

        def work() -> int:
            BrokenDisk(target.home, one[0], full_disk).watch()
            return go_on(run, target.recipe, log=lambda line: print(line, file=sys.stderr))

        ended = forking.run(work)
        problem = problem_of(ended, (1,))
        if not problem and os.strerror(errno.ENOSPC) not in ended.err:
            problem = f"it tells of a later error: {ended.err.strip()[-300:]}"
        problem = problem or target.finish(run)
        shutil.rmtree(run, ignore_errors=True)
        return problem

    return tries.each(cases, case, short=4)


@attack("disk-limits", "files that may not grow beyond a size (RLIMIT_FSIZE)")
def with_small_files(home: Path, tries: Tries) -> Row:
    target = Target.make(home)
    largest = max(path.stat().st_size for path in target.reference.rglob("*") if path.is_file())

    def case(i: int, draw: random.Random) -> str:
        run, most = target.run("small", half=False), int(largest ** draw.uniform(0.2, 1))

        def work() -> int:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            code = go_on(run, target.recipe)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return code

        problem = problem_of(forking.run(work), ENDS) or target.finish(run)
        shutil.rmtree(run, ignore_errors=True)
        return problem

    return tries.each(None, case, full=40)


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


@attack("disk-real", "a real disk that is too small, and becomes larger before the resume")
def on_a_small_disk(home: Path, tries: Tries) -> Row:
    target = Target.make(home)
    needed = sum(-(-path.stat().st_size // PAGE) for path in target.reference.rglob("*") if path.is_file())

    def case(i: int, draw: random.Random) -> str:
        pages = draw.randint(1, 2 * needed)
        with mounted(target.home / f"disk-{i}", pages * PAGE) as mounts:
            if not mounts:
                return ""
            run = target.home / f"disk-{i}" / "run"
            problem = problem_of(forking.run(lambda: go_on(run, target.recipe)), ENDS)
            subprocess.run(["mount", "-o", "remount,size=64m", run.parent], check=True)
            return problem or target.finish(run)

    with mounted(target.home / "disk", PAGE) as mounts:
        note = "" if mounts else "not tried: this user may not mount a disk"
    return tries.each(None, case, full=40, note=note)
