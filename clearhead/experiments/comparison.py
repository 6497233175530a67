"""What a comparison found: every run, the mean and spread of every arm over its seeds, and the table of them.

The picture of a comparison: what each arm reached, what it cost, how it got there, and recall by distance.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clearhead.colours import ROLES
from clearhead.plots.curves import DARK, add_grid, save_svg, spread
from clearhead.training.folder import RunFolder
from clearhead.training.reporting import read_metrics, replace_nonfinite
from clearhead.training.tasks import ACCURACY, LOSS, Measure, task_named

Number = int | float


class Mean(NamedTuple):
    """Over the seeds: the mean, the sample standard deviation (None of a single run), the least and the most."""

    mean: float
    spread: float | None
    least: float
    most: float
    runs: int


EXACT = Measure("exact_match", "exact match %", 100)
OF_PROBES: dict[str, tuple[Measure, ...]] = {
    "copy": (EXACT, LOSS),
    "sort": (EXACT, LOSS),
    "recall": (ACCURACY, LOSS),
}
"""What tells how good a model is that learned a probe, the main one first. A task says so itself (`Task.measures`)."""
SPEED = Measure("tokens_per_second", "tokens/s", digits=0)
COST = (
    SPEED,
    Measure("memory_mb", "peak MB", digits=0),
    Measure("parameters", "parameters", digits=0),
    Measure("steps", "steps", digits=0),
)


@dataclass(frozen=True, kw_only=True)
class Impossible:
    """An arm that cannot be built, and why."""

    arm: str
    why: str


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run that came to no end."""

    arm: str
    seed: int
    run: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """One run. `numbers` are its scores, speed, peak memory (of its process, or on a GPU of the device), parameters
    and steps; `evaluations` what it scored on the way; `by_distance` the accuracy of recall."""

    arm: str
    seed: int
    run: str
    best_step: int
    training_seconds: float
    numbers: Mapping[str, Number]
    evaluations: tuple[Mapping[str, Number | None], ...] = ()
    by_distance: Mapping[int, float] | None = None


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """An arm in the table."""

    arm: str
    runs: int
    numbers: Mapping[str, Mean]
    by_distance: Mapping[int, Mean]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that was found. `parallel` is how many runs shared the machine at a time: speeds suffer from it."""

    folder: str
    task: str
    probe: str | None
    parallel: int
    budget: Mapping[str, Number]
    outcomes: tuple[FinishedRun, ...]
    failures: tuple[FailedRun, ...] = ()
    impossible: tuple[Impossible, ...] = ()

    @property
    def quality(self) -> tuple[Measure, ...]:
        return task_named(self.task).measures if self.probe is None else OF_PROBES[self.probe]

    @property
    def main(self) -> Measure:
        """Return the measure that decides."""
        return self.quality[0]

    @property
    def rows(self) -> list[ComparisonRow]:
        """Return the arms that have a run, in the order in which they were given."""
        arms = dict.fromkeys(outcome.arm for outcome in self.outcomes)
        return [row_of(arm, [outcome for outcome in self.outcomes if outcome.arm == arm], self.columns) for arm in arms]

    @property
    def columns(self) -> tuple[Measure, ...]:
        return (*self.quality, *COST)

    @property
    def distances(self) -> list[int]:
        return sorted({distance for outcome in self.outcomes for distance in outcome.by_distance or {}})

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the head and the rows, as text: quality with its spread, cost without."""
        head = ["", *(column.name for column in self.columns), "runs"]
        return head, [[row.arm, *self.cells(row), str(row.runs)] for row in self.rows]

    def cells(self, row: ComparisonRow) -> list[str]:
        numbers = row.numbers
        cost = [measure.shown(numbers[measure.key].mean) for measure in COST]
        quality = ((measure, numbers[measure.key]) for measure in self.quality)
        return [*(measure.shown(number.mean, number.spread) for measure, number in quality), *cost]

    def distance_table(self) -> tuple[list[str], list[list[str]]]:
        """Return the accuracy in per cent by the tokens to the key."""
        head = ["accuracy % at", *map(str, self.distances)]
        return head, [
            [
                row.arm,
                *(
                    ACCURACY.shown(accuracy.mean, accuracy.spread)
                    if (accuracy := row.by_distance.get(distance))
                    else "–"
                    for distance in self.distances
                ),
            ]
            for row in self.rows
        ]

    def notes(self) -> Iterator[str]:
        """Return what a reader must know beside the table."""
        if any(row.runs > 1 for row in self.rows):
            yield "mean ± sample standard deviation over the seeds"
        if self.parallel > 1:
            yield f"{self.parallel} runs shared the machine at a time, so tokens/s are lower than alone"
        for failure in self.failures:
            yield f"{failure.arm}, seed {failure.seed}, failed: {failure.problem}"
        for arm in self.impossible:
            yield f"{arm.arm} is not possible: {arm.why}"

    def markdown(self) -> str:
        """Return the tables and every run as a page of Markdown."""
        parts = [
            f"# {self.probe or self.task}: {', '.join(f'{value:g} {name}' for name, value in self.budget.items())}",
            markdown_table(*self.table()),
        ]
        if self.distances:
            parts.append(markdown_table(*self.distance_table()))
        if notes := list(self.notes()):
            parts.append("\n".join(f"- {note}" for note in notes))
        every = [
            [outcome.arm, str(outcome.seed), *(column.shown(value_of(outcome, column)) for column in self.columns)]
            for outcome in self.outcomes
        ]
        parts += ["Every run:", markdown_table(["", "seed", *(column.name for column in self.columns)], every)]
        return "\n\n".join(parts) + "\n"

    def to_json(self) -> Any:
        """Return all of it, with every run, for JSON."""
        return replace_nonfinite(
            {
                "folder": self.folder,
                "task": self.task,
                "probe": self.probe,
                "budget": dict(self.budget),
                "parallel": self.parallel,
                "measures": [measure.key for measure in self.quality],
                "arms": [
                    {
                        "arm": row.arm,
                        "runs": row.runs,
                        **{key: mean._asdict() for key, mean in row.numbers.items()},
                        "by_distance": {str(key): mean._asdict() for key, mean in row.by_distance.items()},
                    }
                    for row in self.rows
                ],
                "runs": [asdict(outcome) for outcome in self.outcomes],
                "failed": [asdict(failure) for failure in self.failures],
                "not_possible": [asdict(arm) for arm in self.impossible],
            }
        )


