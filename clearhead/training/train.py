"""`train` and `resume`: from a recipe to a run folder, whole at any moment."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from clearhead.errors import OptionError, RunError
from clearhead.model.sizes import resized
from clearhead.text.preparing import Prepared, opened, prepare
from clearhead.training.assessing import Held, assess
from clearhead.training.checkpoints import Checkpoint, write_text, writing
from clearhead.training.folder import RunFolder
from clearhead.training.learner import Learner
from clearhead.training.loop import Trainer, Watcher, Work
from clearhead.training.machine import prepare_machine, settled
from clearhead.training.recipe import Budget, Recipe
from clearhead.training.run import Run, load, to_stderr
from clearhead.training.start import start_from_vectors
from clearhead.training.stopping import Stopping
from clearhead.training.tasks import TASKS

__all__ = ["resume", "train"]

MOST_ASSESSED = 2000


def say(line: object) -> None:
    """What a watcher does unless another is given: nothing."""


def train(
    path: str | Path,
    recipe: Recipe,
    *,
    watcher: Watcher = say,
    told: Callable[[str], None] = to_stderr,
    data: Path | None = None,
) -> Run:
    """Trains a new run. `data` is where token ids are kept, in the run folder unless several runs share them."""
    folder = RunFolder(Path(path))
    if recipe.task not in TASKS:
        raise OptionError(f"task: there is no {recipe.task!r}; there are {', '.join(TASKS)}")
    with folder.locked():
        if folder.exists():
            raise RunError(f"{folder.path}: there is a run already; go on with --resume, or choose another folder")
        recipe = replace(recipe, machine=settled(recipe.machine))
        context = recipe.batching.context
        prepared = prepare(
            recipe.corpus, TASKS[recipe.task].layout(context), recipe.tokenizing, data or folder.data, told
        )
        task = TASKS[recipe.task](tokenizers=prepared.tokenizers, context=context, labels=prepared.labels)
        spec = task.fitted(recipe.model)
        if recipe.parameters is not None:
            spec = resized(spec, recipe.parameters)
        folder.describe(spec, task, prepared)
        recipe = replace(recipe, model=spec)
        folder.begin(recipe)
        work = Work(folder=folder, recipe=recipe, prepared=prepared, task=task, spec=spec)
        return trained(work, None, watcher, told)


def resume(
    path: str | Path,
    *,
    budget: Budget | None = None,
    watcher: Watcher = say,
    told: Callable[[str], None] = to_stderr,
    data: Path | None = None,
) -> Run:
    """Goes on from the newest whole checkpoint, as if it had never stopped; or further, with a new budget."""
    folder = RunFolder(Path(path))
    recipe = folder.recipe()
    with folder.locked():
        task, spec = folder.task(), folder.spec()
        prepared = prepared_before(data or folder.data, folder)
        checkpoint = last_whole(folder, told)
        told("from the start: there is no checkpoint yet" if checkpoint is None else f"from step {checkpoint.step}")
        if budget is not None and budget != recipe.budget:
            recipe = replace(recipe, budget=budget)
            folder.begin(recipe)
        work = Work(folder=folder, recipe=recipe, prepared=prepared, task=task, spec=spec)
        return trained(work, checkpoint, watcher, told)


def prepared_before(data: Path, folder: RunFolder) -> Prepared:
    home = data / folder.described()["data"]
    if not (home / "whole.json").exists():
        raise RunError(f"{home}: the token ids of this run are not there; put them back, or train a new run")
    return opened(home)


def last_whole(folder: RunFolder, told: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint to go on from; none only where none was ever written."""
    checkpoints = folder.checkpoints
    found = checkpoints.newest(told)
    if found is None and checkpoints.folders():
        raise RunError(
            f"{checkpoints.folder}: none of the checkpoints is whole. Put one back; or, to go on from the very start, "
            "remove them all"
        )
    return found


def trained(work: Work, checkpoint: Checkpoint | None, watcher: Watcher, told: Callable[[str], None]) -> Run:
    device = prepare_machine(work.recipe.machine)
    torch.manual_seed(work.recipe.seed)
    model = work.spec.build()
    if work.recipe.vectors is not None and checkpoint is None:
        start_from_vectors(model, work.task, work.recipe.vectors, told)
    model = model.to(device)
    learner = Learner(model, work.task, work.recipe.optimising, work.recipe.machine)
    with Stopping() as stopping:
        trainer = Trainer(work, learner, watcher)
        trainer.train(checkpoint, stopping)
    if stopping.asked and not trainer.finished():
        raise Stopped(work.folder.path, trainer.done, stopping.asked)
    run = load(work.folder.path, device=str(device))
    write_evaluation(run, work.prepared, trainer)
    return run


class Stopped(RunError):
    """Training was asked to stop, and saved; `exit_code` is what a shell expects of the signal."""

    def __init__(self, path: Path, step: int, number: int) -> None:
        super().__init__(f"stopped at step {step}, and saved; go on with: clearhead train {path} --resume")
        self.exit_code = 128 + number


def write_evaluation(run: Run, prepared: Prepared, trainer: Trainer) -> None:
    """evaluation.json: the weights to use, on the held-out records."""
    started = time.perf_counter()
    keeping = trainer.recipe.keeping
    held = Held(
        store=prepared.dev,
        tokens=trainer.recipe.batching.at_once,
        score_records=MOST_ASSESSED if keeping.score_records else 0,
        samples=keeping.samples,
        bfloat16=trainer.learner.bfloat16,
    )
    found = assess(run.model, run.task, held)
    told = {
        "on": "dev",
        "records": len(prepared.dev),
        "step": run.step,
        "loss": found.loss,
        **found.scores,
        "parameters": sum(one.numel() for one in run.model.parameters()),
        "training_seconds": round(trainer.seconds, 2),
        "seconds": round(time.perf_counter() - started, 2),
        "samples": found.samples,
    }
    with writing(run.folder.evaluation):
        write_text(run.folder.evaluation, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
