"""Runs that several processes train together, compared with one process; and runs whose processes are killed.

`torchrun --nproc-per-node 2 -m tests.training.together HOME --steps 5` trains a run of each task in each way, in
HOME/WAY/TASK, and writes the gradients of its first step beside it. Without torchrun it is one process that trains
them, which is what they are compared with. `--forks 2` does what torchrun does, with processes that are forks of one:
each imports for four seconds otherwise.

`python -m tests.training.together HOME --kills 20` kills a random process of a sharded training again and again, and
compares the weights in the end with those of a training that was left alone.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from clearhead.errors import ClearheadError
from clearhead.training import checkpoints, distributed, loop
from clearhead.training.distributed import EndedElsewhere, current_processes, joined
from clearhead.training.folder import RunFolder
from clearhead.training.parallel import full_tensor
from clearhead.training.recipe import Budget
from clearhead.training.reporting import read_metrics
from clearhead.training.resume import resume
from clearhead.training.tasks import task_named
from clearhead.training.train import train
from clearhead.training.train_step import TrainState
from tests.training.tiny import quiet
from tests.training.together_recipes import OPTIONS, TASKS, recipe_of

PAUSE = 0.05
"""Seconds before each stage of the writing of a checkpoint, so that kills fall inside."""


@contextlib.contextmanager
def first_gradients_in(path: Path):
    """Write the gradients of the first step of a training within, before they are clipped, summed and whole."""
    update = TrainState.update

    def write(self):
        TrainState.update = update
        names = {one: name for name, one in self.model.named_parameters()}
        found = {names[one]: full_tensor(one.grad).clone() for one in self.parameters if one.grad is not None}
        if current_processes().is_first:
            save_file(found, path)
        update(self)

    TrainState.update = write
    try:
        yield
    finally:
        TrainState.update = update


def train_all(home: Path, runs, *, steps: int, dtype: torch.dtype = torch.float64, layout=None, **options) -> None:
    """Train runs, each named WAY/NAME, or go on with those that are there, in another `layout` if one is given.
    `options` are those of `recipe_of`.
    """
    before, baseline = torch.get_default_dtype(), task_named("classify").baseline
    torch.set_default_dtype(dtype)
    task_named("classify").baseline = lambda *_, **__: None  # the linear model is of float32
    try:
        with joined() as processes:
            for named in runs:
                run, (way, name) = home / named, named.split("/")
                # The first one decides: another that comes late would find what the first has begun, resume it, and not
                # take part in what the hook below gathers.
                if processes.send(RunFolder(run).exists()):
                    machine = None if layout is None else replace(RunFolder(run).recipe().machine, parallel=layout)
                    resume(run, budget=Budget(steps=steps), machine=machine, log=quiet, watcher=quiet)
                    continue
                asked = way.replace("+", ",")  # `fsdp+context=2`: runs are listed with commas
                recipe = recipe_of(name, home, asked, steps, **options) if processes.is_first else None
                timed = (
                    name in OPTIONS and OPTIONS[name].near is None
                )  # the first process takes steps of its own before
                hook = first_gradients_in(home / way / f"{name}.gradients")
                with contextlib.nullcontext() if timed else hook:
                    train(run, recipe, log=quiet, watcher=quiet)
    finally:
        torch.set_default_dtype(before)
        task_named("classify").baseline = baseline


def in_both_ways(names) -> list[str]:
    """Runs of these names by DDP and by FSDP2, of an option in the ways that it is trained in."""
    ways = ("ddp", "fsdp")
    return [f"{way}/{name}" for way in ways for name in names if name not in OPTIONS or way in OPTIONS[name].ways]


def command_of(count: int, *args: object) -> list[str]:
    """Return the command that runs this module in so many processes, by torchrun; 0: in one of its own, without."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(count)] if count else []
    return [sys.executable, *launcher, "-m", "tests.training.together", *map(str, args)]


def launch(count: int, *args: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command of so many processes to its end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command_of(count, *args), check=False, capture_output=True, text=True, env=env)
    if check and done.returncode:
        raise AssertionError(done.stderr[-6000:])
    return done


