"""Compare the losses of small runs, step by step and to the last bit, with those of another revision.

`python benchmarks/losses.py --against REV [--seed N]`: trains one run of each task, with a resume, a fine-tuning and
LoRA among them, in this checkout and in a worktree of REV, and prints for each how many lines of metrics are equal, and
by how much losses differ. A rebuild of training must change none of them. Where REV multiplied by another library on
this processor, ATEN_CPU_CAPABILITY=avx2 has both multiply by MKL.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

TIMES = {"seconds", "tokens_per_second", "memory_mb", "training_seconds"}
COMMON = {
    "size": "30k",
    "steps": 12,
    "log_every": 1,
    "evaluate_every": 4,
    "batch_tokens": 256,
    "context": 32,
    "threads": 1,
    "device": "cpu",
    "vocabulary": 300,
    "dropout": 0.1,
}
TUNED = ("from_", "steps", "log_every", "evaluate_every", "batch_tokens", "context", "threads", "device")


def write_texts(folder: Path, seed: int) -> dict[str, str]:
    """Write a text for each task, of words drawn at random."""
    draw = random.Random(seed)
    words = ["null", "eins", "zwei", "drei", "vier", "rot", "alt", "Haus", "Baum", "geht"]
    lines = [[draw.choice(words) for _ in range(draw.randint(3, 9))] for _ in range(200)]
    texts = {
        "source.txt": [" ".join(line) for line in lines],
        "target.txt": [" ".join(reversed(line)) for line in lines],
        "classes.tsv": ["text\tlabel", *(f"{' '.join(line)}\t{line[0][0]}" for line in lines)],
        "labels.tsv": ["text\tlabel", *(f"{' '.join(line)}\t{line[0][0]},{line[1][0]}" for line in lines)],
        "pairs.tsv": [
            "first\tsecond\tlabel",
            *(f"{' '.join(a)}\t{b[0]}\t{a[0] == b[0]}" for a, b in itertools.pairwise(lines)),
        ],
        "tags.conll": [text for line in lines for text in (*(f"{word}\t{word[0].isupper()}" for word in line), "")],
    }
    for name, rows in texts.items():
        (folder / name).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return {name: str(folder / name) for name in texts}


def list_runs(texts: dict[str, str], home: Path) -> dict[str, dict[str, object]]:
    """Return the options of each run; those with `from_` come after the run they start from."""
    of_text = {"text": texts["source.txt"], "documents": "line"}
    start = {"from_": str(home / "generate")}
    return {
        "translate": {"task": "translate", "source": texts["source.txt"], "target": texts["target.txt"]},
        "generate": {"task": "generate", **of_text, "average": "ema"},
        "fill": {"task": "fill", **of_text, "optimizer": "muon"},
        "classify": {"task": "classify", "table": texts["classes.tsv"]},
        "classify-pairs": {"task": "classify-pairs", "table": texts["pairs.tsv"]},
        "label": {"task": "label", "table": texts["labels.tsv"]},
        "tag": {"task": "tag", "table": texts["tags.conll"], "form": "conll"},
        "r-drop": {"task": "translate", "source": texts["source.txt"], "target": texts["target.txt"], "r_drop": 1.0},
        "fine-tuned": {"task": "generate", **of_text, **start},
        "lora": {"task": "generate", **of_text, **start, "lora": 2},
    }


def train_all(home: Path, seed: int) -> None:
    """Train every run with the package that is on the path, and resume one for more steps."""
    import clearhead as ch

    for name, options in list_runs(write_texts(home, seed), home).items():
        common = {key: value for key, value in COMMON.items() if "from_" not in options or key in TUNED}
        ch.train(home / name, **common, **options, seed=seed, log=lambda _: None, watcher=lambda _: None)
    budget = ch.training.Budget(steps=18)
    ch.training.resume(home / "translate", budget=budget, log=lambda _: None, watcher=lambda _: None)


def read_lines(folder: Path) -> list[dict[str, object]]:
    """Return the lines of a run's metrics without what depends on the clock."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def train_apart(checkout: Path, home: Path, seed: int) -> None:
    home.mkdir()
    command = [sys.executable, str(Path(__file__).resolve()), "--train", str(home), "--seed", str(seed)]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, cwd=checkout)


def compare(revision: str, seed: int) -> bool:
    """Print how many lines of each run are equal; return whether all are."""
    root, same = Path(__file__).resolve().parents[1], True
    with tempfile.TemporaryDirectory() as folder:
        home, other = Path(folder), Path(folder) / "checkout"
        subprocess.run(["git", "-C", root, "worktree", "add", "-q", "--detach", other, revision], check=True)
        try:
            train_apart(root, home / "now", seed)
            train_apart(other, home / "before", seed)
        finally:
            subprocess.run(["git", "-C", root, "worktree", "remove", "--force", other], check=True)
        for path in sorted(path.parent for path in (home / "now").glob("*/metrics.jsonl")):
            now, before = read_lines(path), read_lines(home / "before" / path.name)
            equal = sum(a == b for a, b in zip(now, before, strict=False))
            same &= equal == len(now) == len(before)
            off = max(abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in zip(now, before, strict=False))
            print(f"{path.name:<16} {equal} of {len(before)} lines equal; losses differ by {off:.1e} of theirs at most")
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="REV", default="HEAD")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        return train_all(options.train, options.seed)
    sys.exit(not compare(options.against, options.seed))


if __name__ == "__main__":
    main()
