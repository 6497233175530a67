"""Triton code of a greedy choice; `greedy_gpu.py` launches it, and works without Triton."""

import triton.language as tl

from clearhead.jit_triton import jit


@jit
def likeliest(logits, values, tokens, stride, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
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
