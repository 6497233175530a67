"""Comparing: several models with the same budget, the same data and the same seeds; each run an ordinary run folder.

```
arms = grid({"attention": ("softmax", "cosine")}, lambda choice: varied(recipe, choice))
compare("runs/kinds", arms, seeds=(1, 2, 3))
```
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from clearhead.errors import ClearheadError, OptionError, RunError
from clearhead.training.checkpoints import write_text
from clearhead.training.comparison import Comparison, Failure, Impossible, Outcome, outcome_of
from clearhead.training.comparison_plot import draw_comparison
from clearhead.training.defaults import with_attention, with_position
from clearhead.training.recipe import Recipe, changes
from clearhead.training.workers import JOB, RECALL, Job, begin, prepare_text, read_job, run_all

__all__ = ["Arm", "compare", "grid", "varied"]

Told = Callable[[str], None]
Choice = Mapping[str, str]


@final
@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the models that are compared; the recipe's seed is left to the comparison."""

    name: str
    recipe: Recipe


def grid(lists: Mapping[str, Sequence[str]], make: Callable[[Choice], Recipe]) -> list[Arm | Impossible]:
    """An arm for every way to take one of each list; those that cannot be made are told apart, with the reason.

    `lists` are names such as {"attention": ("softmax", "cosine")}, and `make` gives the recipe of a choice of them. An
    arm is called by what it has taken of the lists that have several.
    """
    arms: list[Arm | Impossible] = []
    several = [len(values) > 1 for values in lists.values()]
    for values in itertools.product(*lists.values()):
        name = "-".join(itertools.compress(values, several) if any(several) else values)
        try:
            recipe = make(dict(zip(lists, values, strict=True)))
            with torch.device("meta"):
                recipe.model.build()
        except ClearheadError as error:
            arms.append(Impossible(arm=name, why=str(error)))
        else:
            arms.append(Arm(name=name, recipe=recipe))
    return arms


def varied(recipe: Recipe, choice: Choice) -> Recipe:
    """The recipe with another `attention`, another `position`, or both."""
    if unknown := set(choice) - {"attention", "position"}:
        raise OptionError(f"what varies is attention or position; came {', '.join(sorted(unknown))}")
    model = recipe.model
    if "position" in choice:
        model = with_position(model, choice["position"], recipe.batching.context)
    if "attention" in choice:
        model = with_attention(model, choice["attention"])
    return replace(recipe, model=model)


def compare(
    folder: str | Path,
    arms: Sequence[Arm | Impossible],
    *,
    seeds: Sequence[int] = (1, 2, 3),
    probe: str | None = None,
    parallel: int = 1,
    told: Told = print,
) -> Comparison:
    """Trains every arm with every seed, `parallel` runs at a time, and writes what came of it into the folder.

    Runs that are there already are not made again, and one that was stopped in the middle goes on from there. `probe`
    is the name of the probe that the arms learn, if it is one (`probe_recipe` makes their recipe). A run that fails is
    reported as such, and does not stop the others.
    """
    home = Path(folder)
    jobs = jobs_of(home, arms, seeds, probe)
    for arm in arms:
        if isinstance(arm, Impossible):
            told(f"{arm.arm} is not possible: {arm.why}")
    waiting = [job for job in jobs if not is_done(job)]
    if len(waiting) < len(jobs):
        told(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are there already")
    if waiting:
        begin(waiting)
        prepare_text(waiting, told)
    problems = run_all(waiting, parallel, told)
    found = [outcome(job, problems.get(job.name)) for job in jobs]
    comparison = Comparison(
        folder=str(home),
        task=jobs[0].recipe.task,
        probe=probe,
        parallel=parallel,
        budget=budget_of(jobs),
        outcomes=tuple(one for one in found if isinstance(one, Outcome)),
        failures=tuple(one for one in found if isinstance(one, Failure)),
        impossible=tuple(arm for arm in arms if isinstance(arm, Impossible)),
    )
    write_comparison(comparison, home)
    return comparison


def jobs_of(home: Path, arms: Sequence[Arm | Impossible], seeds: Sequence[int], probe: str | None) -> list[Job]:
    """A job for each arm and seed: all arms with the first seed, then all with the next."""
    possible = [arm for arm in arms if isinstance(arm, Arm)]
    names = [arm.name for arm in possible]
    if not possible or not seeds:
        why = "".join(f"; {arm.arm}: {arm.why}" for arm in arms if isinstance(arm, Impossible))
        raise OptionError(f"there is nothing to compare: expected arms and seeds{why}")
    if len(set(names)) < len(names) or len(set(seeds)) < len(seeds):
        raise OptionError(f"arms and seeds must differ from each other; came {', '.join(names)} and {list(seeds)}")
    return [
        Job(
            arm=arm.name,
            recipe=replace(arm.recipe, seed=seed),
            run=str(home / f"{arm.name}-seed{seed}"),
            data=str(home / "data"),
            recall=held_out(arm.recipe) if probe == "recall" else None,
        )
        for seed in seeds
        for arm in possible
    ]


def held_out(recipe: Recipe) -> str:
    """The file of texts that recall is asked for."""
    if recipe.task != "generate" or recipe.corpus.dev is None:
        raise OptionError(f"recall is asked of a model that generates, in held-out texts; came one to {recipe.task}")
    return recipe.corpus.dev.files[0]


def is_done(job: Job) -> bool:
    """Whether the run is there and has ended; raises where it was begun in another way than now."""
    path = job.folder.path / JOB
    if path.exists() and (other := changes(read_job(path).recipe, job.recipe)):
        raise RunError(
            f"{job.run}: was begun with another {' and '.join(other)}; give the same options as then, or another folder"
        )
    return job.folder.evaluation.exists() and (job.recall is None or (job.folder.path / RECALL).exists())


def outcome(job: Job, problem: str | None) -> Outcome | Failure:
    if problem is not None:
        return Failure(arm=job.arm, seed=job.seed, run=job.run, problem=problem)
    recall = None
    if job.recall is not None:
        recall = json.loads((job.folder.path / RECALL).read_text(encoding="utf-8"))
    return outcome_of(job.folder, arm=job.arm, data=Path(job.data), recall=recall)


def budget_of(jobs: Sequence[Job]) -> dict[str, int | float]:
    """The limit that was given: steps, minutes or epochs."""
    budget = jobs[0].recipe.budget
    return {name: value for name, value in vars(budget).items() if value is not None and name != "patience"}


def write_comparison(comparison: Comparison, home: Path) -> None:
    """comparison.json, comparison.md and, where there is something to draw, comparison.svg."""
    told = json.dumps(comparison.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(home / "comparison.json", told + "\n")
    write_text(home / "comparison.md", comparison.markdown())
    if comparison.outcomes:
        draw_comparison(comparison, home / "comparison.svg")
