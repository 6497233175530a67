"""Logs: a line on stderr for each request and each event of the server. What users send or get is never in them."""

import json
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]


def to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # one write, since other threads write there too
    sys.stderr.flush()


class Logs:
    """Write events as JSON lines, or as text for people.

    Args:
        form: `text` or `json`.
        write: Called with each line.
        now: Returns the time.

    >>> Logs("text", write=print, now=lambda: "12:00:00").event("draining", seconds=30)
    12:00:00 draining seconds=30
    """

    def __init__(
        self,
        form: LogFormat = "text",
        *,
        write: Callable[[str], None] = to_stderr,
        now: Callable[[], str] = lambda: datetime.now(UTC).isoformat(timespec="milliseconds"),
    ) -> None:
        self.form, self.write, self.now = form, write, now

    def event(self, name: str, **facts: object) -> None:
        """Write a line: the time, the event, and facts about it that are not None."""
        given_facts = {key: value for key, value in facts.items() if value is not None}
        if self.form == "json":
            self.write(json.dumps({"time": self.now(), "event": name, **given_facts}, ensure_ascii=False, default=str))
        else:
            self.write(" ".join([self.now(), name, *(f"{key}={value}" for key, value in given_facts.items())]))

    def failure(self, error: BaseException, **facts: object) -> None:
        """Write what an unexpected error was and where."""
        self.event("failure", **facts_of(error), **facts)


class Tracebacks(Logs):
    """Writes unexpected errors alone, each with its traceback: for a person who looks at a run on their own machine."""

    def event(self, name: str, **facts: object) -> None:
        pass

    def failure(self, error: BaseException, **facts: object) -> None:
        self.write("".join(traceback.format_exception(error)).rstrip())


def facts_of(error: BaseException) -> dict[str, object]:
    """Return what an error was and where, without its message: that may quote a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": type(error).__name__, "where": where}
