"""Trainings with `--minutes` on text that nobody tuned on: planned and real end, the share of steps, and the scores.

The texts and the scores of the lines to beat are what `benchmarks/budget_texts.py` writes. There are 20 trainings:
sections of packages, message catalogues and manuals, each for 1, 3 and 10 minutes, alone and beside two busy processes;
and docstrings for 1 minute. Each has two cores of its own, which its busy processes share, and runs on the CPU.

    setsid nohup python benchmarks/budget_ends.py TEXTS --out ends.jsonl --slots 8 > ends.log 2>&1 < /dev/null &
    python benchmarks/budget_ends.py TEXTS --out ends.jsonl --report

The longest are begun first; with 8 slots on 16 cores all of them take about 12 minutes. Each appends a line of JSON
when it ends, and one that is there already is not run again. `--report` prints the tables in Markdown, and exits with 1
if a training failed, ended more than 5 % away from its plan, or spent less than 80 % of what is left after reading on
steps. A training whose text bears no more steps may end earlier than its minutes.
"""

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

LATE, LEAST_SHARE = 0.05, 0.8
CORES = 2
BUSY = [sys.executable, "-c", "while True: pass"]
TRANSLATED = 1000
"""Lines of the catalogues' test text that are translated."""
SECONDS = ("planned", "real", "reading", "preparing", "steps", "evaluations", "end")


class Kind(NamedTuple):
    """A task on one text: files to train on and to test on by option, the score, and whether more of it is better."""

    task: str
    train: dict[str, str]
    test: dict[str, str]
    score: str
    higher: bool


KINDS = {
    "sections": Kind(
        "classify", {"table": "sections-train.tsv"}, {"table": "sections-test.tsv"}, "accuracy", higher=True
    ),
    "catalogues": Kind(
        "translate",
        {
            "source": "catalogues-train.en",
            "target": "catalogues-train.de",
            "dev-source": "catalogues-dev.en",
            "dev-target": "catalogues-dev.de",
        },
        {"source": "catalogues-test.en", "target": "catalogues-test.de"},
        "chrf",
        higher=True,
    ),
    "manuals": Kind(
        "generate",
        {"text": "manuals-train.txt", "dev": "manuals-dev.txt"},
        {"text": "manuals-test.txt"},
        "bits_per_byte",
        higher=False,
    ),
    "docstrings": Kind(
        "generate",
        {"text": "docstrings-train.txt", "dev": "docstrings-dev.txt"},
        {"text": "docstrings-test.txt"},
        "bits_per_byte",
        higher=False,
    ),
}
MINUTES = {"sections": (10, 3, 1), "catalogues": (10, 3, 1), "manuals": (10, 3, 1), "docstrings": (1,)}


class Training(NamedTuple):
    """A training: the text, minutes, and how many busy processes run beside it."""

    text: str
    minutes: float
    busy: int


def list_trainings(texts: list[str], minutes: float | None) -> list[Training]:
    """Return the trainings on some texts, the longest first; all of `minutes` if they are given."""
    found = [
        Training(text, length, busy)
        for text in texts
        for length in ([minutes] if minutes else MINUTES[text])
        for busy in (0, 2)
    ]
    return sorted(found, key=lambda training: -training.minutes)


