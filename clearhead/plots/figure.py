"""What every plot shares: its quiet colours, how its axes look, labels that do not overlap, and how it is saved;
and the plot of methods' grades.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.errors import RunError
from clearhead.extras import check_extra
from clearhead.files import replacing

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import matplotlib.figure
# It takes a while to import, and most who import this file do not draw.

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


ACROSS = 3
FIGURE = "average_precision_size"


def draw_grades(means: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the means of a circuits bench as an SVG: average precision, with its 95 % interval, and chance."""
    save_svg(lambda: figure_of(means), path, what="the grades")


def figure_of(means: Sequence[Mapping[str, Any]]) -> "matplotlib.figure.Figure":
    """Return a figure with the methods in one order: that of their mean over all axes."""
    from matplotlib.figure import Figure

    axes_names = list(dict.fromkeys(row["axis"] for row in means))
    by_method: dict[str, list[float]] = {}
    for row in means:
        by_method.setdefault(row["method"], []).append(row[FIGURE]["mean"])
    methods = sorted(by_method, key=lambda method: sum(by_method[method]) / len(by_method[method]))
    down = -(-len(axes_names) // ACROSS)
    figure = Figure(figsize=(12, 0.6 + down * (0.8 + 0.24 * len(methods))), layout="constrained", facecolor="white")
    across = min(ACROSS, len(axes_names))
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flatten()
    for name, panel in zip(axes_names, panels, strict=False):
        for row in means:
            if row["axis"] == name:
                grade, height = row[FIGURE], methods.index(row["method"])
                panel.plot([grade["low"], grade["high"]], [height, height], color=QUIET, linewidth=1.2)
                panel.plot([grade["mean"]], [height], "o", color=DARK, markersize=4)
        programs = max(row["programs"] for row in means if row["axis"] == name)
        panel.set_title(f"{name}: {programs} programs", loc="left", fontsize=10, color=DARK)
        panel.set_yticks(range(len(methods)), methods, fontsize=8)
        panel.set_xlim(0, 1.02)
        add_grid(panel)
    for panel in panels[len(axes_names) :]:
        panel.set_visible(False)
    figure.supxlabel("average precision of edges, with 95 % intervals over programs", fontsize=9, color=QUIET)
    return figure
