"""Trains the variants that the notes describe, on the demo's number words and on Multi30k, and writes one table.

    python benchmarks/note_variants.py demo --runs RUNS
    python benchmarks/note_variants.py multi30k --data DATA/multi30k/tok --runs RUNS
    python benchmarks/note_variants.py table --runs RUNS

Data, steps, rate and seeds are the same for all variants of a task. Every run adds a line to RUNS/results.jsonl, and a
run whose line is there is not made again, so the same command goes on where it was stopped. `table` writes
RUNS/table.md and RUNS/table.json from the lines there are. All runs are made in one process, to spare 60 starts.
"""

import argparse
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clearhead.cli.demo import demo_recipe, draw_numbers
from clearhead.cli.demo import write_corpus as write_number_corpus
from clearhead.errors import ClearheadError
from clearhead.experiments.comparing import varied
from clearhead.experiments.comparison import EXACT, LOSS, Measure, markdown_table, mean_of
from clearhead.text.encoding import Corpus
from clearhead.text.sources import Aligned
from clearhead.training.recipe import Budget, Checkpointing, Machine, Recipe
from clearhead.training.reporting import replace_nonfinite
from clearhead.training.schedules import InverseSqrt
from clearhead.training.tasks import Translate, default_recipe
from clearhead.training.train import train

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "pre-norm": {"block": "pre"},
    "post-norm": {"block": "post"},
    "a single residual": {"block": "single-residual"},
    "no norm": {"block": "none"},
    "sliced heads": {"heads": "sliced"},
    "values of rank 8": {"value_rank": "8"},
    "values of rank 32, 128 wide": {"value_rank": "32", "d_value": "128"},
    "no scale": {"scale": "none"},
    "scale 1/d_head": {"scale": "0.03125"},
    "no feed-forward": {"feed_forward": "none"},
}
"""Each beside the rest of the task's own model, which is pre-norm in the demo and post-norm in Multi30k. Both are 128
wide with 4 heads of 32."""

MEASURES: Mapping[str, tuple[Measure, ...]] = {"demo": (EXACT, LOSS), "multi30k": (Translate.measures[0], LOSS)}
PARAMETERS = Measure("parameters", "parameters", digits=0)
TITLES = {"demo": "number words", "multi30k": "Multi30k"}
KEPT = ("bleu", "chrf", "exact_match", "loss", "parameters", "training_seconds")


def demo(args: argparse.Namespace) -> Recipe:
    """The demo's recipe on the numbers of seed 1; `--numbers` may hold the files already."""
    folder = args.numbers or args.runs / "numbers"
    if not (folder / "train.de").exists():
        return demo_recipe(write_number_corpus(draw_numbers(1), folder), 1)
    train_pair, held_out = (
        Aligned(source=(str(folder / f"{name}.de"),), target=(str(folder / f"{name}.en"),))
        for name in ("train", "held-out")
    )
    return demo_recipe(Corpus(train=train_pair, dev=held_out), 1)


def multi30k(args: argparse.Namespace) -> Recipe:
    """The setting of the seven kinds in docs/results.md: 4 + 4 blocks, 128 wide, steps of up to 8,192 tokens."""

    def pair(split: str) -> Aligned:
        files = [str(args.data / f"{split}.lc.norm.tok.{side}.gz") for side in ("en", "de")]
        return Aligned(source=(files[0],), target=(files[1],))

    recipe = default_recipe("translate", Corpus(train=pair("train"), dev=pair("val")), Machine(device=args.device))
    return replace(
        recipe,
        optimizer=replace(recipe.optimizer, lr=3e-3, schedule=InverseSqrt(warmup=400)),
        budget=Budget(steps=1200),
    )


def of_variant(recipe: Recipe, variant: str, seed: int, args: argparse.Namespace) -> Recipe:
    """Return the recipe of one run. Nothing is chosen on the way: the weights at the end count."""
    steps = args.steps or recipe.budget.steps
    assert steps is not None
    return replace(
        varied(recipe, VARIANTS[variant]),
        budget=Budget(steps=steps),
        checkpointing=Checkpointing(log=100, evaluate=steps, checkpoints=1, select="last", score_records=50, samples=0),
        machine=Machine(device=args.device),
        seed=seed,
    )


