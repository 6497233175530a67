"""What every plot shares: its quiet colours, how its axes look, labels that do not overlap, and how it is saved."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.errors import RunError
from clearhead.extras import check_extra
from clearhead.files import replacing

# It takes a while to import, and most who import this file do not draw.
if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

QUIET, GRID, DARK = "#555555", "#E6E6E6", "#222222"


def save_svg(draw: "Callable[[], matplotlib.figure.Figure]", path: Path, *, what: str) -> None:
    """Draw a figure and write it as an SVG; the same figure gives the same bytes. RunError where it cannot be written.

    Without matplotlib (the extra `plots`) it raises OptionError.

    `what` is how the error calls the picture: "the curves".
    """
    check_extra("matplotlib", extra="plots", what="A plot")
    import matplotlib

    try:
        # The salt makes the ids in the file the same each time; text as paths needs no font where it is looked at.
        with replacing(path) as partial, matplotlib.rc_context({"svg.hashsalt": "clearhead", "svg.fonttype": "path"}):
            draw().savefig(partial, format="svg", metadata={"Date": None, "Creator": None})
    except OSError as error:
        raise RunError(f"{path}: {what} cannot be written there: {error.strerror or error}") from error


def add_grid(axes: "matplotlib.axes.Axes") -> None:
    """Draw a quiet grid behind a panel, and leave its upper and right edges open."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move rising heights at least `gap` apart, and all of them back to where they were on average.

    >>> spread([0.25, 0.25], 0.5)
    [0.0, 0.5]
    """
    moved = list(accumulate(heights, lambda below, height: max(height, below + gap)))
    down = (sum(moved) - sum(heights)) / max(len(heights), 1)
    return [height - down for height in moved]
