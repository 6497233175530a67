"""Printing: pages of 80 columns, coloured on a terminal and plain anywhere else."""

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from clearhead.colours import ROLES
from clearhead.errors import OptionError

HEAT = ("#ffffff", "#ffd7af", "#ffaf5f", "#ff8700", "#ff5f00", "#d75f00")
"""Grounds for weights from 0 to 1, with black on them. Terminals of 256 colours have just these."""
THEME = Theme({**ROLES, "title": "bold", "chosen": "bold", "quiet": "dim", "refused": f"bold {ROLES['weight']}"})
WIDTH = 80
EIGHTHS = " ▏▎▍▌▋▊▉"
CLOSED_PIPE = 128 + 13
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, except tab and line end: a label or a run's name may hold them."""


def heat(weight: float) -> Style:
    """Return black on the ground for a weight from 0 to 1."""
    return Style(color="#000000", bgcolor=HEAT[round(min(max(weight, 0.0), 1.0) * (len(HEAT) - 1))])


def escape_controls(text: str) -> str:
    """Escape control characters, so that a terminal shows them and does not obey them.

    >>> escape_controls("red\\x1b[31m")
    'red\\\\x1b[31m'
    """
    return CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class SafeConsole(Console):
    """A console whose own styles reach the terminal, while brackets in texts are no tags, and controls are escaped."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not CONTROLS.search(segment.text):
                yield segment
            else:
                yield Segment(escape_controls(segment.text), segment.style)


def show(*page: RenderableType) -> None:
    """Print a page. If there is no terminal, or NO_COLOR is set, it has no escape codes."""
    console = SafeConsole(
        width=WIDTH, theme=THEME, highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto"
    )
    with console.capture() as captured:
        for part in page:
            console.print(Group(part), crop=False)  # within a group a line that must not wrap does not
    write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def show_json(answer: object) -> None:
    """Print one JSON object, strictly: there is no NaN or Infinity in it."""
    write(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_output(text: str) -> None:
    """Write a model's or a file's text: as it is to a file or a pipe, with controls escaped on a terminal."""
    write(escape_controls(text) if sys.stdout is not None and sys.stdout.isatty() else text)


def write(text: str) -> None:
    """Write to stdout. A reader that has gone away (`| head -1`) is no error, and ends the program quietly."""
    if sys.stdout is None:  # the shell's >&-
        raise OptionError("stdout is closed, so what was found cannot be written; send it to a file, or to /dev/null")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        raise typer.Exit(CLOSED_PIPE) from None


def discard_output() -> None:
    """Send what is still to be written to nowhere: Python flushes stdout when it ends, and would complain again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def rule(title: str) -> Text:
    """Return a line across the page with a title on it."""
    head = f"━━ {title} "
    return Text.assemble((head, "title"), ("━" * (WIDTH - len(head)), "quiet"))


def prose(markup: str, style: str = "") -> RenderableType:
    """Return sentences, wrapped and indented; the roles are written as tags: `the [query]query[/]`."""
    return Padding(Text.from_markup(markup, style=style), (0, 2))


def keep_on_one_line(text: Text) -> RenderableType:
    """Return a row that stays on one line, however wide it is."""
    text.no_wrap, text.overflow = True, "ignore"
    # Alone it would be joined to the end of its line, as a text that may be wrapped.
    return Group(text)


def named_row(name: str, value: str, width: int) -> RenderableType:
    """Return a name in `width` columns and a value, on one line: so a path or a command can be copied."""
    return keep_on_one_line(Text.assemble((f"  {name:<{width}}", "quiet"), value))


def align_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str]
) -> Iterator[RenderableType]:
    """Yield the lines of a table, its head first, none of them wrapped; columns named in `left` go to the left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for style, cells in zip(("title", *("" for _ in rows)), (head, *rows), strict=True):
        columns = zip(head, cells, widths, strict=True)
        aligned = (f"{cell:<{width}}" if name in left else f"{cell:>{width}}" for name, cell, width in columns)
        yield keep_on_one_line(Text("  " + "  ".join(aligned).rstrip(), style=style))


def number(x: float, digits: int = 2) -> str:
    """Return a number to be aligned right; an exact zero is a bare 0."""
    return "0" if x == 0 else f"{x:.{digits}f}".replace("-", "−")


def plain(x: float) -> str:
    """Return a number within a sum of products: 6, 0.5, 0.964."""
    return f"{x:.3g}".replace("-", "−")


def bar(share: float, width: int) -> str:
    """Return a bar of `width` columns for 1, to an eighth of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()