def one_run(recipe: Recipe, folder: Path, data: Path) -> dict[str, Any]:
    """Return the scores of a run, or why there are none: a loss that is no number ends a run, and is a result."""
    shutil.rmtree(folder, ignore_errors=True)
    started = time.perf_counter()
    try:
        run = train(folder, recipe, log=lambda text: None, data=data)
    except ClearheadError as error:
        found: dict[str, Any] = {"failed": str(error)}
    else:
        written = json.loads(run.folder.evaluation.read_text(encoding="utf-8"))
        found = {key: written[key] for key in KEPT if key in written}
    return {**found, "seconds": round(time.perf_counter() - started, 1)}


def train_all(args: argparse.Namespace) -> None:
    recipe = {"demo": demo, "multi30k": multi30k}[args.work](args)
    results = args.runs / "results.jsonl"
    done = {(line["task"], line["variant"], line["seed"], line["steps"]) for line in read_lines(results)}
    begun = time.perf_counter()
    for seed in args.seeds:
        for variant in args.only or VARIANTS:
            made = of_variant(recipe, variant, seed, args)
            if (args.work, variant, seed, made.budget.steps) in done:
                continue
            if args.minutes and time.perf_counter() - begun > 60 * args.minutes:
                print(f"{args.minutes:g} minutes are over; the same command goes on from here", flush=True)
                return
            name = f"{args.work}-{variant.replace(' ', '-').replace('/', '-')}-seed{seed}"
            found = one_run(made, args.runs / name, args.runs / "data" / args.work)
            line = {"task": args.work, "variant": variant, "seed": seed, "steps": made.budget.steps, **found}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(replace_nonfinite(line), ensure_ascii=False) + "\n")
            print(json.dumps(line, ensure_ascii=False), flush=True)
    print(f"{args.work}: all runs are there, after {time.perf_counter() - begun:.0f} s", flush=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_table(args: argparse.Namespace) -> None:
    """Writes table.md and table.json: a row for each variant, mean ± sample standard deviation over its seeds.

    Of runs with different budgets only the longest are in it.
    """
    lines = read_lines(args.runs / "results.jsonl")
    steps = {task: max((line["steps"] for line in lines if line["task"] == task), default=0) for task in MEASURES}
    lines = [line for line in lines if line["steps"] == steps[line["task"]]]
    tasks = [task for task in MEASURES if any(line["task"] == task for line in lines)]
    columns = [(task, measure) for task in tasks for measure in (*MEASURES[task], PARAMETERS)]
    head = ["", *(f"{TITLES[task]}, {measure.name}" for task, measure in columns), "runs"]
    rows, told = [], []
    for variant in VARIANTS:
        own = [line for line in lines if line["variant"] == variant]
        means = {(task, measure): mean_over(own, task, measure) for task, measure in columns}
        runs = "/".join(str(sum(line["task"] == task and "failed" not in line for line in own)) for task in tasks)
        shown = [
            "–" if mean is None else measure.shown(mean.mean, None if measure is PARAMETERS else mean.spread)
            for (_, measure), mean in means.items()
        ]
        rows.append([variant, *shown, runs])
        told.append(
            {
                "variant": variant,
                "changes": dict(VARIANTS[variant]),
                "scores": {f"{task} {one.key}": mean and mean._asdict() for (task, one), mean in means.items()},
                "failed": [line for line in own if "failed" in line],
            }
        )
    text = markdown_table(head, rows) + "\n"
    (args.runs / "table.md").write_text(text, encoding="utf-8")
    (args.runs / "table.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(text)


def mean_over(lines: Sequence[Mapping[str, Any]], task: str, measure: Measure) -> Any:
    values = [line[measure.key] for line in lines if line["task"] == task and line.get(measure.key) is not None]
    return mean_of(values) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("demo", "multi30k", "table"))
    parser.add_argument("--data", type=Path, help="multi30k: the folder with train.lc.norm.tok.en.gz and so on")
    parser.add_argument("--numbers", type=Path, help="demo: a folder with train.de, train.en, held-out.de, held-out.en")
    parser.add_argument("--runs", type=Path, default=Path("runs/note-variants"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), help="these variants")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--minutes", type=float, help="begin no further run after so long")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    if args.work == "multi30k" and args.data is None:
        parser.error("multi30k needs --data")
    args.runs.mkdir(parents=True, exist_ok=True)
    if args.work != "table":
        train_all(args)
    write_table(args)


if __name__ == "__main__":
    main()
