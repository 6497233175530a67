"""Triton code of attention with one query a head; `one_query_gpu.py` launches it, and works without Triton."""

import triton.language as tl

from clearhead.jit_triton import jit


@jit(do_not_specialize=["n_keys"])
def attend_one(
    query,
    keys,
    values,
    bias,
    column,
    context,
    query_row,
    query_head,
    key_row,
    key_head,
    key_column,
    value_row,
    value_head,
    value_column,
    bias_row,
    n_keys,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BIASED: tl.constexpr,
    GROWING: tl.constexpr,
):
    """Write the context of one head of one row; GROUP heads share keys and values.

    Keys are read in blocks, with a running maximum of the scores, up to the one at `column` if the cache is GROWING.
    Everything is summed in float32, in float64 for inputs in float64. A bias of -inf hides a key, whatever it holds; a
    row that sees nothing has the context 0.
    """
    wide: tl.constexpr = tl.float64 if query.dtype.element_ty == tl.float64 else tl.float32  # pyright: ignore[reportAssignmentType]
    row, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    parts = tl.arange(0, WIDTH)
    inside = parts < D
    q = tl.load(query + row * query_row + head * query_head + parts, mask=inside, other=0.0).to(wide) * SCALE
    keys += row * key_row + (head // GROUP) * key_head
    values += row * value_row + (head // GROUP) * value_head
    if GROWING:
        n_keys = tl.minimum(tl.load(column).to(tl.int32) + 1, n_keys)
    largest = tl.full((), float("-inf"), wide)
    total = tl.zeros((), wide)
    amount = tl.zeros((WIDTH,), wide)
    for first in range(0, n_keys, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        there = columns < n_keys
        mask = there[:, None] & inside[None, :]
        key = tl.load(keys + columns[:, None] * key_column + parts[None, :], mask=mask, other=0.0).to(wide)
        value = tl.load(values + columns[:, None] * value_column + parts[None, :], mask=mask, other=0.0).to(wide)
        score = tl.where(there, tl.sum(key * q[None, :], 1), float("-inf"))
        if BIASED:
            added = tl.load(bias + row * bias_row + columns, mask=there, other=float("-inf")).to(wide)
            score = tl.where(added == float("-inf"), float("-inf"), score + added)
            value = tl.where((added == float("-inf"))[:, None], 0.0, value)
        before, largest = largest, tl.maximum(largest, tl.max(score, 0))
        origin = tl.where(largest == float("-inf"), 0.0, largest)
        weight, fade = tl.exp(score - origin), tl.exp(before - origin)
        total = total * fade + tl.sum(weight, 0)
        amount = amount * fade + tl.sum(weight[:, None] * value, 0)
    amount = amount / tl.where(total == 0, 1.0, total)
    tl.store(context + (row * HEADS + head) * D + parts, amount.to(context.dtype.element_ty), mask=inside)
