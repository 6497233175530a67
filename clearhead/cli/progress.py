"""Progress of a training run: a live display on a terminal, plain lines anywhere else. All of it on stderr."""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from clearhead.cli.screen import THEME, SafeConsole, bar
from clearhead.plots.curves import FAMILIES, LoggedNumber

BAR, INPUT, OUTPUT = 30, 28, 36
"""Columns of the bar, and of the texts of a sample."""
PAUSE = 1.0
"""Seconds between plain lines; evaluations do not wait."""
ASKED = "labels_asked"
"""The score that says how many different labels an accuracy is over."""
SCORES: tuple[LoggedNumber, ...] = tuple(measure for family in FAMILIES.values() for measure in family)

Line = Mapping[str, Any]


class Progress(ABC):
    """A watcher: called with every line of metrics.jsonl, and when a checkpoint was saved."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *failed: object) -> None:
        self.close()

    def __call__(self, line: Line) -> None:
        match line.get("kind"):
            case "step":
                self.step(line)
            case "evaluation":
                self.evaluation(line)
            case "saved":
                self.saved(line)

    def log(self, text: str) -> None:
        """Print a message for the user as it comes."""
        self.console.print(Text(text), soft_wrap=True)

    @abstractmethod
    def step(self, line: Line) -> None: ...

    @abstractmethod
    def evaluation(self, line: Line) -> None: ...

    @abstractmethod
    def saved(self, line: Line) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Leave the terminal as it should be, however training ended."""


class PlainProgress(Progress):
    """A line for each line of metrics, but at most one a second; every evaluation with its samples."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console)
        self.clock = clock
        self.last: float | None = None

    def step(self, line: Line) -> None:
        now = self.clock()
        if self.last is None or now - self.last >= PAUSE:
            self.last = now
            facts = [f"step {format_steps(line)}", f"loss {line['loss']:.4f}", *format_pace(line)]
            self.log("  ".join([*facts, *format_time_left(line)]))

    def evaluation(self, line: Line) -> None:
        for text in render_evaluation(line):
            self.log(text.plain)

    def saved(self, line: Line) -> None:
        """Print nothing: a save is on time, and nobody waits for it."""

    def close(self) -> None:
        """Do nothing: lines need no ending."""


class LiveProgress(Progress):
    """Two lines that stay at the foot of the terminal; evaluations and samples pass above them."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.live: Live | None = None
        self.line: Line = {}
        self.dev = ""
        self.kept = ""

    def step(self, line: Line) -> None:
        self.line = line
        if self.live is None:
            self.live = Live(console=self.console, auto_refresh=False, redirect_stdout=False)
            self.live.start()
            # A second Ctrl-C leaves at once, with no chance to show a cursor that was hidden.
            self.console.show_cursor(True)
        self.draw()

    def evaluation(self, line: Line) -> None:
        for text in render_evaluation(line):
            self.console.print(text, no_wrap=True, overflow="ellipsis")
        scores = format_scores(line["scores"])[: 2 if "macro_f1" in line["scores"] else 1]  # accuracy is not alone
        self.dev = "dev " + (", ".join(scores) or f"loss {line['loss']:.3f}")
        self.draw()

    def saved(self, line: Line) -> None:
        self.kept = f"saved at {line['step']:,}"
        self.draw()

    def draw(self) -> None:
        if self.live is not None:
            self.live.update(Group(*self.foot()), refresh=True)

    def foot(self) -> Iterator[Text]:
        total = self.line.get("total")
        drawn_bar = "" if total is None else bar(self.line["step"] / total, BAR)
        ahead = [(f"  {drawn_bar:<{BAR}}", "weight")] if drawn_bar else []
        yield self.truncate(
            Text.assemble(*ahead, "  ".join(["", f"step {format_steps(self.line)}", *format_time_left(self.line)]))
        )
        facts = [f"loss {self.line['loss']:.4f}", self.dev, *format_pace(self.line), self.kept]
        yield self.truncate(Text("  " + "  ".join(filter(None, facts)), style="quiet"))

    def truncate(self, text: Text) -> Text:
        """Cut a text to the terminal's width: a line that wraps could not be taken back."""
        text.truncate(self.console.width, overflow="ellipsis")
        return text

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


def open_progress(*, quiet: bool = False) -> Progress:
    """Return the progress display that suits where stderr goes."""
    console = SafeConsole(
        quiet=quiet,
        file=sys.stderr,
        theme=THEME,
        highlight=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
    is_live = console.is_terminal and not console.is_dumb_terminal and not quiet
    return LiveProgress(console) if is_live else PlainProgress(console)


def format_steps(line: Line) -> str:
    about = "about " if line.get("about") else ""
    return f"{line['step']:,}" + (f"/{about}{line['total']:,}" if "total" in line else "")


def format_pace(line: Line) -> list[str]:
    memory = [f"{line['memory_mb']:,} MB"] if line["memory_mb"] else []  # 0: the system does not say
    return [f"{line['tokens_per_second']:,} tokens/s", *memory]


def format_time_left(line: Line) -> list[str]:
    """Return the time left at the speed so far; nothing where the end is not known."""
    if "total" not in line or not line["step"]:
        return []
    return [f"{format_duration(max(0, line['total'] - line['step']) * line['seconds'] / line['step'])} left"]


def format_duration(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds.

    >>> format_duration(65.0), format_duration(3700.4)
    ('1:05', '1:01:40')
    """
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}" if hours else f"{minutes}:{seconds_left:02d}"


def format_scores(scores: Mapping[str, Any]) -> list[str]:
    """Return the scores that people know, each with its name, the main one first."""
    texts = []
    for measure in SCORES:
        value = scores.get(measure.key)
        if isinstance(value, int | float):
            name = measure.name or measure.key.replace("_", " ")
            blind = " of one label" if measure.key == "accuracy" and scores.get(ASKED) == 1 else ""
            texts.append(f"{name}{blind} {measure.form.format(measure.factor * value)}")
    return texts


def format_own_scores(scores: Mapping[str, Any]) -> list[str]:
    """Return the scores that only a task of the user's own has, by their keys.

    >>> format_own_scores({"accuracy": 0.9, "span_f1": 0.75})
    ['span f1 0.75']
    """
    usual = {ASKED, *(measure.key for measure in SCORES)}
    own_scores = {key: value for key, value in scores.items() if key not in usual and isinstance(value, int | float)}
    return [f"{key.replace('_', ' ')} {value:.4g}" for key, value in own_scores.items()]


def format_main_score(scores: Mapping[str, Any]) -> str:
    return next(iter(format_scores(scores)), "")


def render_evaluation(line: Line) -> Iterator[Text]:
    """Yield a line of scores, and a line for each sample."""
    facts = "  ".join([f"loss {line['loss']:.4f}", *format_scores(line["scores"]), *format_own_scores(line["scores"])])
    best = ("  best so far", "chosen") if line.get("best") else ""
    yield Text.assemble((f"dev at step {line['step']:,}", "title"), f"  {facts}", best)
    for sample in line.get("samples", ()):
        reference = sample.get("reference")
        differs = reference is not None and reference != sample["output"]
        expected = f"  (wanted: {shorten_line(str(reference), OUTPUT)})" if differs else ""
        yield Text.assemble(
            f"  {shorten_line(sample['input'], INPUT)} ",
            ("→", "quiet"),
            f" {shorten_line(sample['output'], OUTPUT)}",
            (expected, "quiet"),
        )


def shorten_line(text: str, width: int) -> str:
    """Return a text on one line, cut to `width` characters, with nothing in it that a terminal obeys."""
    line = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(line.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
