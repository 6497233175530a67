"""How good a model is: on the validation set while it is trained, and on the user's files by the scores others report.

Each task scores its own answers. References are the text of the files, as it stands there.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from clearhead.errors import OptionError
from clearhead.files import write_text
from clearhead.model.int8 import count_weights, dtype_name
from clearhead.model.transformers import Transformer
from clearhead.text.encoding import Layout
from clearhead.text.lines import Problems
from clearhead.text.preparing import survey
from clearhead.text.sources import Source
from clearhead.training.claiming import check_output
from clearhead.training.folder import RunFolder
from clearhead.training.scores import ACCURACY, EvaluationOptions, ValidationSet
from clearhead.training.tasks.base import Task, loss_of
from clearhead.training.tasks.instruct import with_template


@runtime_checkable
class Evaluable(Protocol):
    """The attributes of a `Run` that evaluation needs. `Run` imports this module, so it cannot be imported here."""

    folder: RunFolder
    task: Task
    model: Transformer
    step: int


def evaluate(
    run: Evaluable, source: Source, how: EvaluationOptions = EvaluationOptions(), *, output: str | Path | None = None
) -> dict[str, Any]:
    """Score a run on a corpus, and return the scores with what they were made of.

    `output`: a file for the translations, or the labels, a line for each record. What is wrong with the files is raised
    before anything slow begins.
    """
    layout = run.task.layout(run.task.context)
    if run.task.chats:
        source = with_template(source, run.folder.chat())
    check_fields(run.task, layout, source)
    file = None if output is None else check_outputs(type(run.task), Path(output), source.files)
    surveyed = survey(source, layout, Problems(skip=how.skip_bad), run.task.labels if layout.label else None)
    started = time.perf_counter()
    scores, outputs = run.task.evaluate(run.model, source, how)
    if file is not None:
        write_text(file, "".join(f"{line}\n" for line in outputs))
    return {
        "run": str(run.folder.path),
        "task": run.task.name,
        "step": run.step,
        "parameters": count_weights(run.model),
        "dtype": dtype_name(run.model),
        "files": list(source.files),
        "n": surveyed.records,
        "skipped": dict(surveyed.skipped),
        **scores,
        "output": None if file is None else str(file),
        "seconds": round(time.perf_counter() - started, 3),
    }


def check_outputs(task: type[Task], path: Path, inputs: Sequence[str]) -> Path:
    """Return the file for the outputs of a task; OptionError if it has none, or they cannot be written there."""
    if not task.outputs:
        raise OptionError(f"output: to {task.name} is scored without outputs, so there are none to write")
    return check_output(path, option="output", inputs=inputs)


def check_fields(task: Task, layout: Layout, source: Source) -> None:
    if not set(layout.fields) <= set(source.fields):
        raise OptionError(
            f"a run that was trained to {task.name} is evaluated on records of {' and '.join(layout.fields)}; "
            f"these have {' and '.join(source.fields)}"
        )


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """Mean loss in nats a place with its standard error, scores by name, and samples with input, output and (where
    there is one) reference. The loss is that of so many `batches`.
    """

    loss: float
    places: int
    standard_error: float | None
    batches: int
    scores: Mapping[str, float]
    samples: list[dict[str, str]] = field(default_factory=list)


def assess(model: Transformer, task: Task, held: ValidationSet) -> Assessment:
    """Return the loss of the held-out records, all or a sample, and the task's own scores."""
    total = loss_of(model, task, held)
    n_targets = max(total.places, 1)
    if held.sample is not None and total.batches < held.sample:  # the time was over: that of outputs is short as well
        held = replace(held, score_records=math.ceil(held.score_records * total.batches / held.sample))
    scores, samples = task.score(model, held)
    if ACCURACY in task.measures:
        scores = {"accuracy": total.right / n_targets, **total.classes, **scores}
    return Assessment(
        loss=total.nats / n_targets,
        places=total.places,
        standard_error=total.standard_error,
        batches=total.batches,
        scores=scores,
        samples=samples,
    )
