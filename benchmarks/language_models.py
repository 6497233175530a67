"""The default of `train --task generate --minutes N` beside nanoGPT's settings, in bits per byte.

Two texts: tinyshakespeare (its last tenth is held out, as nanoGPT does) and the first 20,000 English lines of Europarl
(its dev file is held out). nanoGPT's settings are those of its README: for a CPU 4 blocks, 128 wide, context 64, batch
12; for a GPU 6 blocks, 384 wide, context 256, batch 64, dropout 0.2; characters, rate 1e-3, the schedule's end at the
end of the minutes. Both keep their best checkpoint. Lines of JSON:

    python benchmarks/language_models.py --data DATA --out models.jsonl --minutes 3 --device cpu
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

TEXTS, RECIPES = ("tinyshakespeare", "europarl"), ("default", "nanogpt")
EUROPARL_LINES = 20_000


def write_text(data: Path, text: str, home: Path) -> tuple[Path, Path]:
    """Write the training text and the one that is held out."""
    train, held = home / "train.txt", home / "held.txt"
    if text == "tinyshakespeare":
        whole = gzip.decompress((data / "tinyshakespeare" / "input.txt.gz").read_bytes())
        cut = int(0.9 * len(whole))
        train.write_bytes(whole[:cut])
        held.write_bytes(whole[cut:])
    else:
        lines = gzip.decompress((data / "europarl_de_en" / "train.en.gz").read_bytes()).splitlines(keepends=True)
        train.write_bytes(b"".join(lines[:EUROPARL_LINES]))
        held.write_bytes(gzip.decompress((data / "europarl_de_en" / "dev.en.gz").read_bytes()))
    return train, held


def write_nanogpt(train: Path, held: Path, minutes: float, device: str, path: Path) -> None:
    """Write the recipe.json of nanoGPT's settings."""
    from clearhead.model.presets import Size
    from clearhead.serialization import to_json
    from clearhead.text.encoding import Corpus
    from clearhead.text.sources import Documents
    from clearhead.training.recipe import CLASSES, Batching, Budget, Checkpointing, Machine, Optimizer
    from clearhead.training.schedules import CosineDecay
    from clearhead.training.tasks import default_recipe
    from clearhead.training.tasks.learning import decoder

    on_cpu = device == "cpu"
    size, context, rows = (Size(4, 128, 4, 4, 512), 64, 12) if on_cpu else (Size(6, 384, 6, 6, 1536), 256, 64)
    documents = [Documents(paths=(str(one),), unit="file") for one in (train, held)]
    corpus = Corpus(train=documents[0], dev=documents[1])
    recipe = default_recipe("generate", corpus, Machine(device=device))
    recipe = replace(
        recipe,
        model=decoder(size, context, 0.0 if on_cpu else 0.2),
        tokenizing=replace(recipe.tokenizing, kind="char", size=None),
        optimizer=Optimizer(
            lr=1e-3, schedule=CosineDecay(warmup=100, floor=0.1), betas=(0.9, 0.99), weight_decay=0.1, clip=1.0
        ),
        batching=Batching(tokens=rows * context, context=context),
        budget=Budget(minutes=minutes),
        checkpointing=Checkpointing(log=50, evaluate=250, score_records=0, samples=1),
    )
    path.write_text(json.dumps(to_json(recipe, CLASSES)))


def run_one(data: Path, text: str, name: str, minutes: float, device: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        home, began = Path(folder), time.time()
        train, held = write_text(data, text, home)
        clearhead = [sys.executable, "-m", "clearhead"]
        if name == "default":
            given = ["--task", "generate", "--text", str(train), "--dev", str(held)]
            given += ["--minutes", str(minutes), "--device", device]
        else:
            write_nanogpt(train, held, minutes, device, home / "recipe.json")
            given = ["--recipe", str(home / "recipe.json")]
        trained = subprocess.run(
            [*clearhead, "train", str(home / "run"), *given, "--json"], capture_output=True, check=False, text=True
        )
        if trained.returncode:
            return {"error": trained.stderr[-600:]}
        wall = round(time.time() - began, 1)
        asked = [*clearhead, "evaluate", str(home / "run"), "--text", str(held), "--device", device, "--json"]
        scored = json.loads(subprocess.run(asked, capture_output=True, check=True, text=True).stdout)
        found, recipe = json.loads(trained.stdout)["evaluation"], json.loads((home / "run" / "recipe.json").read_text())
        return {
            "bits_per_byte": scored["bits_per_byte"],
            "loss": scored["loss"],
            "wall": wall,
            "best": {key: found.get(key) for key in ("loss", "parameters", "step", "training_seconds")},
            "tokens": recipe["batching"]["tokens"],
            "lr": recipe["optimizer"]["lr"],
            "tokenizer": [recipe["tokenizing"]["kind"], recipe["tokenizing"]["size"]],
            "said": [line for line in trained.stderr.splitlines() if "on this machine" in line or "busy" in line],
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--texts", default=",".join(TEXTS))
    parser.add_argument("--recipes", default=",".join(RECIPES))
    given = parser.parse_args()
    for text in given.texts.split(","):
        for name in given.recipes.split(","):
            found = run_one(given.data, text, name, given.minutes, given.device)
            line = {"text": text, "recipe": name, "minutes": given.minutes, "device": given.device, **found}
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
