"""Changed files through the command line: every verb, with its exit code and what it says on stderr checked."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.attack import forking
from tests.attack.changing import mutate
from tests.attack.forking import Outcome
from tests.attack.small import TASKS, command, copy, make, recipe_of
from tests.attack.table import Row, Tries, attack

LINES = "the cat eats the <mask>\neins zwei\nred plum\n\n"
MEMORY = 3_000_000_000
"""How many bytes a command may map beyond what it starts with: a small model needs none of them."""
SECONDS = 300
UNREAD = ("curves.svg", ".lock")


@attack("commands", "a changed file of a run, and every verb that reads it: it works, or says which file is wrong")
def commands(home: Path, tries: Tries) -> Row:
    lines = home / "lines.txt"
    lines.write_text(LINES, encoding="utf-8")
    tasks = tries.draw().sample([*TASKS], 1 if tries.short else len(TASKS))
    runs = {task: make(home / "runs" / task, recipe_of(home, task)) for task in tasks}
    for task, run in runs.items():
        for args in verbs(task, run, lines, home):
            warm(args)

    def case(i: int, draw: random.Random) -> str:
        task, run = draw.choice([*runs.items()])
        args = draw.choice([*verbs(task, run, lines, home)])
        changed = copy(run, home / "copy" / task)
        file = draw.choice(files_of(changed))
        how = f"{args[0]} of {task} with {file.relative_to(changed)} changed ({mutate(file, draw)})"
        swapped = [changed if arg == run else changed.parent if arg == run.parent else arg for arg in args]
        problem = problem_of(forking.run(command(*swapped), memory=MEMORY, seconds=SECONDS), home)
        shutil.rmtree(changed)
        return problem and f"{how}: {problem}"

    return tries.each(None, case, full=400, short=5)


def warm(args: tuple[object, ...]) -> None:
    """Run a verb once as it should be; it must succeed."""
    ended = forking.run(command(*args))
    if ended.code:
        raise RuntimeError(f"{args} failed before anything was changed: {ended.err}")


def verbs(task: str, run: Path, lines: Path, home: Path) -> Iterator[tuple[object, ...]]:
    """Yield commands that read a run of this task."""
    extra = {"translate": ("--beam", 2), "generate": ("--max-tokens", 4, "--greedy")}.get(task, ())
    yield task, run, lines, *extra
    yield "train", run, "--resume"
    yield "runs", run.parent
    yield (
        "trace",
        run,
        "eins zwei",
        "--html",
        home / "page.html",
        *(("--target-text", "12") if task == "translate" else ()),
    )
    text = home / f"text-{task}"
    match task:
        case "translate":
            yield "evaluate", run, "--source", text / "de", "--target", text / "en", "--beam", 1
        case "classify":
            yield "evaluate", run, "--table", text / "table.tsv"
        case _:
            yield "evaluate", run, "--text", text / "lines"


def files_of(run: Path) -> list[Path]:
    """Return the files of a run that a verb may read."""
    return sorted(path for path in run.rglob("*") if path.is_file() and path.name not in UNREAD)


def problem_of(ended: Outcome, home: Path) -> str:
    """Return what is wrong with a command's end: it may succeed, or fail with a clear word that names a file."""
    if unclear := ended.unclear():
        return unclear
    if ended.code not in (0, 1, 2):
        return f"ended with exit code {ended.code}: {ended.err[-300:]}"
    if ended.code and str(home) not in ended.err:
        return f"the error names no file: {ended.err[-300:]}"
    if "\x1b[2J" in ended.err:
        return "it sent an escape sequence to the terminal"
    return ""
