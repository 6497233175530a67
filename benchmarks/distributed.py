"""Several processes against one: throughput on the same cores, and how much of DDP's communication is hidden.

`python -m benchmarks.distributed` trains a decoder with one process of N threads and with N processes of one thread, in
turns, and prints the tokens a second of each and their ratio. `--profile` trains a few steps of a larger decoder in two
processes under torch's profiler, prints how much of the time of all-reduces falls together with the backward pass's own
work, and with `--picture FILE` draws the step in the middle. The kills are in tests/training/together.py.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from clearhead.model.presets import Size
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Documents
from clearhead.training import train_step
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine
from clearhead.training.reporting import read_metrics
from clearhead.training.tasks import default_recipe
from clearhead.training.tasks.learning import decoder
from clearhead.training.train import train

WORDS = ("the", "cat", "eats", "a", "red", "plum", "and", "sleeps", "near", "old", "trees", "while", "rain", "falls")
WARM = 3
"""Steps that are not counted."""
LARGE = Size(8, 512, 8, 8, 2048)
"""25 million parameters: 100 MB of gradients, in five buckets."""
Spans = list[tuple[float, float]]


class Overlap(NamedTuple):
    """The times of a step, in microseconds: of the backward pass's own work, and of all-reduces."""

    backward: Spans
    reducing: Spans

    @property
    def share(self) -> float:
        """Return the share of the time of all-reduces in which another thread computes gradients."""
        total = sum(end - start for start, end in self.reducing)
        inside = sum(
            max(0, min(end, last) - max(start, first)) for start, end in self.reducing for first, last in self.backward
        )
        return inside / total if total else 0.0


def recipe_in(home: Path, steps: int, threads: int, *, large: bool = False):
    """Return a recipe for a decoder on lines of random words: a small one, or one whose gradients fill some buckets of
    DDP.
    """
    draw = random.Random(0)
    text = home / "text"
    lines = (" ".join(draw.choices(WORDS, k=draw.randint(8, 30))) for _ in range(3000))
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    corpus = Corpus(train=Documents(paths=(str(text),), unit="line"))
    recipe = default_recipe("generate", corpus, Machine(device="cpu", threads=threads, parallel="ddp"))
    return replace(
        recipe,
        tokenizing=Tokenizing(kind="byte"),
        model=decoder(LARGE, 128, 0.0) if large else recipe.model,
        batching=Batching(tokens=1024 if large else 4096, context=128),
        budget=Budget(steps=steps),
        checkpointing=Checkpointing(log=1, evaluate=steps, score_records=0, samples=0, film=False),
        open=(),
    )


def work(home: Path, steps: int, threads: int, *, profiled: bool, picture: Path | None) -> None:
    """Train, as one process of several or alone."""
    first = os.environ.get("RANK", "0") == "0"
    recipe = recipe_in(home, steps, threads, large=profiled) if first else None
    if not profiled:
        train(home / "run", recipe, log=ignore, watcher=ignore)  # pyright: ignore[reportArgumentType]
        return
    found: list[Overlap] = []
    step = train_step.TrainState.step
    taken = 0

    def profile_step(self, batches, rate):
        nonlocal taken
        taken += 1
        if taken <= WARM:
            return step(self, batches, rate)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            step(self, batches, rate)
        found.append(overlap_of(profiler.events()))

    train_step.TrainState.step = profile_step
    train(home / "run", recipe, log=ignore, watcher=ignore)  # pyright: ignore[reportArgumentType]
    if first:
        shares = sorted(one.share for one in found)
        listed = ", ".join(f"{one.share:.0%}" for one in found)
        print(
            f"of the time of all-reduces, hidden behind the backward pass: {sum(shares) / len(shares):.0%} in the mean "
            f"of {len(shares)} steps ({listed})"
        )
        if picture is not None:
            draw(min(found, key=lambda one: abs(one.share - shares[len(shares) // 2])), picture)


def overlap_of(events) -> Overlap:
    """Return the times of a step from what the profiler saw."""
    calls = [(one.time_range.start, one.time_range.end) for one in events if one.name == "gloo:all_reduce"]
    work = merge((one.time_range.start, one.time_range.end) for one in events if one.name.endswith("Backward0"))
    return Overlap(work, sorted(calls))


def draw(overlap: Overlap, path: Path) -> None:
    """Draw when the backward pass computes, and when gradients are summed."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "clearhead"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 1.8), layout="constrained")
    begin = min(start for start, _ in overlap.backward)
    rows = {"all-reduce": (overlap.reducing, "#b4531f"), "backward": (overlap.backward, "#2f6f9f")}
    for height, (spans, colour) in enumerate(rows.values()):
        bars = [((start - begin) / 1e3, (end - start) / 1e3) for start, end in spans]
        axes.broken_barh(bars, (height - 0.35, 0.7), facecolors=colour)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xlabel(f"milliseconds of a step; {overlap.share:.0%} of the all-reduces' time is hidden")
    figure.savefig(path, metadata={"Date": None})


def merge(spans) -> list[tuple[float, float]]:
    """Return spans of time that overlap as one each.

    >>> merge([(0, 2), (5, 6), (1, 3)])
    [(0, 3), (5, 6)]
    """
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def ignore(said: object) -> None:
    """Say nothing."""


def run(processes: int, threads: int, steps: int, *, profiled: bool = False, picture: Path | None = None) -> float:
    """Train in a process of its own, or in several; return tokens a second."""
    with tempfile.TemporaryDirectory() as folder:
        own = ["-m", "benchmarks.distributed", "--work", folder, "--steps", str(steps), "--threads", str(threads)]
        own += ["--profile"] if profiled else []
        own += [] if picture is None else ["--picture", str(picture.absolute())]
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run([sys.executable, *launcher, *own], check=True, env=env)
        lines = [line for line in read_metrics(Path(folder) / "run" / "metrics.jsonl") if line["kind"] == "step"]
    first, last = lines[WARM - 1], lines[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        work(args.work, args.steps, args.threads, profiled=args.profile, picture=args.picture)
    elif args.profile:
        run(args.processes, 1, args.steps, profiled=True, picture=args.picture)
    else:
        for _ in range(args.rounds):
            alone, together = run(1, args.processes, args.steps), run(args.processes, 1, args.steps)
            print(
                f"one process, {args.processes} threads: {alone:,.0f} tokens/s; {args.processes} processes: "
                f"{together:,.0f} tokens/s; ratio {together / alone:.2f}"
            )


if __name__ == "__main__":
    main()
