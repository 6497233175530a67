"""The progress of `train` in Python: a line drawn again and again on a terminal or in a notebook, else a few lines.

The command line has a richer display (cli/progress.py). This one needs nothing but the standard library.
"""

import sys
import time
from collections.abc import Callable, Mapping
from io import TextIOBase
from typing import Any, cast, final

WIDTH = 24
PLAIN_SECONDS, DRAWN_SECONDS = 10.0, 0.2
"""Seconds between two lines in a log, and between two drawings of the bar."""


@final
class ProgressLine:
    """A watcher that shows step, loss, speed and time left, and the scores of each evaluation."""

    def __init__(self, out: TextIOBase | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.out = cast(TextIOBase, sys.stderr) if out is None else out
        self.draws = self.out.isatty() or "ipykernel" in sys.modules
        self.clock, self.last = clock, clock()
        self.drawn = 0

    def __call__(self, line: Mapping[str, Any]) -> None:
        if line["kind"] == "step":
            self.step(line)
        elif line["kind"] == "evaluation":
            scores = "  ".join(f"{name} {value:.4g}" for name, value in line["scores"].items())
            self.write(f"dev at step {line['step']:,}  loss {line['loss']:.4f}  {scores}".rstrip(), ends=True)

    def step(self, line: Mapping[str, Any]) -> None:
        last = line["step"] >= line["total"]
        if not last and self.clock() - self.last < (DRAWN_SECONDS if self.draws else PLAIN_SECONDS):
            return
        self.last = self.clock()
        share = min(1.0, line["step"] / max(1, line["total"]))
        seconds_left = line["seconds"] * (1 / max(share, 1e-9) - 1)
        about = "about " if line.get("about") else ""
        bar = f"{'█' * round(WIDTH * share):<{WIDTH}}  " if self.draws else ""
        self.write(
            f"{bar}step {line['step']:,}/{about}{line['total']:,}  loss {line['loss']:.4f}  "
            f"{line['tokens_per_second']:,} tokens/s  {seconds_left / 60:.1f} min left",
            ends=not self.draws or last,
        )

    def write(self, text: str, *, ends: bool) -> None:
        """Write a line over the one that was drawn last; `ends`: it stays."""
        ahead = "\r" if self.draws else ""
        self.out.write(f"{ahead}{text:<{self.drawn}}" + ("\n" if ends else ""))
        self.out.flush()
        self.drawn = 0 if ends else len(text)