def row_of(arm: str, outcomes: Sequence[FinishedRun], columns: Sequence[Measure]) -> ComparisonRow:
    far = sorted({distance for outcome in outcomes for distance in outcome.by_distance or {}})
    return ComparisonRow(
        arm=arm,
        runs=len(outcomes),
        numbers={column.key: mean_of([value_of(outcome, column) for outcome in outcomes]) for column in columns},
        by_distance={
            distance: mean_of([outcome.by_distance[distance] for outcome in outcomes if outcome.by_distance])
            for distance in far
        },
    )


def value_of(outcome: FinishedRun, measure: Measure) -> float:
    """Return a number of a run; NaN if it was not measured: without scored records a translation has only a loss."""
    return float(outcome.numbers.get(measure.key, math.nan))


def mean_of(values: Sequence[float]) -> Mean:
    mean = statistics.fmean(values)
    return Mean(
        mean=mean,
        spread=math.dist(values, [mean] * len(values)) / math.sqrt(len(values) - 1) if len(values) > 1 else None,
        least=min(values),
        most=max(values),
        runs=len(values),
    )


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def outcome_of(folder: RunFolder, *, arm: str, data: Path, recall: Mapping[str, Any] | None = None) -> FinishedRun:
    """Return what a run folder says of a run that has ended. `data` is where its token ids are."""
    evaluation = folder.read_evaluation()
    lines = read_metrics(folder.metrics)
    steps = [line for line in lines if line["kind"] == "step"]
    numbers = {key: value for key, value in evaluation.items() if isinstance(value, int | float)}
    task = task_named(folder.recipe().task)
    numbers |= task.derived_scores(numbers["loss"], data / folder.read_description()["data"] / "dev")
    if recall is not None:
        numbers["accuracy"] = recall["accuracy"]
    if steps:  # a log that was lost has none
        numbers["tokens_per_second"] = steps[-1]["tokens_per_second"]
        numbers["memory_mb"] = max(line["memory_mb"] for line in steps)
    numbers["steps"] = steps[-1]["step"] if steps else folder.checkpoints.all()[0].step
    keys = [measure.key for family in (task.measures, *OF_PROBES.values(), COST) for measure in family]
    return FinishedRun(
        arm=arm,
        seed=folder.recipe().seed,
        run=str(folder.path),
        best_step=evaluation["step"],
        training_seconds=evaluation["training_seconds"],
        numbers={key: numbers[key] for key in keys if key in numbers},
        evaluations=tuple(
            {"step": line["step"], "loss": line["loss"], **line["scores"]}
            for line in lines
            if line["kind"] == "evaluation"
        ),
        by_distance=None if recall is None else {int(key): accuracy for key, accuracy in recall["by_distance"].items()},
    )


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
    """Return a value in the unit it is shown in; NaN, which is not drawn, if there is none."""
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
