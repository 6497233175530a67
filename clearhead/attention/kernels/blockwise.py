"""Block-wise: the reference on a block of queries at a time, so that n x n numbers are never held.

Serves every similarity and every weighting that looks at one row at a time. Each block is computed again in the
backward pass instead of being kept.
"""

from typing import ClassVar, final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clearhead.attention import reference
from clearhead.attention.call import Call, Facts, Sight
from clearhead.attention.kernels.base import Context, Kernel

__all__ = ["Blockwise"]

BLOCK_NUMBERS = 1 << 22
"""How many scores (times what the similarity holds for each) a block may have: 16 MB in float32."""


@final
class Blockwise(Kernel):
    name: ClassVar[str] = "blockwise"
    summary: ClassVar[str] = "any similarity and weighting, a block of queries at a time, never n x n"

    def refusal(self, facts: Facts) -> str | None:
        return None

    def notes(self, facts: Facts) -> tuple[str, ...]:
        quadratic = "the quadratic form, a block at a time: time grows with n_query x n_key"
        return (quadratic,) if facts.weighting == "kernelized" else ()

    def run(self, call: Call) -> Context:
        dtype = call.query.dtype
        call = call.widened().with_every_head()
        rows = block_rows(call, BLOCK_NUMBERS)
        if not call.complete:
            call = call.sealed(sight(call, rows))
        query, key = call.similarity.prepare(call.query, call.key)
        if rows >= call.n_query:
            return context(call, query, key, 0, call.n_query).to(dtype)
        blocks = [
            checkpoint(context, call, query, key, start, start + rows, use_reentrant=False)
            for start in range(0, call.n_query, rows)
        ]
        return torch.cat(blocks, dim=2).to(dtype)


def context(call: Call, query: Tensor, key: Tensor, start: int, stop: int) -> Context:
    weights = reference.weigh(call, query[:, :, start:stop], key, slice(start, stop))
    return reference.mix(call, weights.weight)


def block_rows(call: Call, block_numbers: int) -> int:
    row = call.query.shape[0] * call.n_heads * call.n_key * call.similarity.cost(call.query.shape[-1])
    return max(1, block_numbers // row)


def sight(call: Call, rows: int) -> Sight:
    """Which queries see a key and which keys are seen, a block of queries at a time."""
    blocks = [slice(start, min(start + rows, call.n_query)) for start in range(0, call.n_query, rows)]
    seen = [Sight.of(call.mask.allowed(call.cells(block))) for block in blocks]
    keys = seen[0].keys
    for block in seen[1:]:
        keys = keys | block.keys
    every_row = [part.rows.expand(-1, -1, block.stop - block.start) for part, block in zip(seen, blocks, strict=True)]
    return Sight(rows=torch.cat(every_row, -1), keys=keys)
