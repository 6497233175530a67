"""The curves of a run, drawn from its metrics: the losses, the scores on the dev set, and the learning rate.

What every plot shares: its quiet colours, how its axes look, labels that do not overlap, and how it is saved;
and the plot of methods' grades.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.colours import ROLES
from clearhead.errors import RunError
from clearhead.extras import check_extra
from clearhead.files import replacing

# It takes a while to import, and most who import this file do not draw.

QUIET, GRID, DARK = "#555555", "#E6E6E6", "#222222"


def save_svg(draw: "Callable[[], matplotlib.figure.Figure]", path: Path, *, what: str) -> None:
    """Draw a figure and write it as an SVG; the same figure gives the same bytes. RunError if it cannot be written.

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
    save_svg(lambda: grades_figure(means), path, what="the grades")


def grades_figure(means: Sequence[Mapping[str, Any]]) -> "matplotlib.figure.Figure":
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


# It takes a while to import, and most who import this file do not draw.
if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

FAINT = 0.3


@dataclass(frozen=True, kw_only=True)
class LoggedNumber:
    """A number of the log by its key, and how it is shown: times `factor`, and written as `form` says."""

    key: str
    name: str
    colour: str
    factor: float = 1.0
    form: str = "{:.1f}"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The values of a measure over the steps, not a number where there is a gap."""

    measure: LoggedNumber
    steps: list[int]
    values: list[float]


TRAINING = LoggedNumber(key="loss", name="training", colour=ROLES["query"], form="{:.3f}")
DEV = LoggedNumber(key="loss", name="dev", colour=ROLES["weight"], form="{:.3f}")
RATE = LoggedNumber(key="lr", name="", colour=QUIET, form="{:.2g}")
# The scores of one task, which share a panel.
FAMILIES = {
    "score": (
        LoggedNumber(key="bleu", name="BLEU", colour=ROLES["value"]),
        LoggedNumber(key="chrf", name="chrF", colour=ROLES["key"]),
        LoggedNumber(key="exact_match", name="exact match", colour=ROLES["context"], factor=100.0, form="{:.1f} %"),
    ),
    "percent": (
        LoggedNumber(key="accuracy", name="accuracy", colour=ROLES["value"], factor=100.0, form="{:.1f} %"),
        LoggedNumber(key="macro_f1", name="macro F1", colour=ROLES["key"], factor=100.0, form="{:.1f} %"),
    ),
    "bits a byte": (LoggedNumber(key="bits_per_byte", name="", colour=ROLES["value"], form="{:.3f}"),),
}


def draw_curves(lines: Sequence[Mapping[str, Any]], path: Path, *, title: str = "") -> None:
    """Draw the lines of a metrics log as an SVG; the same lines give the same bytes.

    There are up to three panels over the same steps: the loss in training, smoothed over what it was, with the loss on
    the dev set; the scores on the dev set, if the log has any; and the learning rate. What the log calls the best
    evaluation has a ring around it.
    """
    save_svg(lambda: figure_of(lines, title), path, what="the curves")


def figure_of(lines: Sequence[Mapping[str, Any]], title: str) -> "matplotlib.figure.Figure":
    """Return a figure of the panels that have something to show, one under the other."""
    from matplotlib.figure import Figure

    steps, evaluations = ([line for line in lines if line.get("kind") == kind] for kind in ("step", "evaluation"))
    rate, (unit, scores) = curve_of(steps, RATE), scores_of(evaluations)
    best = [line["step"] for line in evaluations if line.get("best")][-1:]
    heights = [3.2, *([1.6] if scores else []), *([1.0] if rate.steps else [])]
    figure = Figure(figsize=(8, 0.8 + sum(heights)), layout="constrained", facecolor="white")
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    draw_losses(panels[0], curve_of(steps, TRAINING), curve_of(evaluations, DEV))
    if scores:
        draw_scores(panels[1], scores, unit)
    if rate.steps:
        draw_rate(panels[-1], rate)
    ring(panels[1] if scores else panels[0], scores[0] if scores else curve_of(evaluations, DEV), best)
    for axes in panels:
        style(axes)
    last = max((line["step"] for line in [*steps, *evaluations]), default=0)
    panels[-1].set_xlim(0, 1.02 * last or 1)
    panels[-1].set_xlabel("step")
    figure.align_ylabels()
    # A dollar sign in a title is no formula.
    panels[0].set_title(title, loc="left", fontsize=12, color=DARK, parse_math=False)
    return figure


def curve_of(lines: Sequence[Mapping[str, Any]], measure: LoggedNumber) -> Curve:
    """Return the curve of a measure over the lines that have it."""
    measured = [line for line in lines if measure.key in line]
    values = [line[measure.key] for line in measured]
    # NaN makes a gap in the curve.
    points = [math.nan if value is None or math.isinf(value) else value * measure.factor for value in values]
    return Curve(measure=measure, steps=[line["step"] for line in measured], values=points)


def scores_of(evaluations: Sequence[Mapping[str, Any]]) -> tuple[str, list[Curve]]:
    """Return the unit and the curves of the first family of scores that the evaluations have."""
    flat = [{**line.get("scores", {}), "step": line["step"]} for line in evaluations]
    for unit, family in FAMILIES.items():
        curves = [curve_of(flat, measure) for measure in family]
        if nonempty := [curve for curve in curves if curve.steps]:
            return unit, nonempty
    return "", []


def draw_losses(axes: "matplotlib.axes.Axes", training: Curve, dev: Curve) -> None:
    smooth = Curve(measure=training.measure, steps=training.steps, values=smooth_values(training.values))
    plot(axes, training, linewidth=0.8, alpha=FAINT)
    plot(axes, smooth, linewidth=2.0)
    plot(axes, dev, linewidth=1.0, marker="o", markersize=5.0)
    if not training.steps and not dev.steps:
        axes.text(0.5, 0.5, "nothing has been logged yet", transform=axes.transAxes, ha="center", color=QUIET)
    axes.set_ylabel("loss (nats)")
    label_ends(axes, [smooth, dev], gap=0.065)


def draw_scores(axes: "matplotlib.axes.Axes", scores: Sequence[Curve], unit: str) -> None:
    # The first is the main one, and lies on top.
    for curve in reversed(scores):
        plot(axes, curve, linewidth=1.5, marker="o", markersize=4.0)
    from_zero(axes, scores)
    axes.set_ylabel(unit)
    label_ends(axes, scores, gap=0.13)


def draw_rate(axes: "matplotlib.axes.Axes", rate: Curve) -> None:
    plot(axes, rate, linewidth=1.5)
    from_zero(axes, [rate])
    axes.set_ylabel("learning rate")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.locator_params(axis="y", nbins=3)
    label_ends(axes, [rate], gap=0.0)


def plot(
    axes: "matplotlib.axes.Axes",
    curve: Curve,
    *,
    linewidth: float,
    alpha: float = 1.0,
    marker: str = "",
    markersize: float = 4.0,
) -> None:
    """Draw a curve. One or two values are given a marker: without, they would hardly be seen."""
    marker = marker or ("o" if len(curve.steps) <= 2 else "")
    axes.plot(
        curve.steps,
        curve.values,
        color=curve.measure.colour,
        linewidth=linewidth,
        alpha=alpha,
        marker=marker,
        markersize=markersize,
    )


def ring(axes: "matplotlib.axes.Axes", curve: Curve, best: Sequence[int]) -> None:
    """Draw a ring around the best of the evaluations."""
    for step, value in zip(curve.steps, curve.values, strict=True):
        if step in best and math.isfinite(value):
            axes.plot([step], [value], "o", markersize=11, markerfacecolor="none", markeredgecolor=DARK)
            axes.annotate("best", (step, value), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=8)


def from_zero(axes: "matplotlib.axes.Axes", curves: Sequence[Curve]) -> None:
    """Make the panel reach from zero to a little above the highest value."""
    highest = max((value for curve in curves for value in curve.values if math.isfinite(value)), default=0)
    axes.set_ylim(0, 1.15 * highest or 1)


def label_ends(axes: "matplotlib.axes.Axes", curves: Sequence[Curve], *, gap: float) -> None:
    """Write the name and the last value of each curve right of the panel, at least `gap` of its height apart."""
    bottom, top = axes.get_ylim()
    ends = []
    for curve in curves:
        for value in [value for value in curve.values if math.isfinite(value)][-1:]:
            text = f"{curve.measure.name} {curve.measure.form.format(value)}".strip()
            ends.append(((value - bottom) / (top - bottom), text, curve.measure.colour))
    ends.sort()
    for height, (_, text, colour) in zip(spread([end for end, _, _ in ends], gap), ends, strict=True):
        axes.text(1.01, height, text, transform=axes.transAxes, va="center", color=colour, fontsize=10)


def smooth_values(values: Sequence[float]) -> list[float]:
    """Return the mean around each value, over a twentieth of them all and fewer at either end; a gap stays one."""
    half = len(values) // 40
    if not half:
        return list(values)
    sums = [0.0, *accumulate(0.0 if math.isnan(value) else value for value in values)]
    counts = [0, *accumulate(not math.isnan(value) for value in values)]
    means = []
    for index, value in enumerate(values):
        # As many before as after: at the start, where a loss falls steeply, the mean must not run ahead of it.
        reach = min(index, half)
        first, end = index - reach, min(index + reach + 1, len(values))
        means.append(value if math.isnan(value) else (sums[end] - sums[first]) / (counts[end] - counts[first]))
    return means


def style(axes: "matplotlib.axes.Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    add_grid(axes)
