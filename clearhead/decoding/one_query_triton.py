"""Triton code of attention with one query a head; `one_query_gpu.py` launches it, and works without Triton.

One program has one head of one row, or a share of its keys: where rows and heads are few, SPLITS programs read the
columns of a head side by side, and the last one to come to its end puts their contexts together. In a decoding step
(`attend_step`) each program also turns its query and the new key by their position and norms them, which would take as
many kernels as there are operations; the first program of those that share a key writes it into the cache.

Softmax needs the largest score first. A program goes through its keys once, with the largest so far: what was summed
up before is multiplied by exp(largest before - largest now).
"""

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from clearhead.jit_triton import jit


@jit
def see_keys(
    q,
    keys,
    values,
    bias,
    first,
    end,
    key_column,
    value_column,
    largest,
    total,
    amount,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BIASED: tl.constexpr,
    wide: tl.constexpr,
):
    """Return the largest score, the sum of weights and that of weighted values after the columns from first to end.

    A bias of -inf hides a key, whatever it holds.
    """
    parts = tl.arange(0, WIDTH)
    inside = parts < D
    for start in range(first, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        there = columns < end
        mask = there[:, None] & inside[None, :]
        key = tl.load(keys + columns[:, None] * key_column + parts[None, :], mask=mask, other=0.0).to(wide)
        value = tl.load(values + columns[:, None] * value_column + parts[None, :], mask=mask, other=0.0).to(wide)
        score = tl.where(there, tl.sum(key * q[None, :], 1), float("-inf"))
        if BIASED:
            added = tl.load(bias + columns, mask=there, other=float("-inf")).to(wide)
            score = tl.where(added == float("-inf"), float("-inf"), score + added)
            value = tl.where((added == float("-inf"))[:, None], 0.0, value)
        before, largest = largest, tl.maximum(largest, tl.max(score, 0))
        origin = tl.where(largest == float("-inf"), 0.0, largest)
        weight, fade = tl.exp(score - origin), tl.exp(before - origin)
        total = total * fade + tl.sum(weight, 0)
        amount = amount * fade + tl.sum(weight[:, None] * value, 0)
    return largest, total, amount


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

    Keys are read up to the one at `column` if the cache is GROWING. Everything is summed in float32, in float64 for
    inputs in float64. A row that sees nothing has the context 0.
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
    _, total, amount = see_keys(
        q,
        keys,
        values,
        bias + row * bias_row,
        0,
        n_keys,
        key_column,
        value_column,
        tl.full((), float("-inf"), wide),
        tl.zeros((), wide),
        tl.zeros((WIDTH,), wide),
        D,
        WIDTH,
        BLOCK,
        BIASED,
        wide,
    )
    amount = amount / tl.where(total == 0, 1.0, total)
    tl.store(context + (row * HEADS + head) * D + parts, amount.to(context.dtype.element_ty), mask=inside)


@jit
def turned(
    vector,
    gamma,
    cos,
    sin,
    EPSILON: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TURNED: tl.constexpr,
    HALVES: tl.constexpr,
    NORMED: tl.constexpr,
    wide: tl.constexpr,
):
    """Return a head's vector after its RMS norm and its rotation, rounded after each as the model's own steps are."""
    parts = tl.arange(0, WIDTH)
    inside = parts < D
    kind = vector.dtype.element_ty
    x = tl.load(vector + parts, mask=inside, other=0.0)
    factor = 1.0
    if NORMED:
        factor = 1.0 / tl.sqrt(tl.sum(x.to(wide) * x.to(wide), 0) / D + EPSILON)
        x = (x.to(wide) * factor * tl.load(gamma + parts, mask=inside, other=0.0).to(wide)).to(kind)
    if TURNED > 0:
        turns = parts < TURNED
        behind = parts >= TURNED // 2 if HALVES else parts % 2 == 1
        apart = TURNED // 2 if HALVES else 1
        partner = tl.where(behind, parts - apart, parts + apart)
        pair = tl.minimum(parts, partner) if HALVES else parts // 2
        y = tl.load(vector + partner, mask=turns, other=0.0)
        if NORMED:
            y = (y.to(wide) * factor * tl.load(gamma + partner, mask=turns, other=0.0).to(wide)).to(kind)
        c = tl.load(cos + pair, mask=turns, other=1.0).to(wide)
        s = tl.load(sin + pair, mask=turns, other=0.0).to(wide)
        sign = tl.where(behind, 1.0, -1.0)
        x = tl.where(turns, x.to(wide) * c + sign * y.to(wide) * s, x.to(wide)).to(kind)
    return x


@jit
def attend_step(
    vectors,
    keys,
    values,
    cos,
    sin,
    query_gamma,
    key_gamma,
    first,
    last,
    context,
    partial,
    counters,
    key_row,
    key_head,
    key_column,
    value_row,
    value_head,
    value_column,
    last_row,
    SCALE: tl.constexpr,
    QUERY_EPSILON: tl.constexpr,
    KEY_EPSILON: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TURNED: tl.constexpr,
    HALVES: tl.constexpr,
    NORMED: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARE: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the new key and value of one row into column `last`, and the context of one head over first … last.

    `vectors` has query, key and value of every head side by side. The new key is seen as it is in these, not in the
    cache, where another program writes it.
    """
    wide: tl.constexpr = tl.float64 if vectors.dtype.element_ty == tl.float64 else tl.float32  # pyright: ignore[reportAssignmentType]
    row, head, split = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS, tl.program_id(1)
    shared = head // GROUP
    parts = tl.arange(0, WIDTH)
    inside = parts < D
    # Read before the wait: the kernel before this one writes `vectors` alone, and has waited for those before it.
    end = tl.load(last + row * last_row).to(tl.int32)
    begin = 0
    if PADDED:
        begin = tl.load(first + row).to(tl.int32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    sharing = tl.maximum((end + SHARE - 1) // SHARE, 1)
    if split < sharing:
        vectors += row * ((HEADS + 2 * (HEADS // GROUP)) * D)
        angle = (end - begin) * (TURNED // 2)
        q = (
            turned(
                vectors + head * D,
                query_gamma,
                cos + angle,
                sin + angle,
                QUERY_EPSILON,
                D,
                WIDTH,
                TURNED,
                HALVES,
                NORMED,
                wide,
            ).to(wide)
            * SCALE
        )
        keys += row * key_row + shared * key_head
        values += row * value_row + shared * value_head
        largest = tl.full((), float("-inf"), wide)
        total = tl.zeros((), wide)
        amount = tl.zeros((WIDTH,), wide)
        if split == 0:
            key = turned(
                vectors + (HEADS + shared) * D,
                key_gamma,
                cos + angle,
                sin + angle,
                KEY_EPSILON,
                D,
                WIDTH,
                TURNED,
                HALVES,
                NORMED,
                wide,
            )
            value = tl.load(vectors + (HEADS + HEADS // GROUP + shared) * D + parts, mask=inside, other=0.0)
            if head % GROUP == 0:
                tl.store(keys + end * key_column + parts, key, mask=inside)
                tl.store(values + end * value_column + parts, value, mask=inside)
            largest = tl.sum(key.to(wide) * q, 0)
            total = tl.full((), 1.0, wide)
            amount = value.to(wide)
        largest, total, amount = see_keys(
            q,
            keys,
            values,
            keys,
            tl.maximum(begin, split * SHARE),
            tl.minimum(end, (split + 1) * SHARE),
            key_column,
            value_column,
            largest,
            total,
            amount,
            D,
            WIDTH,
            BLOCK,
            False,
            wide,
        )
        place = tl.program_id(0).to(tl.int64)
        done = True
        if SPLITS > 1:
            size: tl.constexpr = WIDTH + 2  # pyright: ignore[reportAssignmentType]
            mine = partial + (place * SPLITS + split) * size
            tl.store(mine + parts, amount)
            tl.store(mine + WIDTH, largest)
            tl.store(mine + WIDTH + 1, total)
            tl.debug_barrier()  # every thread's part is written before one of them says so
            done = tl.atomic_add(counters + place, 1) == sharing - 1
            if done:
                tl.store(counters + place, 0)
                largest = tl.full((), float("-inf"), wide)
                total = tl.zeros((), wide)
                amount = tl.zeros((WIDTH,), wide)
                for other in range(sharing):
                    theirs = partial + (place * SPLITS + other) * size
                    top = tl.load(theirs + WIDTH, cache_modifier=".cg")
                    before, largest = largest, tl.maximum(largest, top)
                    origin = tl.where(largest == float("-inf"), 0.0, largest)
                    fade, factor = tl.exp(before - origin), tl.exp(top - origin)
                    total = total * fade + factor * tl.load(theirs + WIDTH + 1, cache_modifier=".cg")
                    amount = amount * fade + factor * tl.load(theirs + parts, cache_modifier=".cg")
        if done:
            tl.store(context + place * D + parts, (amount / total).to(context.dtype.element_ty), mask=inside)
