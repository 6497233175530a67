"""What a comparison found: every run, the mean and spread of every arm over its seeds, and the table of them."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from clearhead.training.folder import RunFolder
from clearhead.training.metrics import read_metrics, replace_nonfinite
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


@final
@dataclass(frozen=True, kw_only=True)
class Impossible:
    """An arm that cannot be built, and why."""

    arm: str
    why: str


@final
@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run that came to no end."""

    arm: str
    seed: int
    run: str
    problem: str


@final
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


@final
@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """An arm in the table."""

    arm: str
    runs: int
    numbers: Mapping[str, Mean]
    by_distance: Mapping[int, Mean]


@final
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
    """Return a number of a run; NaN where it was not measured: without scored records a translation has only a loss."""
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
