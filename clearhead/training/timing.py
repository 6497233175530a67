"""Time real training steps and real scoring on this machine, so that a recipe can be fitted to its budget."""

import importlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from clearhead.devices import synchronize
from clearhead.extras import has_package
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Transformer
from clearhead.text.preparing import Prepared
from clearhead.training.distributed import current_processes
from clearhead.training.losses import NOTHING
from clearhead.training.parallel import build_model, share_rows
from clearhead.training.recipe import Recipe
from clearhead.training.tasks.base import Task, loss_of
from clearhead.training.tasks.learning import Batch
from clearhead.training.tasks.measures import ValidationSet
from clearhead.training.train_step import Stepper, TrainState, make_stepper

SHAPES = 3
"""Batches that are timed on a GPU again and again: capturing a step for a shape takes longer than the step."""
MOST_STEPS = 12
MOST_PLANNED = 2000
FEW_RECORDS = 8
FEW_BATCHES = 4
LEAST_ENDING = 0.7
"""Seconds that the end of a run takes on a quiet machine, its scoring left out."""


class Pace(NamedTuple):
    """The speed of training: seconds and tokens of a step.

    `setup_seconds` is what capturing steps on a GPU takes, once for each width of batch there is.
    """

    step_seconds: float
    tokens: float
    setup_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.step_seconds


class ScoringPace(NamedTuple):
    """The time of an evaluation: of the loss of one of the dev text's `batches`, of samples, and of each output."""

    batch: float
    batches: int
    samples: float
    record: float


def count_tokens(batch: Batch) -> int:
    """Return how many tokens of text a batch holds, padding and rows that fill it up left out."""
    asks = batch["wanted"] != NOTHING
    real = asks.any(-1) if asks.ndim > 1 else asks
    lengths = [batch[name] for name in ("lengths", "source_lengths") if name in batch]
    if "lengths" not in batch:
        lengths.append(asks.sum(-1))
    return int(sum(length[real].sum() for length in lengths))


def time_steps(
    recipe: Recipe, spec: Spec, task: Task, prepared: Prepared, *, seconds: float
) -> tuple[Pace, Transformer]:
    """Take a few steps for about so many seconds; return their speed, and the model, which has learned nothing."""
    device = torch.device(recipe.machine.device)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, spec, current_processes()).to(device).train()
    # Compiling takes longer than all of this, and a compiled step is seldom slower than a plain one.
    machine = replace(recipe.machine, compile=False)
    stepper = make_stepper(TrainState(model, task, recipe.optimizer, machine), machine)
    steps = read_steps(recipe, task, prepared, stepper)
    setup = 0.0
    if device.type == "cuda":
        some = list(itertools.islice(steps, SHAPES))
        setup, steps = time_capture(stepper, some, recipe, task, prepared), itertools.cycle(some)
    return run_steps(stepper, steps, device, seconds)._replace(setup_seconds=setup), model


def time_capture(stepper: Stepper, some: list[list[Batch]], recipe: Recipe, task: Task, prepared: Prepared) -> float:
    """Take each of these steps, which captures it, and return about how long all widths of batches will take."""
    planner = task.planner(prepared.train, recipe.batching.at_once, recipe.seed)
    widths = len({rows.width for rows in itertools.islice(planner.epoch(0), MOST_PLANNED)})
    walls: list[float] = []
    for step in (*some, *some):
        started = time.perf_counter()
        stepper.step(step, 0.0)
        synchronize(stepper.train_state.device)
        walls.append(time.perf_counter() - started)
    shapes = {tuple(tensor.shape for tensor in batch.values()) for step in some for batch in step}
    captured = max(0.0, sum(walls[: len(some)]) - sum(walls[len(some) :]))
    return captured / len(shapes) * widths


def read_steps(recipe: Recipe, task: Task, prepared: Prepared, stepper: Stepper) -> Iterator[list[Batch]]:
    """Yield the micro-batches of each step of training, epoch after epoch; of those, the rows of one process."""
    planner = task.planner(prepared.train, recipe.batching.at_once, recipe.seed)
    random = np.random.default_rng(recipe.seed)
    rows = itertools.chain.from_iterable(planner.epoch(number) for number in itertools.count())
    while True:
        some = list(itertools.islice(rows, recipe.batching.passes))
        batches = [task.read(prepared.train, batch_rows, random, filled=stepper.filled) for batch_rows in some]
        yield [share_rows(batch, 0, current_processes().count) for batch in batches]


def run_steps(stepper: Stepper, steps: Iterator[list[Batch]], device: torch.device, seconds: float) -> Pace:
    """Take steps for about so many seconds. The first is not counted, unless it takes all of the time."""
    walls: list[float] = []
    tokens: list[int] = []
    end = time.perf_counter() + seconds
    while len(walls) < 2 or (time.perf_counter() < end and len(walls) <= MOST_STEPS):
        batches = next(steps)
        synchronize(device)
        started = time.perf_counter()
        stepper.step(batches, 0.0)
        synchronize(device)
        walls.append(time.perf_counter() - started)
        tokens.append(sum(map(count_tokens, batches)) * current_processes().count)
        if walls[0] > seconds:
            break
    counted = slice(1 if len(walls) > 1 else 0, None)
    n_steps = len(walls[counted])
    return Pace(sum(walls[counted]) / n_steps, sum(tokens[counted]) / n_steps)


def time_scoring(recipe: Recipe, model: Transformer, task: Task, prepared: Prepared) -> ScoringPace:
    """Return how long an evaluation takes, by the loss of a few batches and by making a few outputs.

    A model that has learned nothing writes until it is stopped, so outputs take less later.
    """
    held_out = ValidationSet(
        store=prepared.dev,
        tokens=recipe.batching.at_once,
        score_records=0,
        samples=recipe.checkpointing.samples,
        bfloat16=recipe.machine.precision == "bfloat16",
        sample=1,
    )
    batches = sum(1 for _ in task.planner(prepared.dev, held_out.tokens, recipe.seed).in_order())
    few_batches = min(FEW_BATCHES, batches)
    few = min(FEW_RECORDS, len(prepared.dev), recipe.checkpointing.score_records)
    loss_of(model, task, held_out)  # the first is slower
    clock = [time.perf_counter()]
    loss_of(model, task, replace(held_out, sample=few_batches))
    clock.append(time.perf_counter())
    for records in (0, few):
        task.score(model, replace(held_out, score_records=records))
        clock.append(time.perf_counter())
    loss, samples, with_outputs = (after - before for before, after in pairwise(clock))
    return ScoringPace(
        batch=loss / max(few_batches, 1),
        batches=batches,
        samples=samples,
        record=max(0.0, with_outputs - samples) / max(few, 1),
    )


def time_ending() -> float:
    """Return about how long the end of a run takes beside scoring: saving, loading, and drawing its curves.

    The time to import what draws them is measured, which is then done: drawing, loading and leaving the program take
    about twice as long.
    """
    started = time.perf_counter()
    if has_package("matplotlib"):
        importlib.import_module("matplotlib.figure")
        importlib.import_module("matplotlib.backends.backend_svg")
    return max(LEAST_ENDING, 2 * (time.perf_counter() - started))
