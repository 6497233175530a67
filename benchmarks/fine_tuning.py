"""Pretrain an encoder on unlabelled text, then classify few labelled lines: whole, by LoRA, and from scratch.

    python benchmarks/fine_tuning.py --data DATA/sst2 --runs RUNS --text MORE.gz --rates 3e-4 1e-3 3e-3 --jobs 6

The encoder learns to fill blanks on all sentences of train.tsv.gz, without their labels, and on more text. Then
labelled lines, evenly over the file, are learned by the pretrained encoder (all weights, or LoRA) and by the same model
from random weights, with the same tokeniser, steps and seeds. The best checkpoint is chosen on a thousand lines of
dev.tsv.gz, and so is the learning rate of each way, by the mean over the seeds; the accuracy is that on all of
test.tsv.gz. A run that is there is not made again.
"""

import argparse
import gzip
import json
import multiprocessing
import statistics
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from clearhead.model.lora import Lora
from clearhead.model.outputs import Blanks, Classes
from clearhead.model.presets import Size
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Documents, Table
from clearhead.training.fine_tuning import fine_tuning_recipe
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Budget, Checkpointing, Machine, Recipe
from clearhead.training.run import Run, load
from clearhead.training.schedules import CosineDecay
from clearhead.training.tasks import default_recipe
from clearhead.training.tasks.learning import encoder
from clearhead.training.train import train

WAYS = ("scratch", "whole", "lora")


def write_some(source: Path, target: Path, count: int) -> Table:
    """Write this many lines, evenly over a packed table, and return them as a source."""
    with gzip.open(source, "rt", encoding="utf-8") as file:
        head, *rows = file.read().splitlines()
    chosen = [rows[i * len(rows) // count] for i in range(min(count, len(rows)))]
    target.write_text("\n".join([head, *chosen, ""]), encoding="utf-8")
    return Table(paths=(str(target),), columns=("sentence", "label"), fields=("text", "label"))


def pretrain(args: argparse.Namespace) -> Path:
    """Train the encoder to fill blanks, and return its folder."""
    path = args.runs / "pretrained"
    if (path / "evaluation.json").exists():
        return path
    with gzip.open(args.data / "train.tsv.gz", "rt", encoding="utf-8") as file:
        sentences = [line.partition("\t")[0] for line in file.read().splitlines()[1:]] * args.repeat
    for more in args.text:
        with gzip.open(more, "rt", encoding="utf-8") as file:
            sentences += [line for line in file.read().splitlines() if line.strip()]
    text = args.runs / "unlabelled.txt"
    text.write_text("\n".join([*sentences, ""]), encoding="utf-8")
    usual = default_recipe(
        "fill", Corpus(train=Documents(paths=(str(text),), unit="line")), Machine(device=args.device)
    )
    size = Size(args.layers, args.width, args.width // 32, args.width // 32, 4 * args.width)
    recipe = replace(
        usual,
        model=encoder(size, Blanks(), 0.1),
        tokenizing=Tokenizing(kind="metaspace", size=8000, lower=True),
        optimizer=replace(
            usual.optimizer, lr=args.pretrain_rate, schedule=CosineDecay(warmup=args.pretrain_steps // 10)
        ),
        batching=replace(usual.batching, context=64, tokens=args.pretrain_tokens),
        budget=Budget(steps=args.pretrain_steps),
        checkpointing=Checkpointing(evaluate=max(1, args.pretrain_steps // 4), log=200, samples=0),
    )
    train(path, recipe)
    return path


def recipe_of(way: str, corpus: Corpus, args: argparse.Namespace) -> Recipe:
    """Return the recipe of a way to learn the labelled lines; dropout, steps and batches are the same in all."""
    source, machine = args.runs / "pretrained", Machine(device=args.device)
    if way == "scratch":
        usual, spec = default_recipe("classify", corpus, machine), RunFolder(source).spec()
        return replace(
            usual,
            model=replace(spec, output=Classes(2, pool="mean")),
            tokenizing=Tokenizing(given=str(source / "tokenizer.json")),
        )
    lora = Lora(rank=args.rank, maps=("all",)) if way == "lora" else None
    return fine_tuning_recipe(source, corpus, task="classify", lora=lora, machine=machine)


class Case(NamedTuple):
    """One run: how it begins, its learning rate, its seed."""

    way: str
    rate: float
    seed: int


def run_case(case: Case, args: argparse.Namespace) -> dict[str, object]:
    """Train and score one run."""
    torch.set_num_threads(2)
    name = f"{case.way}-{case.rate}-{case.seed}"
    labelled = write_some(args.data / "train.tsv.gz", args.runs / f"labelled-{name}.tsv", args.labelled)
    dev = write_some(args.data / "dev.tsv.gz", args.runs / f"dev-{name}.tsv", 1000)
    test = write_some(args.data / "test.tsv.gz", args.runs / f"test-{name}.tsv", 872)
    usual = recipe_of(case.way, Corpus(train=labelled, dev=dev), args)
    recipe = replace(
        usual,
        seed=case.seed,
        optimizer=replace(usual.optimizer, lr=case.rate, schedule=CosineDecay(warmup=args.steps // 10)),
        batching=replace(usual.batching, context=64),
        budget=Budget(steps=args.steps),
        checkpointing=Checkpointing(evaluate=max(1, args.steps // 6), log=100, samples=0),
    )
    path = args.runs / name
    run: Run = load(path) if (path / "evaluation.json").exists() else train(path, recipe)
    newest = run.folder.checkpoints.all()[0].folder / "model.safetensors"
    return {
        **case._asdict(),
        "dev": run.evaluate(dev)["accuracy"],
        "accuracy": run.evaluate(test)["accuracy"],
        "seconds": run.folder.read_evaluation()["training_seconds"],
        "file_bytes": newest.stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="more unlabelled text, packed by gzip")
    parser.add_argument("--repeat", type=int, default=1, help="how often the sentences stand in the unlabelled text")
    parser.add_argument("--labelled", type=int, default=5000)
    parser.add_argument("--pretrain-steps", type=int, default=6000)
    parser.add_argument("--pretrain-tokens", type=int, default=8192)
    parser.add_argument("--pretrain-rate", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    pretrain(args)
    cases = [Case(way, rate, seed) for seed in range(1, args.seeds + 1) for way in args.ways for rate in args.rates]
    found: dict[tuple[str, float], list[dict[str, object]]] = defaultdict(list)
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        for one in pool.map(run_case, cases, [args] * len(cases)):
            print(json.dumps(one), flush=True)
            found[str(one["way"]), float(str(one["rate"]))].append(one)
    for way in args.ways:
        mean = {rate: statistics.mean(float(str(one["dev"])) for one in found[way, rate]) for rate in args.rates}
        best = max(args.rates, key=mean.__getitem__)
        scores = [float(str(one["accuracy"])) for one in found[way, best]]
        spread = f" ± {statistics.stdev(scores):.2%}" if len(scores) > 1 else ""
        print(f"{way:<8} {statistics.mean(scores):.2%}{spread} at {best:g} (dev {mean[best]:.2%})")


if __name__ == "__main__":
    main()
