"""The machine that a run trains on: device, precision and threads, which a recipe may leave open; and how quick it is,
by real training steps and real scoring, so that a recipe can be fitted to its budget.
"""

import importlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch

from clearhead import devices, extras
from clearhead.errors import OptionError
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Transformer
from clearhead.text.preparing import Prepared
from clearhead.training.distributed import current_processes
from clearhead.training.losses import NOTHING
from clearhead.training.parallel import build_model, share_rows
from clearhead.training.recipe import Machine, Recipe, read_parallel
from clearhead.training.scores import ValidationSet
from clearhead.training.tasks.base import Task, loss_of
from clearhead.training.tasks.learning import Batch
from clearhead.training.train_step import BatchStream, TrainState

TRIAL_SECONDS = 0.15
WORTH = 1.1
"""How much quicker more threads must be to be worth having."""
BUSY_SHARE = 0.6
"""A process that is given less than this share of the cores it asks for is on a busy machine."""
RECHECK_SECONDS = 60.0


def resolve_machine(machine: Machine) -> Machine:
    """Return the machine with nothing left open. OptionError for a precision that the device is not run in, and for
    keyed dropout where what is dropped is compiled or computed twice.
    """
    device = devices.choose_device(machine.device)
    precision = machine.precision
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" else "float32"
    if precision == "bfloat16" and device.type == "mps":
        raise OptionError("precision: bfloat16 is not offered on mps; take --precision float32, or auto")
    excluding = "--compile" if machine.compile else "--activation-checkpointing"
    excluded = machine.compile or machine.activation_checkpointing
    if machine.keyed_dropout and excluded:
        raise OptionError(f"keyed_dropout: is not offered with {excluding}; leave out one of the two")
    keyed = machine.keyed_dropout
    if keyed is None and current_processes().together:
        # On a GPU it forms the weights that its kernels do not; processes of one layer have no other way.
        keyed = not excluded and (device.type == "cpu" or read_parallel(machine.parallel).tensor > 1)
    # Of all processes on this machine together, so that a resume with fewer of them has as many.
    threads = machine.threads or torch.get_num_threads() * current_processes().local_count
    return replace(machine, device=str(device), precision=precision, threads=threads, keyed_dropout=keyed)


def prepare_machine(machine: Machine) -> torch.device:
    """Set torch's threads and, where it is asked for, its deterministic mode.

    On the same processor and torch, the same threads give the same bits.
    """
    if machine.threads is not None:
        torch.set_num_threads(current_processes().threads(machine.threads))
    if machine.deterministic:
        # cuBLAS asks for one of two sizes of workspace, and says no without; it reads this when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    device = torch.device(machine.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return device


def serving_threads(most: int) -> int:
    """Return how many threads serve at the moment: on a busy machine fewer may be quicker than all.

    Threads wait for each other at the end of every operation. One that has no core of its own holds up all the others.
    """
    best, best_speed = 1, 0.0
    count = most
    while count >= 1:
        speed = matmul_speed(count)
        if speed > WORTH * best_speed or (best > count and speed * WORTH > best_speed):
            best, best_speed = count, max(speed, best_speed)
        count //= 2
    return best


def matmul_speed(threads: int) -> float:
    """Return the FLOPs a second of products of matrices like those of a small model, with so many threads.

    It is the mean over a while, so it tells what a busy machine gives. The threads are then as they were.
    """
    before = torch.get_num_threads()
    left, right = torch.ones(1024, 128), torch.ones(128, 512)
    try:
        torch.set_num_threads(threads)
        (left @ right).relu()
        started, count = time.perf_counter(), 0
        while (seconds := time.perf_counter() - started) < TRIAL_SECONDS or count < 2:
            (left @ right).relu()
            count += 1
    finally:
        torch.set_num_threads(before)
    return 2 * left.numel() * right.shape[1] * count / seconds


def with_serving_threads(machine: Machine, log: Callable[[str], None]) -> Machine:
    """Return the machine with fewer threads where it is busy, if they may adapt, and log it; set them."""
    most = machine.threads or torch.get_num_threads()
    if not machine.adapt_threads or most < 2 or torch.device(machine.device).type != "cpu":
        return machine
    serving = serving_threads(most)
    if serving < most:
        log(f"the machine is busy: {serving} of {most} threads serve{'s' * (serving == 1)} best, and no more are used")
    torch.set_num_threads(serving)
    return replace(machine, threads=serving)


class ThreadWatch:
    """Watches whether the machine has become busy, and lowers the number of threads to what serves."""

    def __init__(self, machine: Machine, log: Callable[[str], None]) -> None:
        self.machine, self.log = machine, log
        self.wall, self.work = time.perf_counter(), time.process_time()

    def look(self) -> None:
        """Compare wall time and processor time since the last look, at most once a minute."""
        wall, work = time.perf_counter() - self.wall, time.process_time() - self.work
        if not self.machine.adapt_threads or wall < RECHECK_SECONDS:
            return
        threads = torch.get_num_threads()
        if threads > 1 and work / wall / threads < BUSY_SHARE:
            self.machine = with_serving_threads(replace(self.machine, threads=threads), self.log)
        self.wall, self.work = time.perf_counter(), time.process_time()


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
    train_state = TrainState(model, task, recipe.optimizer, machine)
    stream = BatchStream(recipe, task, prepared.train, filled=train_state.captures)
    batches = (share_rows(batch, 0, current_processes().count) for batch in stream.batches(0))
    steps = iter(lambda: list(itertools.islice(batches, recipe.batching.passes)), [])
    setup = 0.0
    if device.type == "cuda":
        some = list(itertools.islice(steps, SHAPES))
        widths = len({rows.width for rows in itertools.islice(stream.planner.epoch(0), MOST_PLANNED)})
        setup, steps = widths * time_capture(train_state, some), itertools.cycle(some)
    return run_steps(train_state, steps, device, seconds)._replace(setup_seconds=setup), model


def time_capture(train_state: TrainState, some: list[list[Batch]]) -> float:
    """Take each of these steps, which captures it, and return about how long that takes for one shape."""
    walls: list[float] = []
    for step in (*some, *some):
        started = time.perf_counter()
        train_state.step(step, 0.0)
        devices.synchronize(train_state.device)
        walls.append(time.perf_counter() - started)
    shapes = {tuple(tensor.shape for tensor in batch.values()) for step in some for batch in step}
    captured = max(0.0, sum(walls[: len(some)]) - sum(walls[len(some) :]))
    return captured / len(shapes)


def run_steps(train_state: TrainState, steps: Iterator[list[Batch]], device: torch.device, seconds: float) -> Pace:
    """Take steps for about so many seconds. The first is not counted, unless it takes all of the time."""
    walls: list[float] = []
    tokens: list[int] = []
    end = time.perf_counter() + seconds
    while len(walls) < 2 or (time.perf_counter() < end and len(walls) <= MOST_STEPS):
        batches = next(steps)
        devices.synchronize(device)
        started = time.perf_counter()
        train_state.step(batches, 0.0)
        devices.synchronize(device)
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
    if extras.has_package("matplotlib"):
        importlib.import_module("matplotlib.figure")
        importlib.import_module("matplotlib.backends.backend_svg")
    return max(LEAST_ENDING, 2 * (time.perf_counter() - started))
