"""The classification rows of docs/results.md: `clearhead train --task classify --table FILE`, no other option.

SST-2 at 500, 5,000 and all lines and AG News at 500 and all, three seeds each (of the lines that are drawn, and of the
training). Test accuracy and macro F1, and beside them those of scikit-learn's linear SVM on the same records.

    python benchmarks/classify_table.py --data DATA --out table.jsonl --workers 8 --minutes 8

With `--linear` only the two linear models are compared, ours fitted as `clearhead train` fits it. Rows may then also be
tables of `benchmarks/budget_texts.py`:

    python benchmarks/classify_table.py --data TEXTS --out linear.jsonl --linear --rows roles:0 --seeds 1
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from classify_trials import read_corpus, svm_scores

ROWS = (("ag", 500), ("sst2", 500), ("sst2", 5000), ("ag", 0), ("sst2", 0))


def write_table(path: Path, records: list[tuple[str, str]]) -> Path:
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in records), encoding="utf-8")
    return path


def run_row(data: Path, name: str, lines: int, seed: int) -> dict[str, Any]:
    train, dev, test = read_corpus(data, name, lines, seed)
    drawn = [*train, *dev]  # `train` holds one in twenty out itself
    (texts, labels), (others, truths) = (tuple(map(list, zip(*part, strict=True))) for part in (drawn, test))
    line = svm_scores(texts, labels, others, truths)
    with tempfile.TemporaryDirectory() as home:
        began, clearhead = time.time(), [sys.executable, "-m", "clearhead"]
        table, held = write_table(Path(home) / "train.tsv", drawn), write_table(Path(home) / "test.tsv", test)
        given = ["--task", "classify", "--table", str(table), "--seed", str(seed), "--json"]
        trained = subprocess.run(
            [*clearhead, "train", f"{home}/run", *given], check=False, capture_output=True, text=True
        )
        if trained.returncode:
            return {"error": trained.stderr[-500:]}
        taken = time.time() - began
        asked = [*clearhead, "evaluate", f"{home}/run", "--table", str(held), "--json"]
        scored = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
        found = json.loads(trained.stdout)["evaluation"]
    return {
        "test": scored["accuracy"],
        "test_f1": scored["macro_f1"],
        "test_loss": scored["loss"],
        "line": line["accuracy"],
        "line_f1": line["macro_f1"],
        "dev": found["accuracy"],
        "dev_line": found["linear"]["accuracy"],
        "step": found["step"],
        "seconds": round(taken, 1),
    }


def compare_linear(data: Path, name: str, lines: int, seed: int) -> dict[str, Any]:
    """Return the scores on the test records of our linear model and of scikit-learn's, on the same training records."""
    import torch

    from clearhead.decoding.session import pad_right
    from clearhead.text.tokenizer import Tokenizer
    from clearhead.training.wide import choose_fit, fit_ngrams, letters_of, score_logits

    train, dev, test = read_corpus(data, name, lines, seed)
    drawn = [*train, *dev]
    (texts, labels), (others, truths) = (tuple(map(list, zip(*part, strict=True))) for part in (drawn, test))
    line, known = svm_scores(texts, labels, others, truths), sorted(set(labels))
    began = time.process_time()
    tokenizer = Tokenizer.train(texts, "metaspace", lower=True, size_factor=4.0)  # as Classify.default_recipe
    rows, held, asked = (
        [[tokenizer.start, *ids] for ids in tokenizer.encode_batch([text for text, _ in part])]
        for part in (train, dev, test)
    )
    wanted, chosen, answers = (torch.tensor([known.index(label) for _, label in part]) for part in (train, dev, test))
    fitted = choose_fit(fit_ngrams(rows, wanted, letters_of(tokenizer), len(known)), held, chosen, seconds=0.0)
    taken = time.process_time() - began
    batches = (pad_right(asked[i : i + 64], torch.device("cpu")) for i in range(0, len(asked), 64))
    found = score_logits(torch.cat([fitted.part(*batch) for batch in batches]), answers)
    return {**found._asdict(), "line": line["accuracy"], "line_f1": line["macro_f1"], "cpu_seconds": round(taken, 1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--linear", action="store_true")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--rows", default=",".join(f"{name}:{lines}" for name, lines in ROWS))
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    jobs: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
    for seed in map(int, given.seeds.split(",")):
        for row in given.rows.split(","):
            name, lines = row.split(":")
            jobs.put((name, int(lines), seed))
    ends, lock = time.time() + 60 * given.minutes, threading.Lock()

    def work() -> None:
        while time.time() < ends and not jobs.empty():
            name, lines, seed = jobs.get()
            found = (compare_linear if given.linear else run_row)(given.data, name, lines, seed)
            with lock, given.out.open("a") as file:
                file.write(json.dumps({"corpus": name, "lines": lines, "seed": seed, **found}) + "\n")

    crew = [threading.Thread(target=work) for _ in range(given.workers)]
    for one in crew:
        one.start()
    for one in crew:
        one.join()


if __name__ == "__main__":
    main()
