"""Trains what others have published, and scores it as they did: Multi30k, tinyshakespeare, SST-2, and Europarl.

    python benchmarks/published.py multi30k --data DATA/multi30k/tok --seeds 1 2 3
    python benchmarks/published.py multi30k-minute --data DATA/multi30k/tok --seeds 2
    python benchmarks/published.py tinyshakespeare --data DATA/tinyshakespeare/input.txt.gz --seeds 1 2 3
    python benchmarks/published.py europarl --data DATA/europarl_de_en --minutes 10
    python benchmarks/published.py sst2 --data DATA/sst2

Each run is a run folder below --runs, and is reported whatever it scored; the corpora are the user's own to fetch.
"""

import argparse
import gzip
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine, Optimizer, Recipe
from clearhead.training.reporting import read_metrics
from clearhead.training.resume import resume
from clearhead.training.run import Run, load
from clearhead.training.schedules import CosineDecay, Ema, InverseSqrt, Last
from clearhead.training.scores import score_classes, score_translations
from clearhead.training.tasks import default_recipe
from clearhead.training.tasks.learning import decoder
from clearhead.training.train import train

TESTS = ("val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")


def lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


def pair(folder: Path, split: str, source: str, target: str, middle: str = "") -> Aligned:
    name = f"{split}.{middle}"
    return Aligned(source=(str(folder / f"{name}{source}.gz"),), target=(str(folder / f"{name}{target}.gz"),))


def multi30k(data: Path, steps: int, variant: str) -> Recipe:
    """The paper's Transformer-Tiny: 4 + 4 blocks, 128 wide, post-norm, one table; with R-Drop."""
    middle = "lc.norm.tok."
    return Recipe(
        task="translate",
        corpus=Corpus(train=pair(data, "train", "en", "de", middle), dev=pair(data, "val", "en", "de", middle)),
        tokenizing=Tokenizing(kind="metaspace", size=10_000 if variant == "a" else 6_000),
        model=presets.classic(64, size=Size(4, 128, 4, 4, 256), dropout=0.3),
        optimizer=Optimizer(
            lr=5e-3 if variant == "a" else 4e-3,
            schedule=InverseSqrt(warmup=2000) if variant == "a" else CosineDecay(warmup=1000, floor=0.02),
            weight_decay=0.0,
            clip=None,
            smoothing=0.1,
            r_drop=5.0,
            averaging=Last(share=0.15, every=10),
        ),
        batching=Batching(tokens=8192),
        budget=Budget(steps=steps),
        checkpointing=Checkpointing(log=100, evaluate=2000, score_records=0, samples=0, select="last"),
    )


def multi30k_in_a_minute(data: Path, steps: int, variant: str) -> Recipe:
    """Twice as wide, by Muon, for a GPU: as good in a third of the time. It was chosen on seed 1, before any other."""
    recipe = multi30k(data, steps, "a")
    optimizer = replace(recipe.optimizer, method="muon", lr=3e-3, schedule=CosineDecay(warmup=400, floor=0.02))
    return replace(
        recipe,
        model=presets.classic(64, size=Size(4, 256, 4, 4, 512), dropout=0.4),
        optimizer=optimizer,
        checkpointing=replace(recipe.checkpointing, evaluate=steps),
    )


def score_2016(run: Run, data: Path) -> dict[str, Any]:
    return score_multi30k(run, data, ("test_2016_flickr",))


def score_multi30k(run: Run, data: Path, splits: Sequence[str] = TESTS) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split in splits:
        source, target = (lines(data / f"{split}.lc.norm.tok.{side}.gz") for side in ("en", "de"))
        output = run.translate(source, beam=5)
        found[split] = round(score_translations(output, target, tokenize="none").bleu, 2)
        found[f"{split}_13a"] = round(score_translations(output, target).bleu, 2)
    return found


def tinyshakespeare(data: Path, steps: int, variant: str) -> Recipe:
    """nanoGPT's setting for a GPU (6 blocks, 384 wide, context 256, batch 64, dropout 0.2), or its one for a CPU."""
    on_cpu = variant == "cpu"
    size, context, rows = (Size(4, 128, 4, 4, 512), 64, 12) if on_cpu else (Size(6, 384, 6, 6, 1536), 256, 64)
    return Recipe(
        task="generate",
        corpus=Corpus(train=Documents(paths=(str(data),))),
        tokenizing=Tokenizing(kind="char"),
        model=decoder(size, context, 0.0 if on_cpu else 0.2),
        optimizer=Optimizer(
            lr=1e-3, schedule=CosineDecay(warmup=100), betas=(0.9, 0.99), weight_decay=0.1, averaging=Ema(0.99)
        ),
        batching=Batching(tokens=rows * context, context=context),
        budget=Budget(steps=steps),
        checkpointing=Checkpointing(log=100, evaluate=250, samples=0),
    )


