"""Stopping by signals: Ctrl-C and SIGTERM ask the loop to save and leave; a second Ctrl-C leaves at once."""

import contextlib
import os
import shlex
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import final

from clearhead.errors import RunError

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
"""SIGBREAK, which only Windows has, is how one process asks another to stop there."""
TOLD = b"stopping: it is saved first; Ctrl-C again leaves at once\n"


@final
class Stopping:
    """A context in which signals are recorded instead of obeyed. `asked` is the signal that came, 0 if none has.

    `quiet`: nothing is said of it at once. Several processes that train together say it in the end, in one message.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.signal, self.quiet = 0, quiet
        self.before: dict[int, object] = {}

    def __enter__(self) -> "Stopping":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self.before[number] = signal.signal(number, self.ask)
        return self

    def __exit__(self, *failed: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            os._exit(128 + number)
        self.signal = number
        if self.quiet:
            return
        # Not by print: a signal may come in the middle of one, and a file may not be entered twice.
        with contextlib.suppress(OSError):
            os.write(2, TOLD)


class Stopped(RunError):
    """Training was asked to stop, and saved a checkpoint; `exit_code` is what a shell expects of the signal."""

    def __init__(self, path: Path, step: int, number: int) -> None:
        super().__init__(
            f"stopped at step {step}, and saved; go on with: clearhead train {shlex.quote(str(path))} --resume"
        )
        self.exit_code = 128 + number


class StoppedScoring(RunError):
    """Ctrl-C ended the final scoring: the run is trained and saved, and only evaluation.json is missing."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__(
            f"stopped while scoring: all {step:,} steps are trained and saved, and only the final scores are missing. "
            f"To make them: clearhead train {shlex.quote(str(path))} --resume"
        )
        self.exit_code = 130
