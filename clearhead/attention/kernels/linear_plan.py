"""How a call of the linear kernel is cut up: segments, chunks and launch options, chosen by the shapes."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

FEW = 8
"""Up to this many segments a program adds up the sums before its own by itself; beyond it they are scanned first."""
PROGRAMS = 1024
"""Programs that fill a GPU: segments are made shorter until there are as many."""
AT_ONCE = 264
"""Programs that an H200 runs at a time, two on each of its 132 processors."""


@dataclass(frozen=True)
class Options:
    """Options of the computation, apart from the tensors."""

    causal: bool
    normalised: bool
    map: str


@dataclass(frozen=True)
class LinearTile:
    """Launch options of one kernel: positions in a chunk, warps, stages of its pipeline, and registers for a thread."""

    chunk: int = 64
    warps: int = 4
    stages: int = 2
    registers: int | None = None

    def options(self) -> dict[str, Any]:
        return {"CHUNK": self.chunk, "num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


@dataclass(frozen=True)
class LinearPlan:
    """Positions in a segment, and launch options for each kernel."""

    segment: int = 512
    sums: LinearTile = LinearTile()
    attend: LinearTile = LinearTile()
    grad_query: LinearTile = LinearTile()
    grad_key: LinearTile = LinearTile()
    split: bool = False
    """Forward, the float32 state enters bfloat16 products as two parts (16 bits of it) instead of one (8 bits). On an
    H200 one takes 231 instead of 255 µs, and the error is 1.87e-3 instead of 1.86e-3 at 65,536 tokens, of which the
    rounding of the result is 1.59e-3. On the way back it is two where the product nearly cancels with d z."""
    whole: bool = False
    """Causal calls whose chunks are all full have kernels of their own, without what leaves rows out: 12 to 16 % fewer
    instructions. Measured in bfloat16, up to 64 wide."""
    precision: str = "tf32x3"
    """Of float32 products: `tf32x3`, three products on tensor cores for one, or `ieee`, slow and no more exact here."""
    few: int = FEW

    @staticmethod
    def of(tile: LinearTile, **options: Any) -> "LinearPlan":
        """Return a plan with the same tile for every kernel."""
        return LinearPlan(sums=tile, attend=tile, grad_query=tile, grad_key=tile, **options)


def plan_for(query: Tensor, value: Tensor, n_slots: int, rows: int) -> LinearPlan:
    """Choose segments and tiles for these shapes. The figures come from benchmarks/gpu_kernels.py."""
    segment = 1024
    while segment > 128 and rows * -(-n_slots // segment) < PROGRAMS:
        segment //= 2
    if segment == 1024 and longest_walk(2048, n_slots, rows) <= longest_walk(1024, n_slots, rows):
        segment = 2048  # fewer sums to write and to add up: 312 instead of 326 µs, forward, for 16 x 4,096 tokens
    wide = max(query.shape[-1], value.shape[-1]) > 64
    if value.dtype == torch.bfloat16:
        tile = LinearTile(chunk=64, warps=8 if wide else 4, stages=2)
        deep = tile if wide else LinearTile(chunk=64, warps=4, stages=3)
        sums = tile if wide else replace(deep, registers=128)
        return LinearPlan(segment=segment, sums=sums, attend=deep, grad_query=tile, grad_key=tile, whole=not wide)
    return LinearPlan.of(LinearTile(16 if value.dtype == torch.float32 else 32, 8 if wide else 4, 1), segment=segment)


def longest_walk(segment: int, n_slots: int, rows: int) -> int:
    """Return how many positions one program after the other walks through, until all are done."""
    return -(-rows * -(-n_slots // segment) // AT_ONCE) * segment


@dataclass(frozen=True)
class Cut:
    """Number of slots and segments on each side; causal queries and keys share theirs."""

    query_slots: int
    key_slots: int
    query_segments: int
    key_segments: int
    first_segment: int
    """The first segment with a query in it."""

    @property
    def of_queries(self) -> tuple[int, int, int]:
        """Return the slots of queries, the first of their segments, and how many there are from it on."""
        return self.query_slots, self.first_segment, self.query_segments - self.first_segment

    @property
    def of_keys(self) -> tuple[int, int]:
        """Return the slots of keys, and their segments."""
        return self.key_slots, self.key_segments

    @staticmethod
    def of(query: Tensor, key: Tensor, causal: bool, segment: int) -> "Cut":
        n_query, n_key = query.shape[2], key.shape[2]
        if not causal:
            return Cut(n_query, n_key, -(-n_query // segment), -(-n_key // segment), 0)
        n_slots = max(n_query, n_key)
        n_segments = -(-n_slots // segment)
        return Cut(n_slots, n_slots, n_segments, n_segments, (n_slots - n_query) // segment)


def sums_mode(causal: bool, n_segments: int, plan: LinearPlan) -> str:
    """Say how a program finds its state among the sums that `forward` returned."""
    if not causal:
        return "all"
    if n_segments == 1:
        return "none"
    return "added" if n_segments <= plan.few else "scanned"
