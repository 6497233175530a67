"""Grades of methods as a picture: a panel for each axis, a row for each method, with its interval."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.plots.figure import DARK, QUIET, add_grid, save_svg

if TYPE_CHECKING:
    import matplotlib.figure

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
