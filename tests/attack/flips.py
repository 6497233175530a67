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
from tests.attack.changing import Kept, flip_bit
from tests.attack.small import TASKS, Target, command, make, recipe_of
from tests.attack.table import Row, Tries, attack

UNDECIDING = ("curves.svg", ".lock", "metrics.jsonl", "evaluation.json")
"""Files that tell of a run, and decide nothing that it puts out."""
USES: dict[str, Callable[[Any], Any]] = {
    "translate": lambda run: run.scored_translations(["eins zwei", "drei null vier"], beam=2),
    "generate": lambda run: run.scored_texts(["the cat"], max_new=8, method=Greedy()),
    "fill": lambda run: run.fill(["the <mask> eats the plum"]),
    "classify": lambda run: run.classify(["red plum", "old cow"]),
}


def answer(task: str, run: Path) -> tuple[str, list[str]]:
    """Return what a run answers, to the last digit, and what was told while it was loaded."""
    told: list[str] = []
    return repr(USES[task](load(run, device="cpu", log=told.append))), told


@attack("flips", "a flipped bit in a file that decides an output: refused, told, or the same output")
def in_use(home: Path, tries: Tries) -> Row:
    runs = {task: make(home / "runs" / task, recipe_of(home, task)) for task in TASKS}
    before = {task: answer(task, run)[0] for task, run in runs.items()}
    files = [
        (task, path)
        for task, run in runs.items()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in UNDECIDING and not path.is_relative_to(run / "data")
    ]

    def case(i: int, draw: random.Random) -> str:
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

    return tries.batches(case, full=1200, short=60)


@attack("flips-scores", "a flipped bit in evaluation.json, and `clearhead runs`: told, and the other runs are listed")
def in_scores(home: Path, tries: Tries) -> Row:
    for task in TASKS:
        make(home / "runs" / task, recipe_of(home, task))
    listing = command("runs", home / "runs", "--json")
    before = listed(forking.run(listing).out)

    def case(i: int, draw: random.Random) -> str:
        kept = Kept(home / "runs" / draw.choice([*TASKS]) / "evaluation.json")
        flip_bit(kept.path, draw)
        ended = forking.run(listing)
        kept.put_back()
        found = listed(ended.out)
        if len(found) < len(TASKS) - 1:
            return f"one bad folder spoils the list: {ended.err[-300:]}"
        silent = any(one not in before for one in found) and not ended.err.strip()
        return ended.unclear() or ("another score, and not a word" if silent else "")

    return tries.each(None, case, full=100, short=6)


def listed(out: str) -> list[Any]:
    """Return what the list says of each run that it does not call broken, but for the time of its last change."""
    found = json.loads(out)["runs"] if out else []
    return [{**one, "changed": ""} for one in found if one["problem"] is None and one["name"] in TASKS]


@attack("flips-resume", "a flipped bit of a run that is half-way, its token ids too: the same end, or refused")
def before_a_resume(home: Path, tries: Tries) -> Row:
    target = Target.make(home)

    def case(i: int, draw: random.Random) -> str:
        run = target.run("run", half=True)
        files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in UNDECIDING]
        path = draw.choice([one for one in files if one.stat().st_size])
        how = f"{path.relative_to(run)}, {flip_bit(path, draw)}"
        ended = forking.run(command("train", run, "--resume"))
        problem = ended.unclear() or (target.finish(run, metrics=False) if ended.code == 0 else "")
        shutil.rmtree(run)
        return problem and f"{how}: {problem}"

    return tries.each(None, case, full=150, short=12)
