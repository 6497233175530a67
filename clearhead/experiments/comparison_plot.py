"""The picture of a comparison: what each arm reached, what it cost, how it got there, and recall by distance."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clearhead.colours import ROLES
from clearhead.experiments.comparison import COST, Comparison, ComparisonRow, FinishedRun, Measure
from clearhead.plots.figure import DARK, add_grid, save_svg, spread

# It takes a while to import, and most who import this file do not draw.
if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

COLOURS = (*ROLES.values(), "#666666", "#56B4E9", "#8B5A2B")
LINES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D")
GAP = 0.06
"""How far apart labels are, as a share of a panel's height."""


STEP = Measure("step", "step")


class ArmStyle(NamedTuple):
    """How an arm is drawn: a colour for the first part of its name, a line and a marker for the rest."""

    colour: str
    line: str
    marker: str


class ArmCurve(NamedTuple):
    """Points of an arm, and how far above and below them its runs went."""

    arm: str
    places: list[float]
    values: list[float]
    least: list[float]
    most: list[float]


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draw a comparison as an SVG; the same comparison gives the same bytes.

    Above: the main score of every run, with the mean of each arm, and beside it speed and memory. Below: the score on
    the way there, and of recall the accuracy by distance.
    """
    save_svg(lambda: figure_of(comparison), path, what="the picture")


def figure_of(comparison: Comparison) -> "matplotlib.figure.Figure":
    from matplotlib.figure import Figure

    rows, looks = comparison.rows, looks_of([row.arm for row in comparison.rows])
    above = 0.9 + 0.4 * max(len(rows), 2)
    figure = Figure(figsize=(10, above + 4.2), layout="constrained", facecolor="white")
    upper, lower = figure.subfigures(2, 1, height_ratios=(above, 4.0), squeeze=False)[:, 0]
    panels = upper.subplots(1, 3, sharey=True, width_ratios=(2.2, 1, 1))
    draw_runs(panels[0], comparison, rows, looks)
    for axes, measure in zip(panels[1:], COST, strict=False):
        draw_cost(axes, rows, measure, looks)
    lower_axes = [lower.add_subplot(1, 2 if comparison.distances else 1, 1)]
    measure = on_the_way(comparison)
    by_arm = [[outcome for outcome in comparison.outcomes if outcome.arm == row.arm] for row in rows]
    draw_lines(lower_axes[0], [way_of(outcomes, measure) for outcomes in by_arm], looks, measure)
    lower_axes[0].set_xlabel(STEP.name)
    if comparison.distances:
        lower_axes.append(lower.add_subplot(1, 2, 2))
        draw_distances(lower_axes[1], rows, looks)
    for axes in [*panels, *lower_axes]:
        add_grid(axes)
    budget = ", ".join(f"{value:,g} {name}" for name, value in comparison.budget.items())
    figure.suptitle(f"{comparison.probe or comparison.task}, {budget}", x=0.01, ha="left", fontsize=12, color=DARK)
    return figure


def looks_of(arms: Sequence[str]) -> dict[str, ArmStyle]:
    """Return a look for each arm; arms whose names begin alike share a colour."""
    firsts, rests = (list(dict.fromkeys(arm.partition("-")[part] for arm in arms)) for part in (0, 2))
    return {
        arm: ArmStyle(
            COLOURS[firsts.index(arm.partition("-")[0]) % len(COLOURS)],
            LINES[rests.index(arm.partition("-")[2]) % len(LINES)],
            MARKERS[rests.index(arm.partition("-")[2]) % len(MARKERS)],
        )
        for arm in arms
    }


def draw_runs(
    axes: "matplotlib.axes.Axes", comparison: Comparison, rows: Sequence[ComparisonRow], looks: Mapping[str, ArmStyle]
) -> None:
    """Draw a marker for every run and a bar at the mean, the first arm on top."""
    measure = comparison.main
    for height, row in enumerate(rows):
        look = looks[row.arm]
        values = [
            to_shown_unit(outcome.numbers.get(measure.key), measure)
            for outcome in comparison.outcomes
            if outcome.arm == row.arm
        ]
        axes.plot(values, [height] * len(values), look.marker, color=look.colour, markersize=6, alpha=0.6)
        mean = row.numbers[measure.key]
        axes.plot([measure.factor * mean.mean], [height], "|", color=DARK, markersize=18, markeredgewidth=1.6)
        beside = (measure.factor * mean.mean, height)
        axes.annotate(
            measure.shown(mean.mean, mean.spread),
            beside,
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=DARK,
        )
    axes.set_yticks(range(len(rows)), [row.arm for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_color(looks[row.arm].colour)
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.margins(x=0.15)
    axes.set_xlabel(measure.name)


def draw_cost(
    axes: "matplotlib.axes.Axes", rows: Sequence[ComparisonRow], measure: Measure, looks: Mapping[str, ArmStyle]
) -> None:
    means = [row.numbers[measure.key].mean for row in rows]
    axes.barh(range(len(rows)), means, height=0.5, color=[looks[row.arm].colour for row in rows], alpha=0.6)
    for height, mean in enumerate(means):
        axes.annotate(
            f"{mean:,.0f}", (mean, height), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_xlim(0, 1.3 * max(means, default=1))
    axes.locator_params(axis="x", nbins=3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(measure.name)


def on_the_way(comparison: Comparison) -> Measure:
    """Return the main measure, if evaluations have it, else the loss, which they always have."""
    measured = {key for outcome in comparison.outcomes for line in outcome.evaluations for key in line}
    return next(measure for measure in comparison.quality if measure.key in measured)


def way_of(outcomes: Sequence[FinishedRun], measure: Measure) -> ArmCurve:
    by_step = [
        {
            to_shown_unit(line["step"], STEP): to_shown_unit(line.get(measure.key), measure)
            for line in outcome.evaluations
        }
        for outcome in outcomes
    ]
    steps = sorted(set(by_step[0]).intersection(*by_step))
    columns = [[values[step] for values in by_step] for step in steps]
    means = [sum(column) / len(column) for column in columns]
    return ArmCurve(outcomes[0].arm, steps, means, [*map(min, columns)], [*map(max, columns)])


def to_shown_unit(value: int | float | None, measure: Measure) -> float:
    """Return a value in the unit it is shown in; NaN, which is not drawn, where there is none."""
    return math.nan if value is None else measure.factor * value


def draw_lines(
    axes: "matplotlib.axes.Axes", lines: Sequence[ArmCurve], looks: Mapping[str, ArmStyle], measure: Measure
) -> None:
    """Draw the mean of each arm, shaded from its least run to its most, with its name at the end."""
    for line in lines:
        look = looks[line.arm]
        axes.fill_between(line.places, line.least, line.most, color=look.colour, alpha=0.15, linewidth=0)
        axes.plot(line.places, line.values, look.line, color=look.colour, marker=look.marker, markersize=3.5)
    axes.set_ylabel(measure.name)
    name_ends(axes, lines, looks)


def draw_distances(axes: "matplotlib.axes.Axes", rows: Sequence[ComparisonRow], looks: Mapping[str, ArmStyle]) -> None:
    lines = [distance_line(row) for row in rows]
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 104)
    draw_lines(axes, lines, looks, Measure("accuracy", "accuracy % of recall"))
    far = sorted({distance for line in lines for distance in line.places})
    axes.set_xticks(far, [f"{distance:g}" for distance in far])
    axes.minorticks_off()
    axes.set_xlabel("tokens from a key to where it is asked again (up to)")


def distance_line(row: ComparisonRow) -> ArmCurve:
    means = row.by_distance.values()
    return ArmCurve(
        row.arm,
        [float(distance) for distance in row.by_distance],
        [100 * mean.mean for mean in means],
        [100 * mean.least for mean in means],
        [100 * mean.most for mean in means],
    )


def name_ends(axes: "matplotlib.axes.Axes", lines: Sequence[ArmCurve], looks: Mapping[str, ArmStyle]) -> None:
    """Write the name of each arm right of where its line ends, none over another."""
    bottom, top = axes.get_ylim()
    ends = sorted((line.values[-1], line.arm) for line in lines if line.values and math.isfinite(line.values[-1]))
    heights = spread([(value - bottom) / (top - bottom) for value, _ in ends], GAP)
    down = max([0.0, *(height - 1 for height in heights)])
    up = max([0.0, *(down - height for height in heights)])
    for height, (_, arm) in zip(heights, ends, strict=True):
        axes.text(
            1.01, height - down + up, arm, transform=axes.transAxes, va="center", color=looks[arm].colour, fontsize=9
        )
