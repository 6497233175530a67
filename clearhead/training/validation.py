"""How good a model is on held-out records: the loss of all of them, scores and samples of some."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from torch import nn

from clearhead.training.tasks.base import Task, loss_of
from clearhead.training.tasks.measures import ACCURACY, ValidationSet


@final
@dataclass(frozen=True, kw_only=True)
class Assessment:
    """Mean loss in nats a place, scores by name, and samples with input, output and (where there is one) reference."""

    loss: float
    places: int
    scores: Mapping[str, float]
    samples: list[dict[str, str]] = field(default_factory=list)


def assess(model: nn.Module, task: Task, held: ValidationSet) -> Assessment:
    """Return the loss of every held-out record, and the task's own scores."""
    loss, n_targets, right, _, classes = loss_of(model, task, held)
    scores, samples = task.score(model, held)
    if ACCURACY in task.measures:
        scores = {"accuracy": right / max(n_targets, 1), **classes, **scores}
    return Assessment(loss=loss / max(n_targets, 1), places=n_targets, scores=scores, samples=samples)
