"""The default of `train --minutes 3` on two cores beside five hand-made recipes, for Multi30k and Tanaka.

The recipes were written down before any of them was run. Each has everything fixed but the number of steps, which its
own speed gives. Test BLEU of greedy outputs, one seed, as lines of JSON. Six runs side by side, two cores each:

    python benchmarks/budget_trials.py --data DATA --out budget.jsonl --minutes 3

One run by itself: `--one europarl:default --device cuda --minutes 1`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

TEXTS = {
    "multi30k": ("multi30k", "de", "en", "train", "val", "test_2016_flickr"),
    "tanaka": ("tanaka_ja_en", "ja", "en", "train", "dev", "test"),
    "europarl": ("europarl_de_en", "de", "en", "train", "dev", "test"),
}
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "two-128": {"size": (2, 2, 128, 256), "tokens": 1024, "lr": 2.5e-3, "warmup": 100, "vocabulary": 4000},
    "two-64": {"size": (2, 2, 64, 256), "tokens": 1024, "lr": 4e-3, "warmup": 100, "vocabulary": 4000},
    "high-rate": {
        "size": (2, 2, 128, 256),
        "tokens": 1024,
        "lr": 5e-3,
        "warmup": 200,
        "vocabulary": 4000,
        "smoothing": 0.0,
    },
    "small-steps": {"size": (2, 2, 96, 384), "tokens": 512, "lr": 2.5e-3, "warmup": 150, "vocabulary": 3000},
    "deep-encoder": {"size": (3, 1, 128, 256), "tokens": 1024, "lr": 2.5e-3, "warmup": 100, "vocabulary": 4000},
}
"""`size`: blocks of the encoder, blocks of the decoder, width, width of the feed-forward."""


def files(data: Path, text: str, place: int) -> tuple[str, str]:
    folder, source, target, *parts = TEXTS[text]
    return str(data / folder / f"{parts[place]}.{source}.gz"), str(data / folder / f"{parts[place]}.{target}.gz")


def write_recipe(data: Path, text: str, minutes: float, chosen: dict[str, Any], path: Path) -> None:
    """Write the recipe.json of a hand-made recipe."""
    from clearhead.model import presets
    from clearhead.model.presets import Size
    from clearhead.serialization import to_json
    from clearhead.text.encoding import Corpus
    from clearhead.text.sources import Aligned
    from clearhead.training.recipe import CLASSES, Batching, Budget, Checkpointing, Machine
    from clearhead.training.schedules import CosineDecay, Last
    from clearhead.training.tasks import default_recipe

    (source, target), (dev_source, dev_target) = files(data, text, 0), files(data, text, 1)
    corpus = Corpus(
        train=Aligned(source=(source,), target=(target,)), dev=Aligned(source=(dev_source,), target=(dev_target,))
    )
    recipe = default_recipe("translate", corpus, Machine(device="cpu", threads=2))
    deep, shallow, width, d_ff = chosen["size"]
    heads = max(2, width // 32)
    model = presets.classic(64, size=Size(1, width, heads, heads, d_ff), dropout=0.1)
    model = replace(
        model,
        encoder=replace(model.encoder, blocks=model.encoder.blocks * deep),
        decoder=replace(model.decoder, blocks=model.decoder.blocks * shallow),
    )
    optimizer = replace(
        recipe.optimizer,
        lr=chosen["lr"],
        schedule=CosineDecay(warmup=chosen["warmup"], floor=0.02),
        smoothing=chosen.get("smoothing", 0.1),
        averaging=Last(every=5),
    )
    recipe = replace(
        recipe,
        model=model,
        optimizer=optimizer,
        tokenizing=replace(recipe.tokenizing, size=chosen["vocabulary"]),
        batching=Batching(tokens=chosen["tokens"], context=256),
        budget=Budget(minutes=minutes),
        checkpointing=Checkpointing(log=20, evaluate=10**6, score_records=20, samples=1),
    )
    path.write_text(json.dumps(to_json(recipe, CLASSES)))


def run_one(data: Path, text: str, name: str, minutes: float, device: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        run, began = Path(home) / "run", time.time()
        (source, target), (dev_source, dev_target) = files(data, text, 0), files(data, text, 1)
        clearhead = [sys.executable, "-m", "clearhead"]
        if name == "default":
            given = ["--task", "translate", "--source", source, "--target", target, "--dev-source", dev_source]
            given += ["--dev-target", dev_target, "--minutes", str(minutes), "--device", device]
        else:
            write_recipe(data, text, minutes, RECIPES[name], Path(home) / "recipe.json")
            given = ["--recipe", str(Path(home) / "recipe.json")]
        trained = subprocess.run(
            [*clearhead, "train", str(run), *given, "--json"], capture_output=True, check=False, text=True
        )
        wall = time.time() - began
        if trained.returncode:
            return {"error": trained.stderr[-600:]}
        a, b = files(data, text, 2)
        test = [*clearhead, "evaluate", str(run), "--source", a, "--target", b, "--beam", "1", "--json"]
        scored = subprocess.run([*test, "--device", device], capture_output=True, check=False, text=True)
        found = json.loads(trained.stdout)["evaluation"]
        recipe = json.loads((run / "recipe.json").read_text())
        return {
            "test": json.loads(scored.stdout) if scored.returncode == 0 else scored.stderr[-400:],
            "wall": round(wall, 1),
            "dev": {key: found.get(key) for key in ("bleu", "loss", "parameters", "step", "training_seconds")},
            "plan": recipe.get("plan"),
            "tokens": recipe["batching"]["tokens"],
            "lr": recipe["optimizer"]["lr"],
            "vocabulary": recipe["tokenizing"]["size"],
            "said": [line for line in trained.stderr.splitlines() if "on this machine" in line or "busy" in line],
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--device", default="cpu", help="of the default; the recipes are for a CPU")
    parser.add_argument("--texts", default="multi30k,tanaka")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--one")
    given = parser.parse_args()
    if given.one:
        text, name = given.one.split(":")
        found = run_one(given.data, text, name, given.minutes, given.device)
        with given.out.open("a") as file:
            file.write(
                json.dumps({"text": text, "recipe": name, "minutes": given.minutes, "device": given.device, **found})
                + "\n"
            )
        return
    todo = [f"{text}:{name}" for text in given.texts.split(",") for name in given.recipes.split(",")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    environment.pop("OMP_NUM_THREADS", None)
    for first in range(0, len(todo), given.at_once):
        started = []
        for place, one in enumerate(todo[first : first + given.at_once]):
            cores = ["taskset", "-c", f"{2 * place},{2 * place + 1}"]
            same = ["--data", str(given.data), "--out", str(given.out), "--minutes", str(given.minutes)]
            started.append(subprocess.Popen([*cores, sys.executable, __file__, *same, "--one", one], env=environment))
        for job in started:
            job.wait()


if __name__ == "__main__":
    main()
