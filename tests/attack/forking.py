"""Run a function in a forked child, so that it can be killed, limited and timed without a new interpreter each time.

Starting Python with torch takes seconds; a fork of a process that has imported everything takes milliseconds. The
parent must have one thread only, so `python -m tests.attack` sets the limits below before anything is imported.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
}
"""Environment variables that keep libraries from starting threads, which a fork would not copy."""
SECONDS = 300
"""How long a child may take before it counts as stuck."""
UNCLEAR = ("Traceback", "this should not happen", "RecursionError", "panicked", "KeyError", "TypeError", "IndexError")
"""Words that must never be in what a user is told."""


class Outcome(NamedTuple):
    """How a child ended: its exit code (negative for a signal), what its function returned, and what it printed."""

    code: int
    value: Any
    out: str
    err: str

    @property
    def stuck(self) -> bool:
        return self.code == -signal.SIGALRM

    def unclear(self) -> str:
        """Return what is wrong with how the child ended, or "" if it succeeded or told its problem clearly."""
        if self.stuck:
            return f"still running after {SECONDS} s"
        if self.code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
            return f"crashed with signal {-self.code}"
        found = [word for word in UNCLEAR if word in self.err]
        if found:
            return f"unclear error ({found[0]}): {self.err.strip()[-300:]}"
        if self.code == 1 and not self.err.strip():
            return "failed without a word"
        return ""


def start(work: Callable[[], Any], *, seconds: float = SECONDS, memory: int | None = None) -> "Child":
    """Fork a child that calls `work`; its JSON-able result, stdout and stderr come back with `Child.wait`.

    An integer result is the exit code too. `memory` bounds how many bytes the child may map beyond what it has.
    """
    files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115 - `Child.wait` closes them
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number == 0:
        code = 70
        try:
            code = run_in_child(work, files, seconds, memory)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    return Child(number, files)


def run_in_child(work: Callable[[], Any], files: list[Any], seconds: float, memory: int | None) -> int:
    for number, file in ((1, files[0]), (2, files[1])):
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    if memory is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    value = work()
    files[2].write(json.dumps(value).encode())
    files[2].flush()
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


class Child:
    """A child at work."""

    def __init__(self, number: int, files: list[Any]) -> None:
        self.number, self.files = number, files
        self.status: int | None = None

    def ended(self) -> bool:
        """Return whether the child has ended, without waiting for it."""
        if self.status is None:
            number, status = os.waitpid(self.number, os.WNOHANG)
            self.status = status if number else None
        return self.status is not None

    def send(self, number: int, after: float = 0.0) -> None:
        """Send a signal after so many seconds."""
        time.sleep(after)
        os.kill(self.number, number)

    def wait(self) -> Outcome:
        status = os.waitpid(self.number, 0)[1] if self.status is None else self.status
        out, err, value = (read_whole(file) for file in self.files)
        code = os.waitstatus_to_exitcode(status)
        return Outcome(code, json.loads(value) if value else None, out.decode(errors="replace"), err.decode("latin-1"))


def read_whole(file: Any) -> bytes:
    with file:
        file.seek(0)
        return file.read()


def in_batches(
    count: int, work: Callable[[int], str], *, first: int = 0, size: int = 50, memory: int | None = None
) -> list[str]:
    """Call `work` with `first` to `count` - 1, so many in each child; return the problems, with their numbers.

    A child that gets stuck or crashes is a problem of the number it was at.
    """
    problems: list[str] = []
    while first < count:
        stop = min(first + size, count)

        def batch(first: int = first, stop: int = stop) -> list[str]:
            found: list[str] = []
            for i in range(first, stop):
                signal.setitimer(signal.ITIMER_REAL, SECONDS)
                os.pwrite(place.fileno(), f"{i:>12}".encode(), 0)
                if problem := work(i):
                    found.append(f"try {i}: {problem}")
            return found

        with tempfile.TemporaryFile() as place:
            ended = run(batch, memory=memory)
            at = int(os.pread(place.fileno(), 12, 0) or first)
        problems += ended.value or []
        problems += [f"tries {first} to {stop - 1}: a library panicked on stderr"] if "panicked" in ended.err else []
        first = stop
        if ended.value is None:
            problems.append(f"try {at}: {ended.unclear() or f'ended with {ended.code}: {ended.err[-300:]}'}")
            first = at + 1
    return problems


def run(work: Callable[[], Any], *, seconds: float = SECONDS, memory: int | None = None) -> Outcome:
    """Run `work` in a child to its end."""
    return start(work, seconds=seconds, memory=memory).wait()
