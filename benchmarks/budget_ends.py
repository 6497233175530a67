"""Planned and real ends of trainings with `--minutes`, and what share of the time went into steps.

The trainings are a JSON list, each an object with the options of `clearhead train` but for the folder and the minutes,
with the minutes, and with how many busy processes run beside it:

    [{"name": "manuals", "options": ["--task", "generate", "--text", "train.txt", "--dev", "dev.txt"],
      "minutes": 3, "busy": 2}]

    python benchmarks/budget_ends.py trainings.json --out ends.json
    python benchmarks/budget_ends.py --texts TEXTS --minutes 1,3 --busy 0,2 --side-by-side 8 --out ends.json

With `--texts` they are the trainings on what `benchmarks/budget_texts.py` writes, for each of the minutes, beside each
number of busy processes. `--side-by-side N` runs N at a time, each with its busy processes on two cores of its own.

It prints a table in Markdown and writes the same as JSON. It exits with 1 if a training fails, ends more than 5 % away
from its plan, or spends less than 80 % of what is left after reading on steps. A training whose text bears no more
steps may end earlier than its minutes.
"""

import argparse
import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LATE, LEAST_SHARE = 0.05, 0.8
COLUMNS = ("planned", "real", "reading", "preparing", "steps", "evaluations", "end")
BUSY = [sys.executable, "-c", "while True: pass"]
SCORES = ("bits_per_byte", "accuracy", "macro_f1", "bleu", "chrf", "linear", "ngram", "transformer")
"""What evaluation.json may hold of a model and of its line to beat."""


def debian_trainings(texts: Path, minutes: list[float], busy: list[int]) -> list[dict[str, Any]]:
    """Return a training for each text, number of minutes and number of busy processes."""
    options = {
        "sections": ["--task", "classify", "--table", f"{texts}/sections-train.tsv"],
        "roles": ["--task", "classify", "--table", f"{texts}/roles-train.tsv"],
        "catalogues": ["--task", "translate"],
        "manuals": ["--task", "generate", "--text", f"{texts}/manuals-train.txt", "--dev", f"{texts}/manuals-dev.txt"],
        "docstrings": ["--task", "generate", "--text", f"{texts}/docstrings-train.txt"],
    }
    for side, language in (("source", "en"), ("target", "de")):
        options["catalogues"] += [f"--{side}", f"{texts}/catalogues-train.{language}"]
        options["catalogues"] += [f"--dev-{side}", f"{texts}/catalogues-dev.{language}"]
    return [
        {"name": name, "options": given, "minutes": length, "busy": count}
        for length in minutes
        for count in busy
        for name, given in options.items()
    ]


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


def measure(training: dict[str, Any], folder: Path, pinned: list[str]) -> dict[str, Any]:
    """Train, and return where the seconds went, by the clock on the wall and by the run's own account."""
    name, minutes, busy = training["name"], training["minutes"], training.get("busy", 0)
    row: dict[str, Any] = {"name": name, "minutes": minutes, "busy": busy}
    command = [*pinned, sys.executable, "-m", "clearhead", "train", str(folder), "--minutes", str(minutes)]
    command += training["options"]
    with busy_processes(busy, pinned):
        began = time.perf_counter()
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        real = time.perf_counter() - began
    if finished.returncode:
        return {**row, "wrong": f"exit {finished.returncode}: {finished.stderr.strip().splitlines()[-1:]}"}
    evaluation = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    plan = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["plan"]
    account = evaluation["budget"]
    row |= {**account, "real": round(real, 2), "step": evaluation["step"], "loss": evaluation["loss"]}
    row |= {name: evaluation[name] for name in SCORES if name in evaluation}
    row["off"] = real / account["planned"] - 1
    row["share"] = account["steps"] / max(1e-9, real - account["reading"])
    row["enough"], row["planned_steps"] = plan["enough"], plan["steps"]
    row["wrong"] = find_faults(row)
    return row


def find_faults(row: dict[str, Any]) -> str:
    """Return what is wrong with the times of a training, nothing if all is well."""
    faults = []
    if row["off"] > LATE or (row["off"] < -LATE and not row["enough"]):
        faults.append(f"the end is {row['off']:+.1%} away from its plan")
    if row["share"] < LEAST_SHARE:
        faults.append(f"steps got {row['share']:.0%}")
    return "; ".join(faults)


def to_markdown(rows: list[dict[str, Any]]) -> str:
    head = ["training", "minutes", "busy", *(f"{name}, s" for name in COLUMNS), "off", "steps' share", "wrong"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        numbers = [f"{row[name]:.1f}" if name in row else "–" for name in COLUMNS]
        shares = [f"{row[name]:{form}}" if name in row else "–" for name, form in (("off", "+.1%"), ("share", ".0%"))]
        about = [row["name"], f"{row['minutes']:g}", str(row["busy"])]
        lines.append(f"| {' | '.join([*about, *numbers, *shares, row['wrong']])} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainings", type=Path, nargs="?")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--minutes", default="1")
    parser.add_argument("--busy", default="0")
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.trainings is not None:
        trainings = json.loads(asked.trainings.read_text(encoding="utf-8"))
    else:
        minutes, busy = [float(n) for n in asked.minutes.split(",")], [int(n) for n in asked.busy.split(",")]
        trainings = debian_trainings(asked.texts, minutes, busy)
    slots = queue.SimpleQueue[list[str]]()
    for slot in range(asked.side_by_side):
        slots.put(["taskset", "-c", f"{2 * slot},{2 * slot + 1}"] if asked.side_by_side > 1 else [])
    rows: list[dict[str, Any]] = []

    def run(training: dict[str, Any]) -> None:
        pinned = slots.get()
        with tempfile.TemporaryDirectory() as folder:
            row = measure(training, Path(folder) / "run", pinned)
        slots.put(pinned)
        rows.append(row)
        print(f"{row['name']}: {row['wrong'] or 'on time'}", file=sys.stderr, flush=True)
        if asked.out is not None:
            asked.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    with ThreadPoolExecutor(asked.side_by_side) as pool:
        list(pool.map(run, trainings))
    print(to_markdown(rows))
    wrong = sum(bool(row["wrong"]) for row in rows)
    print(f"\n{len(rows) - wrong} of {len(rows)} trainings ended on time, with at least 80 % of their time in steps.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
