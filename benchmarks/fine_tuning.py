"""Pretrain an encoder on unlabelled text, then classify few labelled lines: whole, by LoRA, and from scratch.

    python benchmarks/fine_tuning.py --data DATA/sst2 --runs RUNS

The encoder learns to fill blanks on all sentences of train.tsv.gz, without their labels. Then the first labelled lines,
evenly over the file, are learned by the pretrained encoder (all weights, or LoRA) and by the same model from random
weights, with the same tokeniser, steps and seeds. The best checkpoint is chosen on a thousand lines of dev.tsv.gz, and
the accuracy is that on all of test.tsv.gz. A run that is there is not made again.
"""

import argparse
import gzip
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from clearhead.model.lora import Lora
from clearhead.model.outputs import Blanks, Classes
from clearhead.model.presets import Size
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Documents, Table
from clearhead.training.default_models import encoder
from clearhead.training.defaults import default_recipe
from clearhead.training.fine_tuning import fine_tuning_recipe
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Budget, Checkpointing, Machine, Recipe
from clearhead.training.run import Run, load
from clearhead.training.schedules import Cosine
from clearhead.training.train import train

WAYS = ("scratch", "whole", "lora")


def write_some(source: Path, target: Path, count: int) -> Table:
    """Write this many lines, evenly over a packed table, and return them as a source."""
    with gzip.open(source, "rt", encoding="utf-8") as file:
        head, *rows = file.read().splitlines()
    chosen = [rows[i * len(rows) // count] for i in range(min(count, len(rows)))]
    target.write_text("\n".join([head, *chosen, ""]), encoding="utf-8")
    return Table(paths=(str(target),), columns=("sentence", "label"), fields=("text", "label"))


def pretrain(args: argparse.Namespace, home: Path, machine: Machine) -> Path:
    """Train the encoder to fill blanks, and return its folder."""
    path = home / "pretrained"
    if (path / "evaluation.json").exists():
        return path
    with gzip.open(args.data / "train.tsv.gz", "rt", encoding="utf-8") as file:
        sentences = [line.partition("\t")[0] for line in file.read().splitlines()[1:]]
    text = home / "unlabelled.txt"
    text.write_text("\n".join([*sentences, ""]), encoding="utf-8")
    usual = default_recipe("fill", Corpus(train=Documents(paths=(str(text),), unit="line")), machine)
    size = Size(args.layers, args.width, args.width // 32, args.width // 32, 4 * args.width)
    recipe = replace(
        usual,
        model=encoder(size, Blanks(), 0.1),
        tokenizing=Tokenizing(kind="metaspace", size=8000, lower=True),
        optimizer=replace(usual.optimizer, schedule=Cosine(warmup=args.pretrain_steps // 10)),
        batching=replace(usual.batching, context=64, tokens=args.pretrain_tokens),
        budget=Budget(steps=args.pretrain_steps),
        checkpointing=Checkpointing(evaluate=max(1, args.pretrain_steps // 4), log=50, samples=0),
    )
    train(path, recipe)
    return path


def recipe_of(way: str, source: Path, corpus: Corpus, args: argparse.Namespace, machine: Machine) -> Recipe:
    """Return the recipe of a way to learn the labelled lines; dropout, steps and batches are the same in all."""
    if way == "scratch":
        usual, spec = default_recipe("classify", corpus, machine), RunFolder(source).spec()
        recipe = replace(
            usual,
            model=replace(spec, output=Classes(2, pool="mean")),
            tokenizing=Tokenizing(given=str(source / "tokenizer.json")),
        )
    else:
        lora = Lora(rank=args.rank, maps=("all",)) if way == "lora" else None
        recipe = fine_tuning_recipe(source, corpus, task="classify", lora=lora, machine=machine)
    return replace(
        recipe,
        optimizer=replace(recipe.optimizer, schedule=Cosine(warmup=args.steps // 10)),
        batching=replace(recipe.batching, context=64),
        budget=Budget(steps=args.steps),
        checkpointing=Checkpointing(evaluate=max(1, args.steps // 6), log=20, samples=0),
    )


def results(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    home, machine = args.runs, Machine(device=args.device)
    home.mkdir(parents=True, exist_ok=True)
    source = pretrain(args, home, machine)
    corpus = Corpus(
        train=write_some(args.data / "train.tsv.gz", home / "labelled.tsv", args.labelled),
        dev=write_some(args.data / "dev.tsv.gz", home / "dev.tsv", 1000),
    )
    test = write_some(args.data / "test.tsv.gz", home / "test.tsv", 872)
    for seed in range(1, args.seeds + 1):
        for way in WAYS:
            path = home / f"{way}-{seed}"
            done = (path / "evaluation.json").exists()
            run: Run = (
                load(path) if done else train(path, replace(recipe_of(way, source, corpus, args, machine), seed=seed))
            )
            newest = run.folder.checkpoints.all()[0].folder / "model.safetensors"
            yield {
                "way": way,
                "seed": seed,
                "accuracy": run.evaluate(test)["accuracy"],
                "seconds": run.folder.read_evaluation()["training_seconds"],
                "file_bytes": newest.stat().st_size,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--labelled", type=int, default=5000)
    parser.add_argument("--pretrain-steps", type=int, default=6000)
    parser.add_argument("--pretrain-tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for one in results(args):
        print(json.dumps(one), flush=True)
        found[str(one["way"])].append(float(str(one["accuracy"])))
    for way, scores in found.items():
        spread = f" ± {statistics.stdev(scores):.2%}" if len(scores) > 1 else ""
        print(f"{way:<8} {statistics.mean(scores):.2%}{spread}")


if __name__ == "__main__":
    main()
