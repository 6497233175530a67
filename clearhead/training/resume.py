"""`resume`: go on with a run from its newest whole checkpoint, as if it had never stopped.

What it checks, before anything in the folder is changed: that the folder is a run, with no link among its files; that
model, task and tokenisers fit; that the token ids are there; that a checkpoint is whole, or that none was ever saved.
If the text has changed since, it says so and goes on with the text of then.
"""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clearhead.calls import public
from clearhead.errors import OptionError, RunError
from clearhead.files import os_errors_as_run_errors
from clearhead.text import mixing, preparing
from clearhead.training import claiming, distributed, fitting
from clearhead.training.checkpoints import Checkpoint, Checkpoints, check_no_link
from clearhead.training.folder import RunFolder
from clearhead.training.folder_lock import Hold
from clearhead.training.loop import Trainer, Watcher
from clearhead.training.machine import resolve_machine
from clearhead.training.recipe import Budget, Machine, Recipe
from clearhead.training.reporting import ProgressLine, to_stderr
from clearhead.training.run import Run, check_fit
from clearhead.training.train import load_prepared, run_to_end, take_part


@public
def resume(
    path: str | Path,
    *,
    budget: Budget | None = None,
    lr: float | None = None,
    machine: Machine | None = None,
    watcher: Watcher | None = None,
    log: Callable[[str], None] = to_stderr,
    data: Path | None = None,
    checkpoints: str | Path | None = None,
) -> Run:
    """Resume a run from its newest intact checkpoint as if it had never stopped; or continue with a new budget.

    If the run cannot be resumed, nothing in its folder is changed.

    Args:
        path: The run folder.
        budget: A new budget; the recipe's if None.
        lr: Takes the place of the recipe's, and is written into it.
        machine: Likewise.
        watcher: Called with every line of metrics; None shows a line of progress.
        log: Called with lines for the user.
        data: Folder of the token ids.
        checkpoints: Where the folder of the checkpoints was moved to.

    Returns:
        The run, with its best weights.
    """
    with distributed.joined() as processes:
        if not processes.is_first:
            return take_part(processes)
        folder = RunFolder(Path(path))
        folder.recipe()  # what is no run is refused before there is a lock
        claiming.check_unlinked(folder.path)
        find_checkpoints(folder, checkpoints)
        with folder.lock(log) as hold:
            recipe, task, spec = folder.recipe(), folder.task(), folder.spec()
            check_fit(task, spec, str(folder.model_file))
            prepared = load_prepared(data or folder.data, folder, recipe, task)
            if changes := preparing.describe_changes(prepared.notes["texts"], recipe.corpus):
                log(
                    f"WARNING: the text is not what this run was begun with: {changes}. It goes on with the text of "
                    "then, which it keeps as token ids; to learn the new one, train another run with "
                    f"--from {shlex.quote(str(folder.path))}"
                )
            found = find_checkpoints(folder, checkpoints)
            checkpoint = checkpoint_to_resume(found, folder, recipe, log)
            log("from the start: there is no checkpoint yet" if checkpoint is None else f"from step {checkpoint.step}")
            new = replace(
                recipe,
                budget=budget or recipe.budget,
                optimizer=replace(recipe.optimizer, lr=lr or recipe.optimizer.lr),
                machine=resolve_machine(machine or recipe.machine),
            )
            new = with_plan(new, recipe, checkpoint)
            check_mixture(new, recipe)
            trainer = Trainer(folder, new, prepared, task, spec, hold=hold, watcher=watcher or ProgressLine(), log=log)
            return run_to_end(trainer, checkpoint, lambda: take_over(folder, new, found, hold))


def check_mixture(recipe: Recipe, old: Recipe) -> None:
    """Raise where a new budget would move the places at which a mixture's shares change: text would be read twice."""
    mix = recipe.batching.mix
    if (
        mix is not None
        and len(mixing.read_mix(mix)) > 1
        and recipe.budget != replace(old.budget, patience=recipe.budget.patience)
    ):
        raise OptionError(
            f"the shares of the mixture change at parts of the steps ({mix}), so the budget cannot be changed; train "
            "another run with --from this one"
        )


def with_plan(recipe: Recipe, old: Recipe, checkpoint: Checkpoint | None) -> Recipe:
    """Return a recipe to resume with the plan of its minutes: the old one, unless the budget is another."""
    if recipe.budget.minutes is None:
        return replace(recipe, plan=None)
    if recipe.plan is not None and recipe.budget.minutes == old.budget.minutes:
        return recipe
    if checkpoint is None:
        return replace(recipe, plan=fitting.planned_again(recipe, done=0, seconds=0.0, spent=0.0))
    seconds = checkpoint.state["seconds"]
    spent = checkpoint.state["pacing"].get("spent", seconds)
    return replace(recipe, plan=fitting.planned_again(recipe, done=checkpoint.step, seconds=seconds, spent=spent))


def find_checkpoints(folder: RunFolder, elsewhere: str | Path | None) -> Checkpoints:
    """Return the checkpoints to resume from and to add to; RunError if that cannot be done."""
    if elsewhere is not None:
        return claiming.move_checkpoints(folder, Path(elsewhere))
    checkpoints = folder.checkpoints
    checkpoints.folders()
    check_no_link(checkpoints.folder)
    return checkpoints


def take_over(folder: RunFolder, recipe: Recipe, checkpoints: Checkpoints, hold: Hold) -> None:
    """Write what a resume changes in the folder, once all of the run was found to be whole."""
    hold.check()
    claiming.remove_litter(folder)
    if checkpoints.folder != folder.checkpoints.folder:
        folder.write_own(folder.checkpoints_file, {"folder": str(checkpoints.folder)})
    hold.add(folder.checkpoints.folder)
    with os_errors_as_run_errors(checkpoints.folder):
        checkpoints.clean()
    if recipe != folder.recipe():
        folder.begin(recipe)


def checkpoint_to_resume(
    checkpoints: Checkpoints, folder: RunFolder, recipe: Recipe, log: Callable[[str], None]
) -> Checkpoint | None:
    """Return the checkpoint to resume from, None where none was ever saved; RunError if all are lost."""
    newest = checkpoints.newest(log)
    if newest is None and checkpoints.folders():
        raise RunError(
            f"{checkpoints.folder}: none of the checkpoints is whole. Put one back; or, to go on from the very start, "
            "train in another folder"
        )
    if newest is None and (evidence := claiming.find_evidence_of_checkpoints(folder, recipe)) is not None:
        raise RunError(
            f"{checkpoints.folder}: there is no checkpoint, and {evidence} shows that this run has saved some. Put "
            "them back; nothing was changed. To go on from the very start, train in another folder"
        )
    return newest
