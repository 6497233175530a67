"""Curves against the number of GPUs, on logarithmic axes, with a limit drawn across."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from clearhead.colours import ROLES
from clearhead.plots.curves import DARK, QUIET, add_grid, save_svg

# It takes a while to import, and most who import this file do not draw.
if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

STYLES = (("o-", "weight"), ("s--", "query"), ("^-", "value"), ("v:", "context"), ("D-.", "key"))
"""Marks and colours of curves: no meaning hangs on the colour alone."""


@final
@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves by name, each from numbers of GPUs to values. `limit` is a height with its name, drawn across."""

    title: str
    y: str
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    limit: tuple[float, str] | None = None
    logarithmic: bool = True


def draw_panels(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels side by side as an SVG; the same curves give the same bytes."""
    save_svg(lambda: figure_of(panels), path, what="the curves")


def figure_of(panels: Sequence[Panel]) -> "matplotlib.figure.Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * len(panels), 4.2), layout="constrained", facecolor="white")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw_panel(axes, panel)
    return figure


def draw_panel(axes: "matplotlib.axes.Axes", panel: Panel) -> None:
    for (style, role), (name, points) in zip(STYLES, panel.curves.items(), strict=False):
        axes.plot(list(points), list(points.values()), style, color=ROLES[role], label=name, markersize=4)
    if panel.limit is not None:
        height, name = panel.limit
        axes.axhline(height, color=DARK, linewidth=1, linestyle=(0, (4, 3)))
        axes.text(
            0.98, height, name, transform=axes.get_yaxis_transform(), ha="right", va="top", color=QUIET, fontsize=8
        )
    axes.set_xscale("log", base=2)
    numbers = sorted({x for points in panel.curves.values() for x in points})
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers], rotation=45, fontsize=8)
    axes.minorticks_off()
    if panel.logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set(title=panel.title, xlabel="GPUs", ylabel=panel.y)
    axes.title.set_fontsize(10)
    axes.legend(fontsize=8, frameon=False)
    add_grid(axes)
