"""Cancel long work from outside: loops over blocks of rows check whether anyone still waits for the result.

>>> with stopping_when(lambda: True):
...     check_stopped()
Traceback (most recent call last):
clearhead.tracing.stopping.StoppedError: nobody waits for this any more
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

LEFT: ContextVar[Callable[[], bool] | None] = ContextVar("left", default=None)


class StoppedError(Exception):
    """Work was cancelled because nobody waits for its result. It is no fault, and no ClearheadError."""


@contextlib.contextmanager
def stopping_when(is_gone: Callable[[], bool]) -> Iterator[None]:
    """Make `check_stopped` raise in this context once `is_gone()` is true. Other threads are not affected."""
    before = LEFT.set(is_gone)
    try:
        yield
    finally:
        LEFT.reset(before)


def check_stopped() -> None:
    """Raise StoppedError where nobody waits for the result any more."""
    is_gone = LEFT.get()
    if is_gone is not None and is_gone():
        raise StoppedError("nobody waits for this any more")
