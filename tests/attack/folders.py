"""Folders that are not what was assumed: moved or replaced during training, out of reach before a resume, and links.

Whatever is done, no file of the user's may change. Once everything is back in its place, the run goes on to its end.
"""

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.attack import forking
from tests.attack.kills import counted, do_at
from tests.attack.small import Target, changes, command, contents, go_on, problem_of
from tests.attack.table import Row, Tries, attack

ENDS = (0, 1, 2)
NOBODY = 65534
OURS = (
    *(".lock", "run.json", "recipe.json", "model.json", "tokenizer.json", "tokenizer.source.json"),
    *("tokenizer.target.json", "metrics.jsonl", "curves.svg", "curves.svg.partial", ".model.json.partial"),
    *(".recipe.json.partial", "evaluation.json", ".evaluation.json.partial", "data", "tensorboard", "checkpoints"),
    *("checkpoints/run.json", "checkpoints/step-00000002", "checkpoints/step-00000004", "checkpoints/step-00000006"),
    *("checkpoints/.step-00000006.partial", "checkpoints/step-00000004/state.json"),
    *("checkpoints/step-00000004/model.safetensors", "checkpoints/step-00000004/training.safetensors"),
)
"""Names that a run folder has, had or may have while it is written."""
USERS = ("checkpoints/step-00000002/thesis.txt", "model.json", "metrics.jsonl", "tokenizer.json", "notes.txt")


def users_files(folder: Path) -> Path:
    """Make a folder that holds a user's files under the names that a run uses."""
    for name in USERS:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"mine: {name}\n", encoding="utf-8")
    return folder


def move_run(run: Path, aside: Path) -> None:
    os.rename(run, aside)


def replace_run(run: Path, aside: Path) -> None:
    os.rename(run, aside)
    users_files(run)


def move_checkpoints(run: Path, aside: Path) -> None:
    aside.mkdir()
    if (run / "checkpoints").exists():
        os.rename(run / "checkpoints", aside / "checkpoints")


def replace_checkpoints(run: Path, aside: Path) -> None:
    move_checkpoints(run, aside)
    users_files(run / "checkpoints" / "step-00000002")


@attack("moved", "the folder or its checkpoints moved or replaced during training")
def moved_during_training(home: Path, tries: Tries) -> Row:
    """Move the folder, or its checkpoints, while the run is training; put them back, and go on."""
    target = Target.make(home)
    made = counted(target, half=True)

    def case(one: tuple[str, int, str], draw: random.Random) -> str:
        way, k = WAYS[one[0]], one[1]
        run, aside = target.run("moved", half=True), target.home / "aside"
        ended = do_at(target.home, lambda: go_on(run, target.recipe), k, lambda name, what: way(run, aside))
        problem = problem_of(ended, ENDS) or users_changes(way, run) or put_back(way, run, aside) or target.finish(run)
        for path in (run, aside):
            shutil.rmtree(path, ignore_errors=True)
        return problem

    cases = [(way, k, call) for way in WAYS for k, call in enumerate(made, start=1) if k > 2]
    return tries.each(cases, case, short=8)


WAYS = {way.__name__: way for way in (move_run, replace_run, move_checkpoints, replace_checkpoints)}


def users_changes(way: Callable, run: Path) -> str:
    """Return what became of the user's files that were put in the way, and what was written beside them: the save that
    was under way at the move may be, and no later one.
    """
    at = {replace_run: run, replace_checkpoints: run / "checkpoints" / "step-00000002"}.get(way)
    if at is None:
        return ""
    found = {path.relative_to(at).as_posix(): path.read_bytes() for path in at.rglob("*") if path.is_file()}
    mine = {name: f"mine: {name}\n".encode() for name in USERS}
    if odd := [name for name in mine if found.get(name) != mine[name]]:
        return f"the user's {', '.join(odd)} were changed or removed"
    saves = sorted({re.sub(r"(step-\d+)/.*", r"\1", name) for name in {*found} - {*mine}})
    return f"{len(saves)} saves were written to the old place: {', '.join(saves)}" if len(saves) > 1 else ""


def put_back(way: Callable, run: Path, aside: Path) -> str:
    """Undo the move; return what stands in the way of it."""
    if way in (move_run, replace_run):
        if way is move_run and run.exists() and any(path.is_file() for path in run.rglob("*")):
            return f"there is something in the old place: {', '.join(contents(run))}"
        shutil.rmtree(run, ignore_errors=True)
        os.rename(aside, run)
    elif (aside / "checkpoints").exists():
        if way is move_checkpoints and (run / "checkpoints").exists() and any((run / "checkpoints").iterdir()):
            return f"there is something in the old place: {', '.join(contents(run / 'checkpoints'))}"
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        os.rename(aside / "checkpoints", run / "checkpoints")
    return ""


