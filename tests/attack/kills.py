"""Kill -9 and power cuts: before every call that changes a file, in the middle of a write, at random moments, in every
verb that writes, and of several processes that train together.

After each kill the same command is given again, and in the end what it wrote must be as if it had never been killed.
"""

import contextlib
import importlib
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from clearhead.training.folder import RunFolder
from tests.attack import forking
from tests.attack.calls import Act, Calls
from tests.attack.forking import Child, Outcome
from tests.attack.pairs import arms_of, compare_in, compare_runs, import_into
from tests.attack.servers import outlived, processes_of
from tests.attack.small import Target, command, contents, go_on, make, recipe_of
from tests.attack.table import Row, Tries, attack
from tests.interop import saved_models


def counted(target: Target, *, half: bool) -> list[str]:
    """Return the calls of one run to its end that change files."""
    run = target.run("counted", half=half)
    made = calls_of(target.home, lambda: go_on(run, target.recipe))
    shutil.rmtree(run)
    return made


def calls_of(home: Path, work: Callable[[], int]) -> list[str]:
    def count() -> list[str]:
        calls = Calls(home).watch()
        if work():
            raise RuntimeError
        return calls.made

    ended = forking.run(count)
    if ended.value is None:
        raise RuntimeError(f"what is counted failed: {ended.err[-500:]}")
    return ended.value


def do_at(home: Path, work: Callable[[], int], k: int, act: str | Act) -> Outcome:
    """Do the work in a child that does something before its k-th call: "kill", "tear", "cut_power" or a function."""

    def watched() -> int:
        calls = Calls(home, k)
        calls.act = getattr(calls, act) if isinstance(act, str) else act
        calls.watch()
        return work()

    return forking.run(watched)


def at_every_call(home: Path, tries: Tries, acts: tuple[str, ...], *, half: bool) -> Row:
    """Kill a run before each of its calls, or tear what it writes before each flush, and go on to the end."""
    target = Target.make(home)
    made = counted(target, half=half)
    cases = [(act, k, call) for k, call in enumerate(made, start=1) for act in acts]
    cases = [one for one in cases if one[0] != "tear" or one[2].startswith("fsync")]

    def case(one: tuple[str, int, str], draw: random.Random) -> str:
        act, k, _ = one
        run = target.run("killed", half=half)
        ended = do_at(target.home, lambda: go_on(run, target.recipe), k, act)
        problem = "" if ended.code == -9 else f"was not killed: {ended.code} {ended.err[-200:]}"
        problem = problem or target.finish(run)
        shutil.rmtree(run, ignore_errors=True)
        return problem

    return tries.each(cases, case, short=6, note=f"{len(made)} calls")


@attack("kill", "kill -9 before every file call of a training, and in the middle of every write")
def kill(home: Path, tries: Tries) -> Row:
    return at_every_call(home, tries, ("kill", "tear"), half=False)


@attack("kill-resume", "the same in a resume")
def kill_resume(home: Path, tries: Tries) -> Row:
    return at_every_call(home, tries, ("kill", "tear"), half=True)


@attack("power", "a power cut before every file call: what was not flushed is lost")
def power(home: Path, tries: Tries) -> Row:
    return at_every_call(home, tries, ("cut_power",), half=False)


@attack("kill-random", "kill -9 at random moments, again and again, also while it goes on from the kill before")
def kill_random(home: Path, tries: Tries) -> Row:
    target = Target.make(home)
    lasts = time_of(target)

    def case(i: int, draw: random.Random) -> str:
        run = target.run(f"random-{i}", half=False)
        problem = ""
        for _ in range(draw.randint(1, 5)):
            child = forking.start(lambda run=run: go_on(run, target.recipe))
            child.send(9, draw.uniform(0, 1.05 * lasts))
            ended = child.wait()
            if ended.code == 0:
                break
            problem = problem or ("" if ended.code == -9 else f"exit code {ended.code}: {ended.err[-200:]}")
        problem = problem or target.finish(run)
        shutil.rmtree(run, ignore_errors=True)
        return problem

    return tries.each(None, case, full=50, short=2)