def score_tinyshakespeare(run: Run, data: Path) -> dict[str, Any]:
    told = [line for line in read_metrics(run.folder.metrics) if line["kind"] == "evaluation"]
    best = min(told, key=lambda line: line["loss"])
    return {"best_val": round(best["loss"], 4), "at_step": best["step"], "last_val": round(told[-1]["loss"], 4)}


def europarl(data: Path, steps: int, variant: str) -> Recipe:
    """A base model: 6 + 6 blocks, 512 wide."""
    return Recipe(
        task="translate",
        corpus=Corpus(train=pair(data, "train", "de", "en"), dev=pair(data, "dev", "de", "en")),
        tokenizing=Tokenizing(kind="metaspace", size=16_000),
        model=presets.classic(64, size=Size(6, 512, 8, 8, 2048), dropout=0.2),
        optimizer=Optimizer(
            lr=1e-3,
            schedule=CosineDecay(warmup=1000, floor=0.02),
            weight_decay=0.01,
            smoothing=0.1,
            averaging=Ema(0.999),
        ),
        batching=Batching(tokens=32_768, context=160),
        budget=Budget(steps=steps),
        checkpointing=Checkpointing(log=50, evaluate=1000, score_records=200, samples=3, select="best"),
    )


def score_europarl(run: Run, data: Path) -> dict[str, Any]:
    source, target = lines(data / "test.de.gz"), lines(data / "test.en.gz")
    output = run.translate(source, beam=5)
    scores = score_translations(output, target)
    samples = [
        {"source": source[i], "output": output[i], "reference": target[i]}
        for i in range(0, len(source), len(source) // 10)
    ][:10]
    return {
        "bleu": round(scores.bleu, 2),
        "bleu_signature": scores.bleu_signature,
        "chrf": round(scores.chrf, 2),
        "samples": samples,
    }


def sst2(data: Path, steps: int, variant: str) -> Recipe:
    """From scratch, with what a user gets who names the files."""

    def table(split: str) -> Table:
        return Table(paths=(str(data / f"{split}.tsv.gz"),), columns=("sentence", "label"), fields=("text", "label"))

    recipe = default_recipe("classify", Corpus(train=table("train"), dev=table("dev")))
    return recipe if not steps else replace(recipe, budget=Budget(steps=steps))


def score_sst2(run: Run, data: Path) -> dict[str, Any]:
    rows = [line.split("\t") for line in lines(data / "test.tsv.gz")[1:]]
    answers = [one.label for one in run.classify([text for text, _ in rows])]
    scores = score_classes(answers, [label for _, label in rows], run.task.labels)
    return {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1, "n": scores.n}


WORK: Mapping[str, tuple[Callable[[Path, int, str], Recipe], Callable[[Run, Path], dict[str, Any]], int]] = {
    "multi30k": (multi30k, score_multi30k, 8000),
    "multi30k-minute": (multi30k_in_a_minute, score_2016, 3400),
    "tinyshakespeare": (tinyshakespeare, score_tinyshakespeare, 5000),
    "europarl": (europarl, score_europarl, 20_000),
    "sst2": (sst2, score_sst2, 0),
}


def one_run(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    recipe_of, score, usual = WORK[args.work]
    recipe = replace(recipe_of(args.data, args.steps or usual, args.variant), seed=seed)
    recipe = replace(recipe, machine=Machine(device=args.device))
    if args.minutes:
        recipe = replace(recipe, budget=Budget(minutes=args.minutes))
    folder = args.runs / f"{args.work}-{args.variant}-seed{seed}"
    started = time.perf_counter()
    marks: dict[str, float] = {}

    def watch(line: Mapping[str, Any]) -> None:
        marks.setdefault("first", time.perf_counter() - started)
        if line["kind"] == "evaluation" and args.verbose:
            print({key: line[key] for key in ("step", "loss", "scores")}, flush=True)

    if folder.exists():
        resume(folder, watcher=watch)
    else:
        train(folder, recipe, watcher=watch, log=lambda text: print(text, flush=True))
    trained = time.perf_counter() - started
    run = load(folder, device=args.device)
    scores = score(run, args.data)
    whole = time.perf_counter() - started
    told = json.loads(run.folder.evaluation.read_text(encoding="utf-8"))
    return {
        "run": folder.name,
        **scores,
        "step": run.step,
        "parameters": told["parameters"],
        "seconds": {
            "tokenise_and_start": round(trained - told["training_seconds"] - told["seconds"], 1),
            "train": told["training_seconds"],
            "dev": told["seconds"],
            "score": round(whole - trained, 1),
            "whole": round(whole, 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=list(WORK))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--variant", default="a")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    runs = []
    for seed in args.seeds:
        runs.append(one_run(args, seed))
        print(json.dumps(runs[-1], ensure_ascii=False), flush=True)
    for key, value in runs[0].items():
        if isinstance(value, float) and len(runs) > 1:
            values = [run[key] for run in runs]
            mean, spread = statistics.mean(values), statistics.stdev(values)
            print(f"{key}: mean {mean:.4f}, spread {spread:.4f} over {len(values)} seeds")


if __name__ == "__main__":
    main()
