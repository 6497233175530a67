"""The runs of a comparison: each a job, done by a process of its own, so that its memory is its alone.

`python -m clearhead.experiments.workers run RUN/job.json` is such a process. Modules with parts of the user's own come
after it: a worker imports those that its command line names, and none because its job names them.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clearhead.errors import ClearheadError, DataError, OptionError, RunError
from clearhead.experiments.probes import score_recall
from clearhead.files import open_log, os_errors_as_run_errors, read_sealed
from clearhead.registry import import_parts
from clearhead.serialization import from_json, table_of, to_json
from clearhead.system import LAUNCHER, end_with_launcher
from clearhead.text.preparing import prepare
from clearhead.training import Run, resume, train
from clearhead.training.claiming import check_new, claim
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import CLASSES, Recipe, own_modules
from clearhead.training.reporting import Stopping
from clearhead.training.tasks import task_named

Log = Callable[[str], None]
PAUSE = 0.1
"""Seconds between looks at the processes."""
STOP = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM)
"""What asks a worker to save and leave. On Windows SIGTERM would end it at once."""
JOB, LOG, RECALL = "job.json", "log.txt", "recall.json"


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One run: an arm with a seed. `recall` is a file of texts whose questions it is asked in the end."""

    arm: str
    recipe: Recipe
    run: str
    data: str
    recall: str | None = None

    @property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.run))

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def name(self) -> str:
        return self.folder.path.name


KNOWN: Mapping[str, type] = ChainMap(table_of([TrainingJob]), CLASSES)  # pyright: ignore[reportArgumentType] - it is only read


def begin(jobs: Sequence[TrainingJob]) -> None:
    """Claim the folder of each run that is not there yet, and write its job into it."""
    for job in jobs:
        if not job.folder.exists():
            check_new(job.folder)  # a folder that is refused is not even given a lock
        with job.folder.lock():
            if not job.folder.exists():
                claim(job.folder)
            job.folder.write_own(job.folder.path / JOB, {"job": to_json(job, KNOWN)})


def read_job(path: Path) -> TrainingJob:
    """Read the job of a run; RunError if the file is damaged, or of another run."""
    try:
        content = read_sealed(path)
    except FileNotFoundError:
        raise RunError(f"{path}: cannot be read (there is no such file)") from None
    if content.get("run") != RunFolder(path.parent).id():
        raise RunError(f"{path}: is of another run; put this run's own file back")
    job = from_json(content.get("job"), KNOWN, where=str(path))
    if not isinstance(job, TrainingJob):
        raise RunError(f"{path}: holds no job")
    return job


def prepare_text(jobs: Sequence[TrainingJob], log: Log) -> None:
    """Tokenise the text once, in a process of its own; arms that differ in it have their own."""
    different = {
        json.dumps(to_json([job.recipe.corpus, job.recipe.tokenizing, job.recipe.batching.context])): job
        for job in jobs
    }
    for job in different.values():
        process = subprocess.run(
            command("prepare", job), text=True, capture_output=True, env=environment(job), check=False
        )
        for line in process.stdout.splitlines():
            log(line)
        if process.returncode:
            raise DataError(process.stderr.strip() or f"the text could not be read (exit code {process.returncode})")


def command(verb: str, job: TrainingJob) -> list[str]:
    return [
        sys.executable,
        "-m",
        "clearhead.experiments.workers",
        verb,
        str(job.folder.path / JOB),
        *own_modules(job.recipe),
    ]