def time_of(target: Target) -> float:
    """Return how many seconds a run takes that nothing disturbs."""
    since = time.perf_counter()
    make(target.home / "timed", target.recipe)
    return time.perf_counter() - since


MORE = re.compile(r".*(metrics\.\d+\.jsonl|/checkpoints/step-\d{8}(/.*)?)")
"""What a training that was killed may have besides: a log that was set aside, and a checkpoint more."""


class Verb:
    """A command that writes to `out`, what it wrote undisturbed, and the calls by which it did."""

    def __init__(self, home: Path, name: str, work: Callable[[Path], int]) -> None:
        self.home, self.name, self.work = home / name, name, work
        self.home.mkdir()
        loaded = forking.run(lambda: work(self.home / "out") or sorted(sys.modules)).value
        for module in loaded if isinstance(loaded, list) else ():  # once here, and not in every child
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        self.clear()
        self.made = calls_of(self.home, lambda: work(self.home / "out"))
        self.whole = self.find()

    def find(self) -> dict[str, object]:
        """Return what lies there, without what differs between two runs of the same command: ids, times, places; of
        those files only whether they are empty.
        """
        found: dict[str, object] = {}
        for name, content in contents(self.home).items():
            single = name.endswith(".partial") and content != "folder" and "/" not in name
            if single or name.endswith(".lock"):  # half-written, it stays beside its place; a lock keeps a dead number
                continue
            fixed = isinstance(content, bytes) and name.endswith((".safetensors", ".npy", ".gguf", "tokenizer.json"))
            found[name] = content if fixed or not isinstance(content, bytes) else f"{bool(content)} file"
        return found

    def clear(self) -> None:
        shutil.rmtree(self.home)
        self.home.mkdir()

    def killed(self, k: int, act: str) -> str:
        """Kill the command before a call, and give it again; return what is wrong with how it ends."""
        self.clear()
        ended = do_at(self.home, lambda: self.work(self.home / "out"), k, act)
        if ended.code != -9:
            return f"was not killed: {ended.code} {ended.err[-200:]}"
        if self.find() != self.whole:
            again = forking.run(lambda: self.work(self.home / "out"))
            if again.code:
                return f"cannot be given again: {again.err[-300:]}"
        found = self.find()
        odd = [name for name in {*found, *self.whole} if found.get(name) != self.whole.get(name)]
        odd = [name for name in odd if name in self.whole or not MORE.fullmatch(name)]
        return f"{', '.join(sorted(odd)[:5])} is missing, left or other" if odd else ""


def verbs(home: Path) -> dict[str, Callable[[Path], int]]:
    """Return every verb that writes something, but for training, which has attacks of its own; without transformers,
    none that imports a model.
    """
    can_import = find_spec("transformers") is not None
    runs = {task: make(home / task, recipe_of(home, task)) for task in ("translate", "generate", "fill")}
    lines = home / "lines.txt"
    lines.write_text("eins zwei\ndrei\n", encoding="utf-8")
    text = home / "text-translate"
    sources = ("--source", text / "de", "--target", text / "en")
    traced = ("trace", runs["translate"], "eins zwei", "--target-text", "12")
    commands: dict[str, Callable[[Path], tuple[object, ...]]] = {
        "export": lambda out: ("export", runs["generate"], "--to", "torch", "-o", out),
        "export to Hugging Face": lambda out: ("export", home / "imported", "--to", "hf", "-o", out),
        "trace as HTML": lambda out: (*traced, "--html", out),
        "trace as SVG": lambda out: (*traced, "--svg", out),
        "steps": lambda out: ("steps", "--svg", out),
        "embed": lambda out: ("embed", runs["fill"], lines, "--output", out.with_suffix(".npy")),
        "evaluate": lambda out: ("evaluate", runs["translate"], *sources, "--beam", 1, "--output", out),
        "page": lambda out: ("page", runs["translate"], "-o", out),
        "circuits": lambda out: (
            "circuits",
            "bench",
            "--program",
            "shift",
            "--methods",
            "eap",
            "--axes",
            "argmax",
            "-o",
            out,
        ),
    }
    arms = arms_of(home)
    found = {"import": lambda out: import_into(home / "source", out), "compare": lambda out: compare_in(out, arms)}
    found |= {name: lambda out, args=args: command(*args(out))() for name, args in commands.items()}
    if can_import:
        forking.run(lambda: bool(saved_models.save("bert", home / "source", rows=3)))
        import_into(home / "source", home / "imported")
    else:
        del found["import"], found["export to Hugging Face"]
    return found


