"""What Clearhead does on this CPU, beside its peers in the same run: `make bench`, about a quarter of an hour.

python -m benchmarks cpu                   # everything, and benchmarks/results/cpu.md
python -m benchmarks cpu --only decoding   # some parts, printed only

The scripts do the measuring, each in a process of its own; this runs them one after the other and keeps their tables.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import table, versions_of

HERE = Path(__file__).resolve().parent
PEERS = ("torch", "transformers", "ctranslate2")


def script(name: str, *arguments: str) -> str:
    """Run one of the scripts, and return what it printed."""
    command = [sys.executable, str(HERE / name), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def starting() -> str:
    """Measure how long commands take that compute nothing: the start of Python beside them."""
    commands = {
        "python -c pass": ["-c", "pass"],
        "python -c 'import torch'": ["-c", "import torch"],
        "clearhead --help": ["-m", "clearhead", "--help"],
        "clearhead kernels": ["-m", "clearhead", "kernels"],
    }
    rows: list[list[object]] = []
    for name, arguments in commands.items():
        taken = []
        for _ in range(6):
            begin = time.perf_counter()
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
            taken.append(time.perf_counter() - begin)
        rows.append([name, statistics.median(taken[1:])])
    return table("Seconds until a command is done", ["command", "seconds"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "starting": starting,
    "training": lambda: "\n\n".join(
        script("training.py", "--setting", setting, "--steps", steps)
        for setting, steps in (("nanogpt", "500"), ("demo", "200"))
    ),
    "decoding": lambda: script("decoding.py", "--seconds", "12"),
    "attention": lambda: script("attention.py", "--quick"),
}


def page(found: dict[str, str]) -> str:
    lines = [
        "# Benchmarks on a CPU",
        "",
        "Measured and written by `make bench`, each with its peers in the same run:",
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores; {versions_of(*PEERS)}.",
        "What the columns mean, and longer runs: [benchmarks/README.md](../README.md).",
        "",
    ]
    for name, text in found.items():
        lines += [f"## {name.capitalize()}", "", text.strip(), ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/results"), help="where cpu.md is written")
    asked = parser.parse_args(arguments)
    found = {}
    for name in asked.only:
        begin = time.perf_counter()
        found[name] = PARTS[name]()
        print(f"{found[name]}\n{name}: {time.perf_counter() - begin:.0f} s\n", flush=True)
    if asked.only == list(PARTS):
        (asked.folder / "cpu.md").write_text(page(found), encoding="utf-8")
        print(f"{asked.folder / 'cpu.md'} is written")
