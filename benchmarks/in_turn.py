"""Prepare several measurements at once, each in a process of its own, and measure one after the other.

What must be compiled or tuned first takes minutes of a CPU, and a machine with a GPU has many cores. A job is a
function that compiles, and returns the function that measures. `serve_job` runs one in a process that says when it is
ready and then waits for its turn; `Waiting` is the other end of its pipes.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

Job = Callable[[], Callable[[], Iterable[Any]]]
READY = "ready"


def serve_job(job: Job) -> None:
    """Compile, say so, wait for a line, and then print what was measured: a JSON object with its class for each."""
    measure = job()
    print(READY, flush=True)
    sys.stdin.readline()
    for one in measure():
        print(json.dumps({"class": type(one).__name__, **asdict(one)}), flush=True)


class Waiting:
    """A process that has compiled, or still does, and measures when it is asked to."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        self.said: list[str] = []
        self.ready = False

    def wait(self) -> None:
        """Return when it is ready for its turn, or has failed."""
        while not self.ready and (line := self.next_line()):
            self.ready = line.strip() == READY

    def measure(self, classes: Mapping[str, Callable[..., Any]]) -> Iterator[Any]:
        """Let it measure; yield what it prints, and raise where it failed."""
        self.wait()
        if self.ready and self.process.stdin is not None:
            self.process.stdin.close()
        while line := self.next_line():
            if line.startswith('{"class"'):
                kept = json.loads(line)
                yield classes[kept.pop("class")](**kept)
        if self.process.wait():
            errors = [line for line in self.said if "Error" in line]
            raise RuntimeError(" ".join((errors or self.said)[-1:]).strip())

    def next_line(self) -> str:
        line = self.process.stdout.readline() if self.process.stdout is not None else ""
        if line.strip():
            self.said = [*self.said[-40:], line]
        return line