@attack(
    "kill-verbs",
    "kill -9 or a power cut before every file call of import, export, trace, steps, embed, evaluate, page, compare and "
    "circuits; the same command again",
)
def kill_verbs(home: Path, tries: Tries) -> Row:
    there, broken = {}, []
    for name, work in verbs(home).items():
        try:
            if not tries.case or name in tries.case:
                there[name] = Verb(home, name, work)
        except RuntimeError as error:  # a package is missing, and the others are tried all the same
            broken.append(f"{name}: {error}")
    cases = [
        (verb.name, k, call, act)
        for verb in there.values()
        for k, call in enumerate(verb.made, start=1)
        for act in ("kill", "cut_power")
        if verb.name != "compare" or k % 2  # most of its calls are a training's
    ]
    row = tries.each(cases, lambda one, draw: there[one[0]].killed(one[1], one[3]), short=8)
    row.failures += broken
    return row


def start_training(*args: object) -> Child:
    """Begin `clearhead train` on two processes; they are forks of this one, where a user's are new interpreters."""
    from torch.distributed.launcher import api

    def work() -> int:
        launch = api.elastic_launch

        def launch_forks(config: api.LaunchConfig, entrypoint: str) -> Callable[..., object]:
            config.start_method = "fork"
            return lambda _, package, *args: launch(config, lambda: sys.exit(command(*args)()))()

        api.elastic_launch = launch_forks  # type: ignore[assignment]
        sys.argv[1:] = ["train", *map(str, args), "--device", "cpu", "--threads", "1", "--processes", "2"]
        return command(*sys.argv[1:])()

    return forking.start(work)


@attack(
    "kill-processes",
    "kill -9 of a training on two processes, the launcher or one of them: none is left, and a resume ends as ever",
)
def kill_processes(home: Path, tries: Tries) -> Row:
    from tests.training.small_runs import pairs, write_lines

    for place, name in enumerate(("de", "en")):
        write_lines(home / name, [row[place] for row in pairs(200)])
    options = ("--task", "translate", "--source", home / "de", "--target", home / "en", "--size", "20k")
    options += ("--steps", 120, "--save-every", 30, "--no-film")
    reference, began = home / "reference", time.perf_counter()
    if (whole := start_training(reference, *options).wait()).code:
        raise RuntimeError(f"the training that nothing disturbs failed: {whole.err[-500:]}")
    lasts = time.perf_counter() - began

    def case(i: int, draw: random.Random) -> str:
        run = home / f"run-{i}"
        launcher = start_training(run, *options)
        time.sleep(draw.uniform(0.1, 1) * lasts)
        family = processes_of(launcher.number)
        victim = launcher.number if draw.random() < 0.6 else draw.choice(family)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, 9)
        launcher.wait()
        problem = outlived(family, patience=1.0 if victim == launcher.number else 60.0)
        again = start_training(run, *(("--resume",) if RunFolder(run).exists() else options)).wait()
        problem = problem or (f"cannot go on: {again.err[-300:]}" if again.code else compare_runs(run, reference))
        shutil.rmtree(run, ignore_errors=True)
        return problem

    return tries.each(None, case, full=50, short=1)
