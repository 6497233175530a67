"""`clearhead kernels`: which kernel serves which part, as promised by hand and held by the tests."""

from collections.abc import Iterator
from typing import Annotated

from rich.console import RenderableType
from rich.text import Text

from clearhead.attention.grid.support import KERNEL_NAMES, PAIRS, REASONS, ROWS
from clearhead.cli.screen import prose, rule, show, show_json
from clearhead.options import Option

EXAMPLES = """\b
Examples:
  clearhead kernels
  clearhead kernels --json"""

SERVED = "yes"
PART = 22
"""Columns of a part's name. What a kernel answers stands under its own name."""


def kernels(as_json: Annotated[bool, Option("Print the table as one JSON object.", word="json")] = False) -> None:
    """List which kernel can compute which kind of attention, and why where it cannot.

    A kernel is one way to compute attention. A part is one of its choices: the similarity, the weighting, the mask, the
    position, the heads.
    """
    if as_json:
        pairs = [
            {"parts": [first, second], "kernels": names(on), "reason": reason} for first, second, on, reason in PAIRS
        ]
        show_json({"kernels": KERNEL_NAMES, "parts": by_axis(), "reasons": REASONS, "pairs": pairs})
    else:
        show(*render_page())


def by_axis() -> dict[str, dict[str, dict[str, str]]]:
    """Return `{axis: {part: {kernel: "yes" or the letter of a reason}}}`."""
    table: dict[str, dict[str, dict[str, str]]] = {}
    for name, cells in ROWS.items():
        axis, part = name.split(" ", 1)
        table.setdefault(axis, {})[part] = cells
    return table


def render_page() -> Iterator[RenderableType]:
    yield rule("Which kernel computes what")
    yield prose(
        "yes: the kernel computes it, with the outputs and gradients of the reference. A letter: the kernel refuses, "
        "with an error that gives the reason below. A kernel computes a call if it can do each of its parts, except "
        "for the pairs at the end. For a part of your own, read the row of its form: the names in parentheses. The "
        "reference computes everything."
    )
    for axis, parts in by_axis().items():
        yield Text()
        yield Text.assemble((f"  {axis:<{PART}}", "title"), *((f" {name}", "title") for name in KERNEL_NAMES))
        for part, cells in parts.items():
            answers = (
                (f" {cells[name]:>{len(name)}}", "quiet" if cells[name] == SERVED else "refused")
                for name in KERNEL_NAMES
            )
            yield Text.assemble(f"  {part:<{PART}}", *answers)
    yield from reasons()


def reasons() -> Iterator[RenderableType]:
    yield Text()
    yield rule("What a refusal says")
    for letter, reason in REASONS.items():
        yield Text.assemble("  ", (letter, "refused"), f"  … {reason} …")
    yield Text()
    yield rule("Each alone, but not together")
    for first, second, on, reason in PAIRS:
        yield Text(f"  {first} + {second}, on {', '.join(names(on)) if on != '*' else 'every kernel'}:")
        yield Text.assemble(("     … ", "refused"), f"{reason} …")
    yield Text()


def names(on: str) -> list[str]:
    """Return the kernels a pair is refused on; a star stands for every one."""
    return list(KERNEL_NAMES) if on == "*" else on.split()
