"""Stopping by signals: Ctrl-C and SIGTERM ask the loop to save and leave; a second Ctrl-C leaves at once."""

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import final

__all__ = ["Stopping"]

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
