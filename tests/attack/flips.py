"""Flip one bit in a file that decides an output: it is refused, told, or changes nothing; never a silent change."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clearhead.decoding import Greedy
from clearhead.errors import ClearheadError
from clearhead.training.run import load
from tests.attack import forking
from tests.attack.mutations import Kept, flip_bit
from tests.attack.small import TASKS, Target, command, make, recipe_of
from tests.attack.table import Row

UNDECIDING = ("curves.svg", ".lock", "metrics.jsonl", "evaluation.json")
"""Files that tell of a run, and decide nothing that it puts out."""
USES: dict[str, Callable[[Any], Any]] = {
    "translate": lambda run: run.scored_translations(["eins zwei", "drei null vier"], beam=2),
    "generate": lambda run: run.scored_texts(["the cat"], max_new=8, method=Greedy()),
    "fill": lambda run: run.fill(["the <mask> eats the plum"]),
    "classify": lambda run: run.classify(["red plum", "old cow"]),
}


def attack(home: Path, seed: int, *, short: bool) -> list[Row]:
    tasks = random.Random(f"{seed} flips").sample([*TASKS], 2 if short else len(TASKS))
    return [
        in_use(home, tasks, seed, 12 if short else 1200),
        in_scores(home, tasks, seed, 2 if short else 100),
        before_a_resume(home / "resumed", seed, 2 if short else 150),
    ]


def answer(task: str, run: Path) -> tuple[str, list[str]]:
    """Return what a run answers, to the last digit, and what was told while it was loaded."""
    told: list[str] = []
    return repr(USES[task](load(run, device="cpu", log=told.append))), told


def in_use(home: Path, tasks: list[str], seed: int, count: int) -> Row:
    """Flip a bit, load the run and use it."""
    runs = {task: make(home / "runs" / task, recipe_of(home, task)) for task in tasks}
    before = {task: answer(task, run)[0] for task, run in runs.items()}
    files = [
        (task, path)
        for task, run in runs.items()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in UNDECIDING and not path.is_relative_to(run / "data")
    ]

    def one(i: int) -> str:
        draw = random.Random(f"{seed} flips {i}")
        task, path = draw.choice(files)
        kept = Kept(path)
        how = f"{task}/{path.relative_to(runs[task])}, {flip_bit(path, draw)}"
        try:
            after, told = answer(task, runs[task])
        except ClearheadError:
            return ""
        except BaseException as error:
            return f"{how}: {type(error).__name__}: {error!s:.200}"
        finally:
            kept.put_back()
        return "" if after == before[task] or told else f"{how}: another output, and not a word"

    return Row("a flipped bit in a file that decides an output", count, forking.in_batches(count, one))


def in_scores(home: Path, tasks: list[str], seed: int, count: int) -> Row:
    """Flip a bit of the scores, and list the runs."""
    row = Row("a flipped bit in evaluation.json, and `clearhead runs`")
    listing = command("runs", home / "runs", "--json")
    before = listed(forking.run(listing).out)
    for i in range(count):
        draw = random.Random(f"{seed} scores {i}")
        kept = Kept(home / "runs" / draw.choice(tasks) / "evaluation.json")
        how = flip_bit(kept.path, draw)
        ended = forking.run(listing)
        silent = any(one not in before for one in listed(ended.out)) and not ended.err.strip()
        row.add(ended.unclear() or ("another score, and not a word" if silent else ""), f"try {i}, {how}")
        kept.put_back()
    return row


def listed(out: str) -> list[Any]:
    """Return what the list says of each run that it does not call broken, but for the time of its last change."""
    found = json.loads(out)["runs"] if out else []
    return [{**one, "changed": ""} for one in found if one["problem"] is None and one["name"] in TASKS]


def before_a_resume(home: Path, seed: int, count: int) -> Row:
    """Flip a bit of a run that is half-way, its token ids too, and go on: the end is the same, or it is refused."""
    row = Row("a flipped bit before a resume")
    home.mkdir()
    target = Target.make(home)
    for i in range(count):
        draw = random.Random(f"{seed} resumed {i}")
        run = target.run("run", half=True)
        files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in UNDECIDING]
        path = draw.choice([one for one in files if one.stat().st_size])
        how = f"try {i}, {path.relative_to(run)}, {flip_bit(path, draw)}"
        ended = forking.run(command("train", run, "--resume"))
        problem = ended.unclear()
        if not problem and ended.code == 0:
            problem = target.finish(run, metrics=False)
        row.add(problem, how)
        shutil.rmtree(run)
    return row