@contextlib.contextmanager
def busy_processes(count: int, pinned: list[str]) -> Iterator[None]:
    """Keep so many processes busy."""
    processes = [subprocess.Popen([*pinned, *BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def file_options(files: dict[str, str], texts: Path) -> list[str]:
    return [part for name, file in files.items() for part in (f"--{name}", str(texts / file))]


def measure(training: Training, texts: Path, folder: Path, pinned: list[str]) -> dict[str, Any]:
    """Train and test; return where the seconds went, by the clock on the wall and by the run's own account."""
    kind, row = KINDS[training.text], dict[str, Any](training._asdict())
    clearhead, device = [*pinned, sys.executable, "-m", "clearhead"], ["--device", "cpu"]
    command = [*clearhead, "train", str(folder / "run"), "--minutes", str(training.minutes), "--task", kind.task]
    with busy_processes(training.busy, pinned):
        began = time.perf_counter()
        finished = subprocess.run(
            [*command, *device, *file_options(kind.train, texts)], capture_output=True, text=True, check=False
        )
        real = time.perf_counter() - began
    if finished.returncode:
        return {**row, "failed": finished.stderr.strip().splitlines()[-1:]}
    evaluation = json.loads((folder / "run/evaluation.json").read_text(encoding="utf-8"))
    plan = json.loads((folder / "run/recipe.json").read_text(encoding="utf-8"))["plan"]
    account = evaluation["budget"]
    row |= {**account, "real": round(real, 2), "step": evaluation["step"], "parameters": evaluation["parameters"]}
    row["off"] = real / account["planned"] - 1
    row["share"] = account["steps"] / max(1e-9, real - account["reading"])
    row["enough"], row["planned_steps"] = plan["enough"], plan["steps"]
    row["dev"] = {
        name: evaluation[name] for name in (kind.score, "linear", "ngram", "transformer") if name in evaluation
    }
    asked = [*clearhead, "evaluate", str(folder / "run"), *device, "--json", *file_options(kind.test, folder)]
    for file in kind.test.values():
        lines = (texts / file).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / file).write_text("".join(lines[:TRANSLATED] if kind.task == "translate" else lines), encoding="utf-8")
    tested = subprocess.run(asked, capture_output=True, text=True, check=False)
    if tested.returncode:
        return {**row, "failed": tested.stderr.strip().splitlines()[-1:]}
    scores = json.loads(tested.stdout)
    return {**row, **{name: scores[name] for name in (kind.score, "macro_f1", "bleu") if name in scores}}


def find_faults(row: dict[str, Any]) -> str:
    """Return what is wrong with the times of a training, nothing if all is well."""
    if "failed" in row:
        return f"failed: {row['failed']}"
    faults = []
    if row["off"] > LATE or (row["off"] < -LATE and not row["enough"]):
        faults.append(f"the end is {row['off']:+.1%} away from its plan")
    if row["share"] < LEAST_SHARE:
        faults.append(f"steps got {row['share']:.0%}")
    return "; ".join(faults)


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def name_row(row: dict[str, Any]) -> list[str]:
    return [row["text"], f"{row['minutes']:g}", "beside two busy processes" if row["busy"] else "quiet"]


def score_table(rows: list[dict[str, Any]], lines: dict[str, dict[str, Any]]) -> str:
    """Return the default's test score beside that of its line to beat, and whether the times were kept."""
    cells = []
    for row in rows:
        kind, line = KINDS[row["text"]], lines[row["text"]]
        if "failed" in row:
            cells.append([*name_row(row), *["–"] * 6, find_faults(row)])
            continue
        digits = 100 if kind.score == "accuracy" else 1
        ours, theirs = row[kind.score], line[kind.score]
        better = (ours > theirs) == kind.higher
        times = [f"{row['planned']:.1f}", f"{row['real']:.1f}", f"{row['off']:+.1%}", f"{row['share']:.0%}"]
        scores = [f"{digits * ours:.3g} {kind.score}", f"{digits * theirs:.3g} ({line['name']})"]
        verdict = [find_faults(row) or "on time", "passes its line" if better else "below its line"]
        cells.append([*name_row(row), *times, *scores, "; ".join(verdict)])
    head = ["text", "minutes", "machine", "planned end, s", "real end, s", "off", "steps' share"]
    return table([*head, "default, test", "line, test", "verdict"], cells)


def account_table(rows: list[dict[str, Any]]) -> str:
    """Return where the seconds of each training went."""
    head = ["text", "minutes", "machine", *(f"{name}, s" for name in SECONDS), "kept step"]
    done = [row for row in rows if "failed" not in row]
    return table(head, [[*name_row(row), *(f"{row[name]:.1f}" for name in SECONDS), str(row["step"])] for row in done])


def report(rows: list[dict[str, Any]], lines: dict[str, dict[str, Any]]) -> int:
    rows = sorted(rows, key=lambda row: (list(KINDS).index(row["text"]), row["minutes"], row["busy"]))
    print(score_table(rows, lines), account_table(rows), sep="\n\n")
    wrong = sum(bool(find_faults(row)) for row in rows)
    print(f"\n{len(rows) - wrong} of {len(rows)} trainings ended on time, with at least 80 % of their time in steps.")
    return 1 if wrong else 0


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def run_all(trainings: list[Training], texts: Path, out: Path, slots: int) -> None:
    """Run trainings, `slots` at a time, each on cores of its own if there are enough."""
    cores, free, lock = sorted(os.sched_getaffinity(0)), queue.SimpleQueue[list[str]](), threading.Lock()
    for slot in range(slots):
        own = cores[CORES * slot : CORES * (slot + 1)]
        free.put(["taskset", "-c", ",".join(map(str, own))] if len(own) == CORES else [])

    def run(training: Training) -> None:
        pinned = free.get()
        with tempfile.TemporaryDirectory() as folder:
            row = measure(training, texts, Path(folder), pinned)
        free.put(pinned)
        with lock, out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{training}: {find_faults(row) or 'on time'}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(run, trainings))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(KINDS), help="texts, separated by commas")
    parser.add_argument("--minutes", type=float, help="instead of 1, 3 and 10")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    if not asked.report:
        done = {(row["text"], row["minutes"], row["busy"]) for row in read_rows(asked.out)}
        trainings = [one for one in list_trainings(asked.only.split(","), asked.minutes) if one not in done]
        run_all(trainings, asked.texts.absolute(), asked.out, asked.slots)
        return 0
    lines = json.loads((asked.texts / "lines.json").read_text(encoding="utf-8"))
    return report(read_rows(asked.out), lines)


if __name__ == "__main__":
    sys.exit(main())
