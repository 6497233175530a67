"""Memory while a corpus of any size is tokenised and trained on: it stays flat, or this exits with 1.

    python benchmarks/memory.py                 a text of 2,000 MB
    python benchmarks/memory.py --mb 100        a smaller one, to try it

The text is generated from a seeded list of words, most of them rare, with words among them that occur once. A run is
trained on it by `clearhead train` in a process of its own, whose memory is looked at ten times a second.

Two figures: `RssAnon`, what the process has allocated, is what must be flat. `VmRSS` also counts the pages of files
that are mapped, the token ids among them: the kernel keeps those while it has room, and takes them back when it needs
it.
"""

import argparse
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from measure import table

SEED = 1
N_WORDS = 200_000
FLAT_MB = 200
PAUSE = 0.1
READING, LEARNING, TOKENISING, TRAINING = PHASES = ("reading", "learning tokens", "tokenising", "training")
"""Those of `clearhead train`, by what lies in the run folder."""
MUST_BE_FLAT = (TOKENISING, TRAINING)


class Sample(NamedTuple):
    """A look at the process, in megabytes."""

    phase: str
    seconds: float
    anonymous: float
    resident: float


def write_text(path: Path, megabytes: int) -> None:
    """Lines of 5 to 25 words by Zipf's law; one word in a hundred is made up on the spot, and may never come again."""
    draw = random.Random(SEED)
    words = [made_up(draw) for _ in range(N_WORDS)]
    heaps = list(itertools.accumulate(1 / place for place in range(1, N_WORDS + 1)))
    left = megabytes * 1_000_000
    with path.open("w", encoding="ascii") as file:
        while left > 0:
            drawn = draw.choices(words, cum_weights=heaps, k=5000)
            drawn[::100] = [made_up(draw) for _ in drawn[::100]]
            left -= file.write("".join(lines(drawn, draw)))


def made_up(draw: random.Random) -> str:
    return "".join(draw.choices("etaoinshrdlucmfwypvbgkjqxz", k=draw.randint(2, 12)))


def lines(words: list[str], draw: random.Random) -> Iterator[str]:
    start = 0
    while start < len(words):
        end = start + draw.randint(5, 25)
        yield " ".join(words[start:end]) + "\n"
        start = end


def command(text: Path, run: Path, steps: int) -> list[str]:
    how = (
        f"--task generate --documents line --tokenizer bpe --vocabulary 8000 --size 1M --batch-tokens 512 "
        f"--context 128 --steps {steps} --evaluate-every {steps} --device cpu --threads 1 --json"
    )
    return [sys.executable, "-m", "clearhead", "train", str(run), "--text", str(text), *how.split()]


def phase_of(run: Path) -> str:
    """What the process is at, by the files it has written."""
    home = next((run / "data").glob("*/"), None)
    if home is None:
        return READING
    if (home / "whole.json").exists():
        return TRAINING
    return TOKENISING if (home / "train.partial").exists() else LEARNING


def watch(process: subprocess.Popen[bytes], run: Path) -> Iterator[Sample]:
    started = time.perf_counter()
    while process.poll() is None:
        try:
            told = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
            anonymous, resident = (int(told[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS"))
        except (OSError, KeyError):  # it has just ended
            return
        yield Sample(phase_of(run), time.perf_counter() - started, anonymous, resident)
        time.sleep(PAUSE)


def tenths(samples: list[Sample]) -> list[list[Sample]]:
    """A phase cut into ten stretches of the same time."""
    first, length = samples[0].seconds, samples[-1].seconds - samples[0].seconds
    cut: list[list[Sample]] = [[] for _ in range(10)]
    for sample in samples:
        cut[min(9, int(10 * (sample.seconds - first) / max(length, 1e-9)))].append(sample)
    return [some for some in cut if some]


def report(samples: list[Sample]) -> bool:
    """Prints what was seen; whether it was flat from the first token that was written to the last step."""
    levels: list[float] = []
    for phase in PHASES:
        seen = [sample for sample in samples if sample.phase == phase]
        cut = tenths(seen) if seen else []
        rows: list[list[object]] = [[i + 1, *(f"{mb:.0f}" for mb in highest(some))] for i, some in enumerate(cut)]
        taken = seen[-1].seconds - seen[0].seconds if seen else 0
        print(table(f"{phase}, {taken:.0f} s", ["tenth", "RssAnon MB", "VmRSS MB"], rows))
        if phase in MUST_BE_FLAT:
            levels += [highest(some)[0] for some in cut]
    spread = max(levels) - min(levels)
    print(
        f"RssAnon while {' and '.join(MUST_BE_FLAT)}: {min(levels):.0f} to {max(levels):.0f} MB, {spread:.0f} MB apart"
    )
    return spread <= FLAT_MB


def highest(samples: list[Sample]) -> tuple[float, float]:
    return max(one.anonymous for one in samples), max(one.resident for one in samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where text and run are made; a temporary one unless given")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        text, run = Path(folder) / "text.txt", Path(folder) / "run"
        write_text(text, args.mb)
        print(f"{args.mb} MB of text; {shutil.disk_usage(folder).free / 1e9:.0f} GB of disk left", flush=True)
        with subprocess.Popen(command(text, run, args.steps), stdout=subprocess.DEVNULL) as process:
            samples = list(watch(process, run))
        if process.returncode:
            sys.exit(f"clearhead train failed with exit code {process.returncode}")
    flat = report(samples)
    print("flat" if flat else f"NOT flat: that is more than {FLAT_MB} MB")
    sys.exit(not flat)


if __name__ == "__main__":
    main()
