"""The greedy choice as one Triton kernel, where torch's log_softmax and max go over the logits three times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.compiling import jit, missing_triton
from clearhead.decoding.rules import Rules

if TYPE_CHECKING:
    import triton.language as tl

BLOCK = 8192
"""Logits of a row that are read at once."""


def serves(rules: Rules, device: torch.device) -> bool:
    """Check whether the kernel can choose: where no rule forbids a token, on a device that has Triton."""
    return rules.forbids_nothing and missing_triton(device.type) is None


def likeliest(logits: Float[Tensor, "row vocabulary"]) -> tuple[Float[Tensor, "row"], Int[Tensor, "row"]]:
    """Return the log-probability of each row's likeliest token, in float32 or better, and the token."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, vocabulary = logits.shape
    values = logits.new_empty(rows, dtype=torch.promote_types(logits.dtype, torch.float32))
    tokens = torch.empty(rows, dtype=torch.long, device=logits.device)
    block = min(BLOCK, max(16, 1 << (vocabulary - 1).bit_length()))
    sizes = {"VOCABULARY": vocabulary, "BLOCK": block, "num_warps": max(1, min(16, block // 512))}
    likeliest_kernel[(rows,)](logits, values, tokens, logits.stride(0), **sizes)
    return values, tokens


@jit
def likeliest_kernel(logits, values, tokens, stride, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """Write the likeliest token of a row, the first of equals, and its log-probability: one program for each row.

    With exponentials taken relative to the largest logit, the log-probability of the likeliest token is minus the
    logarithm of their sum. It is in float64 for logits in float64. Where a logit is NaN or inf, all log-probabilities
    are NaN, and the first token is taken.
    """
    wide: tl.constexpr = tl.float64 if logits.dtype.element_ty == tl.float64 else tl.float32  # pyright: ignore[reportAssignmentType]
    row = logits + tl.program_id(0).to(tl.int64) * stride
    columns = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), wide)
    place = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, VOCABULARY, BLOCK):
        here = first + columns
        x = tl.load(row + here, mask=here < VOCABULARY, other=float("-inf")).to(wide)
        better = x > best
        place = tl.where(better, here, place)
        best = tl.where(better, x, best)
    largest = tl.max(best, 0)
    token = tl.min(tl.where(best == largest, place, VOCABULARY), 0)
    total = tl.zeros((BLOCK,), wide)
    for first in range(0, VOCABULARY, BLOCK):
        here = first + columns
        x = tl.load(row + here, mask=here < VOCABULARY, other=float("-inf")).to(wide)
        total += tl.exp(x - largest)
    value = -tl.log(tl.sum(total, 0))
    tl.store(values + tl.program_id(0), value)
    tl.store(tokens + tl.program_id(0), tl.where(value <= 0, token, 0).to(tl.int64))