@attack(
    "unreachable",
    "a part of the run out of reach before a resume: it goes on rightly, or is refused and changes no byte",
)
def out_of_reach(home: Path, tries: Tries) -> Row:
    target = Target.make(home)
    names = ("checkpoints", "data", "model.json", "recipe.json", "run.json", "checkpoints/run.json", "metrics.jsonl")
    ways = ("gone", "dangling link", "empty folder", "empty file", *([] if os.getuid() else ["no permission"]))

    def case(one: tuple[str, str], draw: random.Random) -> str:
        name, way = one
        run, aside = target.run("reach", half=True), target.home / "aside"
        os.rename(run / name, aside)
        hide(run / name, aside, way)
        before = contents(run)
        ended = forking.run(as_nobody(run, command("train", run, "--resume"), drop=way == "no permission"))
        problem = problem_of(ended, ENDS)
        if not problem and ended.code:
            changed = changes(before, run)
            problem = f"refused, and yet changed {changed}" if changed else reveal(run, name, aside)
        lost = name == "metrics.jsonl" and ended.code == 0  # it goes on with a new log
        problem = problem or target.finish(run, metrics=not lost)
        for path in (run, aside):
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
        return problem

    there = [name for name in names if (target.half / name).exists()]
    return tries.each([(name, way) for name in there for way in ways], case, short=6)


def hide(path: Path, aside: Path, way: str) -> None:
    match way:
        case "dangling link":
            path.symlink_to(path.parent / "not-mounted")
        case "empty folder":
            path.mkdir()
        case "empty file":
            path.touch()
        case "no permission":
            os.rename(aside, path)
            path.chmod(0)


def reveal(run: Path, name: str, aside: Path) -> str:
    """Put back what was hidden."""
    path = run / name
    if not aside.exists():
        path.chmod(0o755)
        return ""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    os.rename(aside, path)
    return ""


def as_nobody(run: Path, work: Callable[[], int], *, drop: bool) -> Callable[[], int]:
    """Return the work as done by a user whom permissions hold; root is held by none."""

    def dropped() -> int:
        for path in [run, *run.rglob("*")] if drop else ():
            os.chown(path, NOBODY, NOBODY)
        if drop:
            for folder in run.parents[:3]:
                folder.chmod(0o755)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return work()

    return dropped


@attack("users-files", "training into a folder that holds a file of the user's under a name of ours")
def in_a_folder_of_the_users(home: Path, tries: Tries) -> Row:
    target = Target.make(home)

    def case(name: str, draw: random.Random) -> str:
        run = target.home / "users"
        path = run / name
        path.parent.mkdir(parents=True)
        path.write_text("mine\n", encoding="utf-8")
        before = contents(run)
        problem = problem_of(forking.run(lambda: go_on(run, target.recipe)), ENDS)
        kept = path.is_file() and path.read_text(encoding="utf-8", errors="replace") == "mine\n"
        if not problem and not kept and name != ".lock":
            problem = f"the user's file was changed; the folder: {changes(before, run)}"
        shutil.rmtree(run)
        return problem

    return tries.each(OURS, case, short=5)


@attack("links", "links planted at every name of a run: what they lead to stays as it is")
def links(home: Path, tries: Tries) -> Row:
    target = Target.make(home)
    cases = [(name, where, half) for name in OURS for where in ("file", "folder", "nothing") for half in (False, True)]

    def case(one: tuple[str, str, bool], draw: random.Random) -> str:
        name, where, half = one
        run, victims = target.run("linked", half=half), target.home / "victims"
        plant(run / name, victims, where)
        before = contents(victims)
        ended = forking.run(command("train", run, "--resume") if half else lambda: go_on(run, target.recipe))
        changed = changes(before, victims, but=())
        problem = problem_of(ended, ENDS) or (f"changed through the link: {changed}" if changed else "")
        for path in (run, victims):
            shutil.rmtree(path)
        return problem

    return tries.each(cases, case, short=30)


def plant(path: Path, victims: Path, where: str) -> None:
    """Put a link in the place of a file or a folder; it leads to a copy of what was there, or to a user's files."""
    victims.mkdir()
    victim = victims / path.name
    if where != "nothing":
        if path.exists():
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, victim)
        elif where == "folder":
            users_files(victim)
        else:
            victim.write_text("mine\n", encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(victim)
