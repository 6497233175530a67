"""A figure of the GPU's table, and how its time is taken."""

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.measure import once


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number: Clearhead's, or, with `peer_of`, another engine's for the same work."""

    work: str
    figure: float
    unit: str
    note: str = ""
    """What else was seen, in words."""
    peer_of: str = ""
    """How the names of the works begin that this is a peer of; `report` computes the ratios."""


def milliseconds(run: Callable[[], object], rounds: int = 20, warm_ups: int = 4) -> float:
    """Return the time of one call, calls following each other as in a program: the GPU does not wait for Python."""
    for _ in range(warm_ups):
        run()
    torch.cuda.synchronize()

    def several() -> None:
        for _ in range(rounds):
            run()

    return 1e3 * min(once(several, "cuda") for _ in range(3)) / rounds


def clean() -> None:
    gc.collect()
    torch._dynamo.reset()
    torch.cuda.empty_cache()
