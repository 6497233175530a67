"""Comparing: several models with the same budget, the same data and the same seeds; each run an ordinary run folder.

```
arms = grid({"attention": ("softmax", "cosine")}, lambda choice: varied(recipe, choice))
compare("runs/kinds", arms, seeds=(1, 2, 3))
```
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clearhead import extras, files
from clearhead.errors import ClearheadError, DataError, OptionError, RunError
from clearhead.experiments.comparison import Comparison, FailedRun, FinishedRun, Impossible, draw_comparison, outcome_of
from clearhead.experiments.workers import JOB, RECALL, TrainingJob, begin, prepare_text, read_job, run_all
from clearhead.model.sizes import build_for_shapes
from clearhead.model.variants import with_parts
from clearhead.text.preparing import describe_changes, read_notes
from clearhead.training.folder_lock import hold_folder
from clearhead.training.recipe import Recipe
from clearhead.training.tasks import Generate

Log = Callable[[str], None]
Choice = Mapping[str, str]
BASE = "base"
"""The name of the model that variants are compared with."""
TELLING = ("attention", "position", "size")
"""Options whose values name themselves; `none` or `8` could be anything."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the models that are compared; the recipe's seed is left to the comparison."""

    name: str
    recipe: Recipe


def grid(lists: Mapping[str, Sequence[str]], make: Callable[[Choice], Recipe]) -> list[Arm | Impossible]:
    """Return an arm for every way to take one value of each list.

    `lists` are names such as {"attention": ("softmax", "cosine")}, and `make` gives the recipe of a choice of them. An
    arm is called by what it has taken of the lists that have several values.
    """
    several = [name for name, values in lists.items() if len(values) > 1] or list(lists)
    choices = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    return [arm_of("-".join(label(name, choice[name]) for name in several), choice, make) for choice in choices]


def label(option: str, value: str) -> str:
    """Return a value's name within the name of an arm: the value alone where that is clear, else with its option.

    It is part of a folder's name, so a part of the user's own is written with a point and without quotes.

    >>> label("attention", "cosine"), label("value_rank", "8"), label("attention", "mine:TopK(count=2, ties='all')")
    ('cosine', 'value-rank=8', 'mine.TopK(count=2,ties=all)')
    """
    plain = re.sub(r"[^\w.,=()+-]", "", value.replace(":", "."))
    return plain if option in TELLING else f"{option.replace('_', '-')}={plain}"


def one_by_one(variants: Sequence[Choice], make: Callable[[Choice], Recipe]) -> list[Arm | Impossible]:
    """Return an arm for each variant: a model that differs from the base in the parts named; {} is the base itself."""
    return [arm_of(",".join(label(*part) for part in choice.items()) or BASE, choice, make) for choice in variants]


def arm_of(name: str, choice: Choice, make: Callable[[Choice], Recipe]) -> Arm | Impossible:
    """Return the arm; or, where the model cannot be built, the reason."""
    try:
        recipe = make(choice)
        build_for_shapes(recipe.model)
    except ClearheadError as error:
        return Impossible(arm=name, why=str(error))
    return Arm(name=name, recipe=recipe)


def varied(recipe: Recipe, choice: Choice) -> Recipe:
    """Return the recipe with other parts in its model: attention, position, heads, block, scale, … by name."""
    return replace(recipe, model=with_parts(recipe.model, choice, context=recipe.batching.context))


def compare(
    folder: str | Path,
    arms: Sequence[Arm | Impossible],
    *,
    seeds: Sequence[int] = (1, 2, 3),
    probe: str | None = None,
    parallel: int = 1,
    log: Log = print,
) -> Comparison:
    """Train every arm with every seed, `parallel` runs at a time, and write the comparison into the folder.

    Runs that have ended are not trained again, and a run that was stopped continues. `probe` is the name of the probe
    that the arms learn, if it is one (`probe_recipe` makes their recipe). A run that fails is reported, and does not
    stop the others.
    """
    home = Path(folder)
    jobs = jobs_of(home, arms, seeds, probe)
    with hold_folder(home, log):
        files.remove_partials(home, r"comparison\.(json|md|svg)")
        return compare_jobs(home, jobs, arms, probe=probe, parallel=parallel, log=log)


