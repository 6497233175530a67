"""Time and memory, measured: medians of interleaved runs, and the peak memory of a fresh process."""

import importlib.metadata
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch


def once(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def interleaved(
    runs: dict[str, Callable[[], object]], *, seconds: float = 2.0, device: str = "cpu"
) -> dict[str, float]:
    """The median seconds of each, taken in turn so that a noisy moment falls on all of them alike."""
    for run in runs.values():
        run()
        run()
    taken: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    order = list(runs)
    while time.perf_counter() < end or len(taken[order[0]]) < 5:
        for name in order:
            taken[name].append(once(runs[name], device))
        order.reverse()
    return {name: statistics.median(times) for name, times in taken.items()}


def peak_memory(run: Callable[[], object]) -> float:
    """Megabytes that a run adds to this process at its peak, as the kernel counts them."""
    run_status = pathlib.Path("/proc/self/status")

    def read(name: str) -> float:
        line = next(line for line in run_status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) / 1024

    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = read("VmRSS")
    run()
    return read("VmHWM") - before


def in_fresh_process(script: str, arguments: dict[str, object]) -> dict[str, float]:
    """Runs `script --case JSON` by itself, so that no earlier allocation hides a new one."""
    command = [sys.executable, script, "--case", json.dumps(arguments)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


def in_words(ratio: float) -> str:
    """Return a ratio of speeds in words.

    >>> in_words(3.34), in_words(1.123), in_words(0.5)
    ('3.3 x as fast as', '1.12 x as fast as', '2.00 x the time of')
    """
    if ratio < 1:
        return f"{1 / ratio:.2f} x the time of"
    return f"{ratio:.1f} x as fast as" if ratio >= 2 else f"{ratio:.2f} x as fast as"


def versions_of(*names: str) -> str:
    """Return the versions of these packages, and which are missing."""
    told = []
    for name in names:
        try:
            told.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            told.append(f"no {name}")
    return ", ".join(told)


def table(title: str, header: list[str], rows: list[list[object]]) -> str:
    """A Markdown table."""
    cells = [header, *[[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([f"### {title}", "", lines[0], rule, *lines[1:], ""])
