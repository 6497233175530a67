"""Memory while text of any size is tokenised and trained on: it stays below 1 GiB, or this exits with 1.

    python benchmarks/memory.py --mb 10 100 1000 10000 --out build/memory

Shards of 64 MB, each line a document of 1 to 5 kB made of drawn words, are given to `clearhead train` in a process of
its own, whose memory is looked at ten times a second. `RssAnon` is what a process has allocated; pages of mapped files,
which the kernel takes back when it needs room, are not in it. What 1 MB takes is subtracted, of preparing and of
training: that is imports and the model. Draws the figure in docs/figures/memory.svg as OUT/memory.svg.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clearhead.colours import ROLES
from clearhead.plots.curves import DARK, QUIET, add_grid, save_svg

if TYPE_CHECKING:
    import matplotlib.figure

SEED, N_WORDS, SHARD_MB, PAUSE = 1, 200_000, 64, 0.1
LIMIT_MB, DEV_MB = 1024, 0.1
LETTERS = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", "u1")
SHARES = ("preparing", "training")


def write_shards(folder: Path, megabytes: float) -> None:
    """Write text of words by Zipf's law; the number of a line stands before it, so that none comes twice."""
    draw = np.random.default_rng(SEED)
    words = [LETTERS[draw.integers(0, 26, draw.integers(2, 13))].tobytes().decode() for _ in range(N_WORDS)]
    shares = 1 / np.arange(1, N_WORDS + 1)
    chances = np.cumsum(shares / shares.sum())
    folder.mkdir()
    number, left = itertools.count(), int(megabytes * 1_000_000)
    for shard in itertools.count():
        room = min(left, SHARD_MB * 1_000_000)
        if room <= 0:
            return
        left -= room
        with (folder / f"part-{shard:05}.txt").open("w", encoding="ascii") as file:
            while room > 0:
                drawn = [words[i] for i in np.searchsorted(chances, draw.random(draw.integers(200, 900))).tolist()]
                room -= file.write(f"{next(number)} {' '.join(drawn)}\n")


def command(folder: Path, tokenizer: str, steps: int) -> list[str]:
    how = (
        f"--task generate --documents line --tokenizer {tokenizer} --size 1M --batch-tokens 4096 --context 256 "
        f"--steps {steps} --evaluate-every {steps} --device cpu --threads 1 --no-film --json"
    )
    files = ("--text", str(folder / "text"), "--dev", str(folder / "dev"))
    return [sys.executable, "-m", "clearhead", "train", str(folder / "run"), *files, *how.split()]


def watch(process: subprocess.Popen[bytes], run: Path) -> Iterator[tuple[str, float, float]]:
    """Yield the phase, the seconds and the private memory in MB until the process ends."""
    started = time.perf_counter()
    while process.poll() is None:
        try:
            told = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
            anonymous = int(told["RssAnon"].split()[0]) / 1024
        except (OSError, KeyError):  # it has just ended
            return
        done = any((run / "data").glob("*/whole.json"))
        yield SHARES[done], time.perf_counter() - started, anonymous
        time.sleep(PAUSE)


def measure(folder: Path, megabytes: int, tokenizer: str, steps: int) -> dict[str, float]:
    """Train on so much text, and return seconds and the most memory of preparing and of training."""
    made = [folder / name for name in ("text", "dev", "run")]
    for old in made:
        shutil.rmtree(old, ignore_errors=True)
    write_shards(made[0], megabytes)
    write_shards(made[1], DEV_MB)
    with (
        open(os.devnull, "wb") as nowhere,
        subprocess.Popen(command(folder, tokenizer, steps), stdout=nowhere) as process,
    ):
        samples = list(watch(process, folder / "run"))
    if process.returncode:
        sys.exit(f"clearhead train failed with exit code {process.returncode}")
    found: dict[str, float] = {"mb": megabytes}
    for share in SHARES:
        seen = [(seconds, memory) for phase, seconds, memory in samples if phase == share]
        found[f"{share}_s"] = round(seen[-1][0] - seen[0][0], 1)
        found[f"{share}_mb"] = round(max(memory for _, memory in seen))
    for old in made:
        shutil.rmtree(old)
    return found


def figure_of(rows: list[dict[str, float]]) -> "matplotlib.figure.Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for name, style, role in zip(SHARES, ("o-", "s--"), ("value", "weight"), strict=True):
        axes.plot(
            [row["mb"] for row in rows], [row[f"{name}_mb"] for row in rows], style, color=ROLES[role], label=name
        )
    axes.axhline(LIMIT_MB, color=DARK, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(rows[0]["mb"], 0.98 * LIMIT_MB, "1 GiB", va="top", color=QUIET, fontsize=8)
    axes.set(xscale="log", ylim=(0, None), xlabel="MB of text", ylabel="private memory beyond\nimports and model, MB")
    axes.legend(fontsize=8, frameon=False)
    add_grid(axes)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tokenizer", default="byte")
    parser.add_argument("--out", type=Path, default=Path("build/memory"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows, base = [], measure(given.out, 1, given.tokenizer, given.steps)
    print(f"1 MB: {json.dumps(base)}", flush=True)
    for megabytes in given.mb:
        row = measure(given.out, megabytes, given.tokenizer, given.steps)
        rows.append({**row, **{name: row[name] - base[name] for name in ("preparing_mb", "training_mb")}})
        print(json.dumps(rows[-1]), flush=True)
        (given.out / "memory.json").write_text(json.dumps(rows, indent=1) + "\n")
    save_svg(lambda: figure_of(rows), given.out / "memory.svg", what="the figure")
    sys.exit(any(row[f"{share}_mb"] > LIMIT_MB for row in rows for share in SHARES))


if __name__ == "__main__":
    main()
