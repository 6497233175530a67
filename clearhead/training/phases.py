"""Signs of life: a line for every phase that takes longer than a few seconds, and again every ten."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

FIRST, NEXT = 8.0, 10.0
"""Seconds until the first line, and between those after it."""


def to_stderr(text: str) -> None:
    """Print a line for the user: where `log` is told if nothing else is asked for."""
    print(text, file=sys.stderr)


@contextlib.contextmanager
def phase(name: str, log: Callable[[str], None], *, first: float = FIRST, each: float = NEXT) -> Iterator[None]:
    """Log the name of what goes on within, with the seconds so far, for as long as it takes.

    What is over before `first` seconds is not worth a line.
    """
    over = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        wait = first
        while not over.wait(wait):
            log(f"{name}: {time.monotonic() - began:.0f} s so far")
            wait = each

    thread = threading.Thread(target=tell, name=f"phase {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