def compare_jobs(
    home: Path,
    jobs: Sequence[TrainingJob],
    arms: Sequence[Arm | Impossible],
    *,
    probe: str | None,
    parallel: int,
    log: Log,
) -> Comparison:
    """Do the jobs of a comparison in a folder that is locked."""
    for arm in arms:
        if isinstance(arm, Impossible):
            log(f"{arm.arm} is not possible: {arm.why}")
    waiting = [job for job in jobs if not is_done(job)]
    if len(waiting) < len(jobs):
        log(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are there already")
    if any(not job.folder.exists() for job in waiting):
        check_same_text(jobs)
    if waiting:
        begin(waiting)
        prepare_text(waiting, log)
    problems = run_all(waiting, parallel, log)
    outcomes = [outcome(job, problems.get(job.name)) for job in jobs]
    comparison = Comparison(
        folder=str(home),
        task=jobs[0].recipe.task,
        probe=probe,
        parallel=parallel,
        budget={name: n for name, n in vars(jobs[0].recipe.budget).items() if n is not None and name != "patience"},
        outcomes=tuple(entry for entry in outcomes if isinstance(entry, FinishedRun)),
        failures=tuple(entry for entry in outcomes if isinstance(entry, FailedRun)),
        impossible=tuple(arm for arm in arms if isinstance(arm, Impossible)),
    )
    with files.os_errors_as_run_errors(home):
        files.write_json(home / "comparison.json", comparison.to_json())
        files.write_text(home / "comparison.md", comparison.markdown())
    if comparison.outcomes and extras.has_package("matplotlib"):
        draw_comparison(comparison, home / "comparison.svg")
    return comparison


def jobs_of(home: Path, arms: Sequence[Arm | Impossible], seeds: Sequence[int], probe: str | None) -> list[TrainingJob]:
    """Return a job for each arm and seed: all arms with the first seed, then all with the next."""
    possible = [arm for arm in arms if isinstance(arm, Arm)]
    names = [arm.name for arm in possible]
    if not possible or not seeds:
        reasons = "".join(f"; {arm.arm}: {arm.why}" for arm in arms if isinstance(arm, Impossible))
        raise OptionError(f"there is nothing to compare: expected arms and seeds{reasons}")
    if len(set(names)) < len(names) or len(set(seeds)) < len(seeds):
        raise OptionError(f"arms and seeds must differ from each other; came {', '.join(names)} and {list(seeds)}")
    return [
        TrainingJob(
            arm=arm.name,
            recipe=replace(arm.recipe, seed=seed),
            run=str(home / f"{arm.name}-seed{seed}"),
            data=str(home / "data"),
            recall=held_out(arm.recipe) if probe == "recall" else None,
        )
        for seed in seeds
        for arm in possible
    ]


def check_same_text(jobs: Sequence[TrainingJob]) -> None:
    """Raise DataError where runs that are there have learned another text than those to come would read."""
    there: dict[Path, TrainingJob] = {}
    for job in jobs:
        with contextlib.suppress(RunError):  # a damaged run is reported when its turn comes
            if job.folder.exists():
                there[Path(job.data) / job.folder.read_description()["data"]] = job
    for place, job in there.items():
        with contextlib.suppress(RunError):
            texts = read_notes(place)["texts"]
            if changed := describe_changes(texts, job.recipe.corpus):
                raise DataError(
                    f"{job.run}: has learned another text than the runs that are still to be trained would: {changed}. "
                    "Put the text back as it was, or compare in another folder"
                )


def held_out(recipe: Recipe) -> str:
    """Return the file of texts that recall is asked for."""
    if recipe.task != Generate.name or recipe.corpus.dev is None:
        raise OptionError(f"recall is asked of a model that generates, in held-out texts; came one to {recipe.task}")
    return recipe.corpus.dev.files[0]


def is_done(job: TrainingJob) -> bool:
    """Return whether the run is there and has ended; raise RunError if it was begun in another way than now."""
    path = job.folder.path / JOB
    if path.exists():
        begun, now = vars(read_job(path).recipe), vars(job.recipe)
        if differing := [name for name in begun if begun[name] != now[name]]:
            raise RunError(
                f"{job.run}: was begun with another {' and '.join(differing)}; give the same options as then, or "
                "another folder"
            )
    return job.folder.evaluation.exists() and (job.recall is None or (job.folder.path / RECALL).exists())


def outcome(job: TrainingJob, problem: str | None) -> FinishedRun | FailedRun:
    if problem is not None:
        return FailedRun(arm=job.arm, seed=job.seed, run=job.run, problem=problem)
    recall = None
    if job.recall is not None:
        recall = job.folder.read_own(job.folder.path / RECALL)
    return outcome_of(job.folder, arm=job.arm, data=Path(job.data), recall=recall)