def environment(job: TrainingJob) -> dict[str, str]:
    """Return our environment, with this clearhead first on the path, then the folders of the user's own modules; a
    worker ends with this process.
    """
    paths = [str(Path(__file__).parents[2]), *map(folder_of, own_modules(job.recipe)), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    return os.environ | {"PYTHONPATH": path, LAUNCHER: str(os.getpid())}


def folder_of(module: str) -> str | None:
    """Return the folder that an imported module is found in, by its own name or its package's; None if it has none."""
    top = sys.modules[module.partition(".")[0]]
    file = getattr(top, "__file__", None)
    return None if file is None else str(Path(file).resolve().parents[1 if hasattr(top, "__path__") else 0])


def run_all(jobs: Sequence[TrainingJob], parallel: int, log: Log) -> dict[str, str]:
    """Run every job in a process of its own; return why those that failed did, by name.

    Ctrl-C and SIGTERM are passed on once: the runs save, and then this raises.
    """
    if parallel < 1:
        raise OptionError(f"parallel: one run at a time or more; came {parallel}")
    waiting = list(enumerate(jobs, 1))
    running: dict[str, subprocess.Popen[bytes]] = {}
    problems: dict[str, str] = {}
    by_name = {job.name: job for job in jobs}
    with Stopping() as stopping:
        try:
            while running or (waiting and not stopping.signal):
                while waiting and len(running) < parallel and not stopping.signal:
                    number, job = waiting.pop(0)
                    log(f"{number}/{len(jobs)}  {job.name}: see {job.folder.path / LOG}")
                    running[job.name] = start_worker(job)
                if stopping.signal:
                    stop_workers(running)
                time.sleep(PAUSE)
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    if running.pop(name).returncode and not stopping.signal:
                        problems[name] = last_line(by_name[name].folder.path / LOG)
                        log(f"{name} failed: {problems[name]}")
        finally:
            stop_workers(running)
    if stopping.signal:
        raise Interrupted(stopping.signal)
    return problems


def start_worker(job: TrainingJob) -> subprocess.Popen[bytes]:
    """Start a worker, whose signals come from us alone."""
    with os_errors_as_run_errors(job.folder.path / LOG), open_log(job.folder.path / LOG) as log:
        return subprocess.Popen(
            command("run", job),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=environment(job),
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )


def stop_workers(running: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Ask the workers to save and leave, and wait for them."""
    for process in running.values():
        process.send_signal(STOP)
    for process in running.values():
        process.wait()


def last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), f"it left nothing in {path}")


class Interrupted(RunError):
    """A comparison was asked to stop; `exit_code` is what a shell expects of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__("stopped, and saved; the same command goes on from here")
        self.exit_code = 128 + number


def work(job: TrainingJob) -> Run:
    """Train a run, or resume it; then ask it what its probe asks."""
    data = Path(job.data)
    if job.folder.exists():
        run = resume(job.run, watcher=report, log=say, data=data)
    else:
        run = train(job.run, job.recipe, watcher=report, log=say, data=data)
    if job.recall is not None:
        texts = Path(job.recall).read_text(encoding="utf-8").splitlines()
        job.folder.write_own(job.folder.path / RECALL, asdict(score_recall(run, texts)))
    return run


def tokenise(job: TrainingJob) -> None:
    recipe = job.recipe
    layout = task_named(recipe.task).layout(recipe.batching.context)
    prepare(recipe.corpus, layout, recipe.tokenizing, Path(job.data), say)


def say(text: str) -> None:
    print(text, flush=True)


def report(line: Mapping[str, Any]) -> None:
    """Print a line of the log for a line of metrics."""
    match line["kind"]:
        case "step":
            pace = f"{line['tokens_per_second']:,} tokens/s"
            say(f"step {line['step']:,}/{line['total']:,}  loss {line['loss']:.4f}  {pace}")
        case "evaluation":
            scores = "".join(f"  {name} {value:.4g}" for name, value in line["scores"].items())
            say(f"dev at step {line['step']:,}  loss {line['loss']:.4f}{scores}")


def main(arguments: Sequence[str]) -> int:
    """Do what a worker process is asked for: `run` or `prepare`."""
    verb, path, *parts = arguments
    try:
        import_parts(parts)
        {"run": work, "prepare": tokenise}[verb](read_job(Path(path)))
    except ClearheadError as error:
        print(error, file=sys.stderr)
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    end_with_launcher()
    sys.exit(main(sys.argv[1:]))
