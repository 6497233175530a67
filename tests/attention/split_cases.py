"""Attention over a split sequence, compared with the reference on the whole one, in every process of a group.

`python -m tests.attention.split_cases` forks four processes, which meet over gloo, and prints a line for each case that
is off, and how many there were: every weighting x every mask, every position and every similarity, on 1, 2 and 4 of the
processes, forward and gradients in float64. A fork takes no time to import; one group of processes serves all cases.
"""

import itertools
import os
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from clearhead.attention import masks, positions, similarity, weighting
from clearhead.attention.attend import attend, explain
from clearhead.attention.context_parallel import gather_weights
from clearhead.attention.grid import small_kernels
from clearhead.attention.mask_numbers import Extent
from clearhead.attention.modes import BLOCK_DROPOUT
from clearhead.attention.parts import HeadShape
from clearhead.attention.request import AttentionOptions
from clearhead.attention.sequence_split import SequenceSplit
from clearhead.training.keyed_dropout import KeyedDropout

COUNTS = (1, 2, 4)
BATCH, HEADS, D_HEAD, D_VALUE, N = 3, 4, 8, 5, 13
NEAR = 1e-12
FEW_MASKS = ("none", "causal", "causal document", "causal window padding", "document cross", "tensor")


class SplitCase(NamedTuple):
    """One choice of every part; names of the tables in `clearhead.attention`."""

    weighting: str = "softmax"
    mask: str = "causal"
    position: str = "none"
    similarity: str = "default"
    kv_heads: int = HEADS
    n: int = N
    given: bool = False
    """Positions are given, beginning again in the middle."""
    dropout: float = 0.0


def cases() -> Iterator[SplitCase]:
    for weigh, mask in itertools.product(weighting.TABLE, masks.TABLE):
        yield SplitCase(weighting=weigh, mask=mask)
    for position, mask in itertools.product(positions.TABLE, FEW_MASKS):
        yield SplitCase(position=position, mask=mask)
        yield SplitCase(position=position, mask=mask, given=True, kv_heads=2)
    for like, mask in itertools.product(similarity.TABLE, FEW_MASKS):
        yield SplitCase(similarity=like, mask=mask)
    for weigh, n in itertools.product(("softmax", "linear elu", "linear random"), (1, 3, 16)):
        yield SplitCase(weighting=weigh, n=n, position="rotary", kv_heads=1)
    for weigh, mask in itertools.product(("softmax", "sigmoid", "argmax", "linear elu"), FEW_MASKS):
        yield SplitCase(weighting=weigh, mask=mask, dropout=0.5)


def parts_of(case: SplitCase) -> tuple[dict[str, Any], list[nn.Parameter]]:
    shape = HeadShape(n_heads=HEADS, n_kv_heads=case.kv_heads, d_head=D_HEAD)
    parts: dict[str, Any] = {
        "weighting": weighting.TABLE[case.weighting].build(shape),
        "position": positions.TABLE[case.position].build(shape),
    }
    if case.similarity != "default":
        parts["similarity"] = similarity.TABLE[case.similarity].build(shape)
    modules = [part.double() for part in parts.values() if isinstance(part, nn.Module)]
    extent = Extent(BATCH, HEADS, case.n, case.n, torch.device("cpu"))
    return {**parts, "mask": masks.TABLE[case.mask](extent)}, [p for one in modules for p in one.parameters()]


def compare(case: SplitCase, group: dist.ProcessGroup | None, count: int) -> float:
    """Return by how much context and gradients of this process are off, over the larger of 1 and the largest number."""
    torch.manual_seed(1)
    options, parameters = parts_of(case)
    shapes = (HEADS, D_HEAD), (case.kv_heads, D_HEAD), (case.kv_heads, D_VALUE)
    whole = [torch.randn(BATCH, heads, case.n, width, dtype=torch.float64).requires_grad_() for heads, width in shapes]
    upstream = torch.randn(BATCH, HEADS, case.n, D_VALUE, dtype=torch.float64)
    places = torch.arange(case.n)
    places = places % 5 if case.given else places
    given = {"query_positions": places, "key_positions": places} if case.given else {}
    keys = torch.arange(BATCH) * 12345

    def dropping():
        return KeyedDropout(keys)

    kernel = "blockwise" if case.dropout else "reference"
    with dropping():
        expected = attend(*whole, **options, **given, kernel=kernel, dropout=case.dropout)
    theirs = torch.autograd.grad(expected, [*whole, *parameters], upstream, allow_unused=True)

    split = SequenceSplit(case.n) if group is None else SequenceSplit.over(group, case.n)
    real = torch.cat([torch.arange(2 * split.block)[held.own] for held in split.held])
    own = [split.take(tensor.detach(), 2).requires_grad_() for tensor in whole]
    own_given = {name: split.take(tensor, 0) for name, tensor in given.items()}
    with dropping():
        found = attend(*own, **options, **own_given, dropout=case.dropout, split=split)
    asked = split.take(upstream, 2, fill=0.0)
    ours = torch.autograd.grad(found, [*own, *parameters], asked, allow_unused=True)
    pairs = [(found, split.take(expected, 2))]
    for tensor, mine, wanted in zip(whole, ours[:3], theirs[:3], strict=True):
        none = torch.zeros_like(tensor)
        pairs.append((split.take(none, 2) if mine is None else mine, split.take(none if wanted is None else wanted, 2)))
    off = [worst(mine[:, :, real], wanted[:, :, real]) for mine, wanted in pairs]
    for mine, wanted in zip(ours[3:], theirs[3:], strict=True):
        if wanted is not None:
            total = torch.zeros_like(wanted) if mine is None else mine.clone()
            if count > 1:
                dist.all_reduce(total, group=group)
            off.append(worst(total, wanted))
    if not case.dropout and not case.given:
        call = AttentionOptions(
            options.get("similarity"), options["weighting"], options["position"], options["mask"]
        ).inputs(tuple(own), split=split)
        rows, columns = slice(case.n // 3, case.n), slice(0, case.n // 2 + 1)
        tile = gather_weights(call, split, head=2, queries=rows, keys=columns)
        off.append(worst(tile, explain(*whole, **options).weight[:, 2, rows, columns]))
    return max(off, default=0.0)


def worst(found: torch.Tensor, wanted: torch.Tensor) -> float:
    if found.numel() == 0:
        return 0.0
    if not found.isfinite().all():
        return float("inf")
    return ((found - wanted).abs().max() / wanted.abs().max().clamp(min=1)).item()


def run_cases(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=max(COUNTS))
    assert BLOCK_DROPOUT.get() is None
    groups = {count: dist.new_group(range(count)) for count in COUNTS}
    every = list(cases())
    off = torch.zeros(len(COUNTS), len(every), dtype=torch.float64)
    with small_kernels():
        for i, count in enumerate(COUNTS):
            for j, case in enumerate(every):
                if rank < count:
                    off[i, j] = compare(case, None if count == 1 else groups[count], count)
    dist.all_reduce(off, dist.ReduceOp.MAX)
    if rank == 0:
        for i, j in (~(off <= NEAR)).nonzero().tolist():
            print(f"off by {off[i, j]:.1e} on {COUNTS[i]}: {every[j]}")
        print(f"{off.numel()} cases, the worst off by {off.max():.1e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(run_cases, args=(folder,), nprocs=max(COUNTS), start_method="fork")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