def fork_processes(count: int, args: argparse.Namespace) -> None:
    """Do what torchrun does in this process, with forks of it."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        start_method="fork",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    elastic_launch(config, train_asked)(args)


def train_asked(args: argparse.Namespace) -> None:
    options = {"steps": args.steps, "dtype": getattr(torch, args.dtype), "device": args.device, "lr": args.lr}
    train_all(args.home, args.runs.split(","), layout=args.layout, **options)
    assert args.forks in (0, current_processes().count)


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "step"]


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """All that the newest checkpoint of a run holds."""
    newest = RunFolder(run).checkpoints.newest()
    return {**load_file(newest.folder / "model.safetensors"), **load_file(newest.folder / "training.safetensors")}


def gradients(run: Path) -> dict[str, torch.Tensor]:
    """The gradients of the first step of a run, by parameter."""
    return load_file(run.with_name(f"{run.name}.gradients"))


def relative(ours, theirs) -> float:
    """The largest difference of two gradients, by the largest number of the second one, over all parameters."""
    return worst(ours, theirs) / max(float(one.abs().max()) for one in theirs.values())


def worst(ours, theirs) -> float:
    """The largest difference of two lists of losses, or of two checkpoints' tensors."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    assert len(ours) == len(theirs)
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def work_slowly(run: Path, home: Path, steps: int) -> int:
    """What a process does that is to be killed: each stage of a save takes a while, and is told in a file."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    torch.set_default_dtype(torch.float64)  # in float32 the order of sums, by the number of processes, shows
    place = run.with_suffix(".place")
    finish = HuggingFaceStorageWriter.finish

    def at(stage):
        if current_processes().is_first:
            place.write_text(stage)
            time.sleep(PAUSE)

    def slow_finish(self, metadata, results):
        at("consolidation")
        finish(self, metadata, results)
        at("consolidated")

    HuggingFaceStorageWriter.finish = slow_finish
    checkpoints.between_writes = at
    try:
        with joined() as processes:
            if RunFolder(run).exists():
                resume(run, log=quiet, watcher=lambda line: line["kind"] == "saved" and place.write_text("outside"))
            else:
                recipe = recipe_of("translating", home, "fsdp", steps, save=2) if processes.is_first else None
                train(run, recipe, log=quiet, watcher=quiet)
    except EndedElsewhere as error:
        return error.exit_code
    except ClearheadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def kill_again_and_again(home: Path, kills: int, steps: int, seed: int, counts=(1, 2, 4)) -> float:
    """Kill a random process after a random while, `kills` times, each time resuming on one of these numbers of them;
    return the worst difference of the last checkpoint to that of a run that was left alone.
    """
    draw = random.Random(seed)
    launch(counts[-1], home, "--slow", home / "alone", "--steps", steps)
    run, place = home / "killed", home / "killed.place"
    seen: dict[str, int] = {}
    done = 0
    while done < kills:
        count = draw.choice(counts)
        command = command_of(count, home, "--slow", run, "--steps", steps)
        place.unlink(missing_ok=True)
        begun = newest_step(run)
        job = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        while job.poll() is None and not place.exists():
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.8))
        children = workers_of(job.pid)
        if job.poll() is None and children:
            stage = place.read_text()
            os.kill(draw.choice(children), signal.SIGKILL)
            asked = time.monotonic()
            job.wait()
            done += 1
            seen[stage] = seen.get(stage, 0) + 1
            whole = newest_step(run)
            assert whole >= begun, f"a checkpoint was lost: {begun} before, {whole} now"
            taken = time.monotonic() - asked
            print(f"kill {done:>2}, of {count}: at {stage}; ended in {taken:.1f} s; step {whole}", flush=True)
        job.wait()
        if newest_step(run) >= steps and done < kills:  # it got to its end: again, in a new folder
            assert worst(tensors(run), tensors(home / "alone")) < 1e-9
            run, place = home / f"killed-{done}", home / f"killed-{done}.place"
    launch(counts[0], home, "--slow", run, "--steps", steps)
    found = worst(tensors(run), tensors(home / "alone"))
    print(f"{kills} kills ({', '.join(f'{n} at {stage}' for stage, n in seen.items())}): worst difference {found:.1e}")
    return found


def newest_step(run: Path) -> int:
    """The step of the newest whole checkpoint, 0 where there is none."""
    if not (run / "recipe.json").exists():
        return 0
    newest = RunFolder(run).checkpoints.newest()
    return 0 if newest is None else newest.step


def workers_of(parent: int) -> list[int]:
    """The processes that a torchrun has started."""
    found = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(one) for one in found.read_text().split()] if found.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("--runs", default=",".join(in_both_ways(TASKS)))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--timeout", type=float, help="seconds that a process waits for another one in a step")
    parser.add_argument("--slow", type=Path)
    parser.add_argument("--forks", type=int, default=0)
    parser.add_argument("--layout", help="go on with runs in this layout, and not in their own")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--counts", default="1,2,4")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    loop.draw_curves = lambda *_, **__: None  # to draw them takes longer than to train
    if args.timeout is not None:
        distributed.STEP_TIMEOUT = timedelta(seconds=args.timeout)
    if args.slow is not None:
        return work_slowly(args.slow, args.home, args.steps)
    if args.kills:
        counts = tuple(map(int, args.counts.split(",")))
        return int(kill_again_and_again(args.home, args.kills, args.steps, args.seed, counts) > 1e-9)
    if args.forks:
        fork_processes(args.forks, args)
    else:
        train_asked(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
