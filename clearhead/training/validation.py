"""How good a model is on held-out records: the loss of all of them, scores and samples of some."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import final

from clearhead.model.transformers import Transformer
from clearhead.training.tasks.base import Task, loss_of
from clearhead.training.tasks.measures import ACCURACY, ValidationSet


@final
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
