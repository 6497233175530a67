"""Triton code of argmax attention; `argmax_gpu.py` launches it, and works without Triton.

`choose` finds each row's winner in one pass over the keys, unless keys tie.

Scores come as tiles of ROWS queries by KEYS keys. For each row and each *lane* (column of the tile) it keeps the best
score so far, the tile it was in, and the second best score: five operations a score, and nothing crosses lanes before
the end. Then the row's maximum m is the best of the lanes, and every score within the tolerance of m is tied. A lane's
scores that are tied are its best, its second best, or worse ones; so if one lane's best is tied, and no second best is,
exactly one key is tied: the winner, whatever the rule for ties. Every other row is ambiguous. A block of rows with an
ambiguous one goes through its keys a second time, now knowing m: it finds the first or last tied key of each row, or
adds up the values of all of them. Both passes compute a score by the same instructions, and so to the same bits.

On the way back each value gets the gradients of the rows that chose it. `sum_chosen` is given the rows sorted by the
key they chose, so that a tile of keys finds its own side by side; `grad_value` is for tied keys that share a row, and
goes through all rows. Both add up by a matrix product with the choices: no atomic additions, so the same bits every
time.
"""

import triton.language as tl

from clearhead.attention.kernels.linear_triton import load_rows, row_length, store_rows
from clearhead.compiling import jit

COUNTS = ["n_heads", "n_kv_heads", "n_query", "n_key", "n_blocks", "length_stride", "tolerance"]
NOWHERE = tl.constexpr(2147483647)


@jit
def load_keys(k, start, k_row, columns, length, MASKED: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Load a tile of keys; with MASKED, zeros from `length` on."""
    base = k + start.to(tl.int64) * k_row
    if MASKED or D < BD:
        key = load_rows(base, columns, k_row, (start + columns < length), D, BD)
    else:
        key = tl.load(base + columns[:, None] * k_row + tl.arange(0, BD)[None, :])
    return key


@jit
def scores_of(
    query,
    key,
    start,
    positions,
    columns,
    length,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return a tile of scores, before the scale; -inf where a query may not attend."""
    score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if MASKED:
        keys = start + columns
        allowed = (keys < length)[None, :]
        if CAUSAL:
            allowed = allowed & (keys[None, :] <= positions[:, None])
        score = tl.where(allowed, score, float("-inf"))
    return score


@jit
def keep_best(score, start, best, second, place):
    """Update the best score of each lane, the tile it was in, and the second best."""
    place = tl.where(score > best, start, place)  # not >=: of equal scores in a lane the first tile is kept
    second = tl.maximum(second, tl.minimum(score, best))
    best = tl.maximum(best, score, propagate_nan=tl.PropagateNan.ALL)
    return best, second, place


@jit(do_not_specialize=COUNTS)
def choose(
    q,
    k,
    v,
    out,
    winners,
    thresholds,
    shares,
    lengths,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    out_batch,
    out_head,
    out_row,
    scale,
    tolerance,
    n_heads,
    n_kv_heads,
    n_query,
    n_key,
    n_blocks,
    length_stride,
    CAUSAL: tl.constexpr,
    PADDED: tl.constexpr,
    NEGATED: tl.constexpr,
    TIES: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    program = tl.program_id(0)
    # The last rows of a causal call see the most keys: they go first, so that no long program is left at the end.
    block, row = n_blocks - 1 - program % n_blocks, (program // n_blocks).to(tl.int64)
    batch, head = row // n_heads, row % n_heads
    kv_head = head // (n_heads // n_kv_heads)
    length = row_length(lengths, batch, length_stride, n_key, PADDED)
    first_row, columns = block * ROWS, tl.arange(0, KEYS)
    rows = tl.arange(0, ROWS)
    positions = first_row + rows + (n_key - n_query)
    here = first_row + rows < n_query
    sees = here & (length > 0)
    stop, whole = length, length
    if CAUSAL:
        sees = sees & (positions >= 0)
        stop = tl.minimum(stop, tl.minimum(first_row + ROWS, n_query) + (n_key - n_query))
        whole = tl.minimum(whole, tl.maximum(first_row + (n_key - n_query) + 1, 0))
    whole = whole // KEYS * KEYS  # up to here every row sees every key of a tile
    q += batch * q_batch + head * q_head + first_row.to(tl.int64) * q_row
    k += batch * k_batch + kv_head * k_head
    v += batch * v_batch + kv_head * v_head
    out += batch * out_batch + head * out_head + first_row.to(tl.int64) * out_row
    winners += row * n_query + first_row
    query = load_rows(q, rows, q_row, sees, D, BD).to(DOT)
    if NEGATED:  # a negative scale: then the least product wins, and `scale` is its absolute value
        query = -query

    # Two loops: tiles that every row sees whole need no mask; the last ones do.
    best = tl.full((ROWS, KEYS), float("-inf"), tl.float32)
    second = tl.full((ROWS, KEYS), float("-inf"), tl.float32)
    place = tl.zeros((ROWS, KEYS), tl.int32)
    start = block * 0
    for _ in range(0, whole // KEYS):
        key = load_keys(k, start, k_row, columns, length, False, D, BD).to(DOT)
        score = scores_of(query, key, start, positions, columns, length, CAUSAL, False, PRECISION)
        best, second, place = keep_best(score, start, best, second, place)
        start += KEYS
    for _ in range(0, tl.cdiv(stop - whole, KEYS)):
        key = load_keys(k, start, k_row, columns, length, True, D, BD).to(DOT)
        score = scores_of(query, key, start, positions, columns, length, CAUSAL, True, PRECISION)
        best, second, place = keep_best(score, start, best, second, place)
        start += KEYS

    highest = tl.max(best, 1)
    # Ties are told after the scale, as the reference does: the tolerance is relative to scaled scores.
    highest = tl.where(sees, highest, 0.0) * scale
    threshold = highest - tolerance * tl.maximum(tl.abs(highest), 1.0)
    nothing = float("-inf")
    tied = (best > nothing) & (best * scale >= threshold[:, None])
    tied_too = (second > nothing) & (second * scale >= threshold[:, None])
    n_tied = tl.sum(tied.to(tl.int32), 1) + tl.sum(tied_too.to(tl.int32), 1)
    winner = tl.min(tl.where(tied, place + columns[None, :], NOWHERE), 1)
    unknown = sees & (tl.max((best != best).to(tl.int32), 1) > 0)  # noqa: PLR0124 - NaN: there is no maximum
    sees = sees & (n_tied > 0) & (unknown == 0)
    ambiguous = tl.max(tl.where(sees & (n_tied > 1), 1, 0), 0)
    share = tl.full((ROWS,), 1.0, tl.float32)
    if TIES == "average":
        amount = load_rows(v, winner.to(tl.int64), v_row, sees, DV, BV).to(tl.float32)

    if ambiguous > 0:  # a second pass over the keys, for this block of rows only
        if TIES == "average":
            amount = tl.zeros((ROWS, BV), tl.float32)
            count = tl.zeros((ROWS,), tl.float32)
        else:
            found = tl.full((ROWS, KEYS), -1 if TIES == "last" else NOWHERE, tl.int32)
        start = block * 0
        for _ in range(0, tl.cdiv(stop, KEYS)):
            key = load_keys(k, start, k_row, columns, length, True, D, BD).to(DOT)
            score = scores_of(query, key, start, positions, columns, length, CAUSAL, True, PRECISION)
            tied = (score > nothing) & (score * scale >= threshold[:, None])
            if TIES == "average":
                value = load_rows(v + start.to(tl.int64) * v_row, columns, v_row, start + columns < length, DV, BV).to(
                    DOT
                )
                amount = tl.dot(tied.to(DOT), value, amount, input_precision=PRECISION)
                count += tl.sum(tied.to(tl.float32), 1)
            elif TIES == "last":
                found = tl.maximum(found, tl.where(tied, start + columns[None, :], -1))
            else:
                found = tl.minimum(found, tl.where(tied, start + columns[None, :], NOWHERE))
            start += KEYS
        if TIES == "average":
            share = 1.0 / tl.maximum(count, 1.0)
            amount = amount * share[:, None]
        elif TIES == "last":
            winner = tl.max(found, 1)
        else:
            winner = tl.min(found, 1)

    if TIES == "average":
        tl.store(thresholds + row * n_query + first_row + rows, threshold, mask=here)
        tl.store(shares + row * n_query + first_row + rows, tl.where(sees, share, 0.0), mask=here)
        amount = tl.where(sees[:, None], amount, 0.0)
    else:
        amount = load_rows(v, winner.to(tl.int64), v_row, sees, DV, BV)
    amount = tl.where(unknown[:, None], float("nan"), amount.to(tl.float32))
    tl.store(winners + rows, tl.where(sees, winner, -1), mask=here)
    store_rows(out, rows, out_row, here, amount, DV, BV)


@jit(do_not_specialize=["n_heads", "n_kv_heads", "n_query", "n_key", "n_blocks"])
def sum_chosen(
    grad,
    dv,
    order,
    starts,
    grad_batch,
    grad_head,
    grad_row,
    dv_batch,
    dv_head,
    dv_row,
    n_heads,
    n_kv_heads,
    n_query,
    n_key,
    n_blocks,
    GROUPED: tl.constexpr,
    DV: tl.constexpr,
    BV: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DOT_GRAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add up, for a tile of keys, the gradients of the rows that chose them.

    `order` has all rows of the batch, sorted by key; those of a key begin at its place in `starts`, which has one more
    place before the keys of each head.
    """
    program = tl.program_id(0)
    block, row = program % n_blocks, (program // n_blocks).to(tl.int64)
    batch, kv_head = row // n_kv_heads, row % n_kv_heads
    first_key, columns = block * KEYS, tl.arange(0, KEYS)
    here = first_key + columns < n_key
    starts += row * (n_key + 1) + 1 + first_key
    begins = tl.load(starts + columns, mask=here, other=0)[:, None]
    ends = tl.load(starts + columns + 1, mask=here, other=0)[:, None]
    first = tl.load(starts)
    last = tl.load(starts + tl.minimum(KEYS, n_key - first_key))
    first_head = kv_head * (n_heads // n_kv_heads)
    first_row = (batch * n_heads + first_head) * n_query
    grad += batch * grad_batch + first_head * grad_head
    total = tl.zeros((KEYS, BV), tl.float32)
    for start in range(first, last, ROWS):
        places = start + tl.arange(0, ROWS)
        there = places < last
        # Counted from the first row of these heads, in 32 bits: a division of 64 bits takes a hundred instructions.
        chosen_by = (tl.load(order + places, mask=there, other=0) - first_row).to(tl.int32)
        at = chosen_by.to(tl.int64) * grad_row  # an offset may pass 2^31
        if GROUPED:
            at = (chosen_by // n_query).to(tl.int64) * grad_head + (chosen_by % n_query).to(tl.int64) * grad_row
        mask = there[:, None] & (tl.arange(0, BV) < DV)[None, :]
        upstream = tl.load(grad + at[:, None] + tl.arange(0, BV)[None, :], mask=mask, other=0.0)
        weight = (places[None, :] >= begins) & (places[None, :] < ends)
        total = tl.dot(weight.to(DOT_GRAD), upstream.to(DOT_GRAD), total, input_precision=PRECISION)
    dv += batch * dv_batch + kv_head * dv_head + first_key.to(tl.int64) * dv_row
    store_rows(dv, columns, dv_row, here, total, DV, BV)


@jit(do_not_specialize=COUNTS)
def grad_value(
    q,
    k,
    grad,
    dv,
    winners,
    thresholds,
    shares,
    lengths,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    grad_batch,
    grad_head,
    grad_row,
    dv_batch,
    dv_head,
    dv_row,
    scale,
    n_heads,
    n_kv_heads,
    n_query,
    n_key,
    n_blocks,
    length_stride,
    CAUSAL: tl.constexpr,
    PADDED: tl.constexpr,
    NEGATED: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DOT: tl.constexpr,
    DOT_GRAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    program = tl.program_id(0)
    block, row = program % n_blocks, (program // n_blocks).to(tl.int64)  # the first keys are seen the most
    batch, kv_head = row // n_kv_heads, row % n_kv_heads
    group = n_heads // n_kv_heads
    length = row_length(lengths, batch, length_stride, n_key, PADDED)
    first_key, columns, rows = block * KEYS, tl.arange(0, KEYS), tl.arange(0, ROWS)
    keys = first_key + columns
    here = keys < n_key
    k += batch * k_batch + kv_head * k_head + first_key.to(tl.int64) * k_row
    key = load_rows(k, columns, k_row, keys < length, D, BD).to(DOT)
    total = tl.zeros((KEYS, BV), tl.float32)
    begin = block * 0
    if CAUSAL:  # the first row that sees a key of this block
        begin = tl.maximum(first_key - (n_key - n_query), 0) // ROWS * ROWS
    steps = tl.cdiv(n_query - begin, ROWS)
    if PADDED:  # a block that is all padding was chosen by no row
        steps = tl.where(first_key < length, steps, 0)
    for step in range(0, group * steps):
        head = kv_head * group + step // steps
        start = begin + step % steps * ROWS
        there = start + rows < n_query
        offset = (batch * n_heads + head) * n_query + start
        base = grad + batch * grad_batch + head * grad_head + start.to(tl.int64) * grad_row
        winner = tl.load(winners + offset + rows, mask=there, other=-1)
        upstream = load_rows(base, rows, grad_row, winner >= 0, DV, BV)
        base = q + batch * q_batch + head * q_head + start.to(tl.int64) * q_row
        query = load_rows(base, rows, q_row, winner >= 0, D, BD).to(DOT)
        if NEGATED:
            query = -query
        positions = start + rows + (n_key - n_query)
        score = scores_of(query, key, first_key, positions, columns, length, CAUSAL, True, PRECISION)
        threshold = tl.load(thresholds + offset + rows, mask=there, other=0.0)
        share = tl.load(shares + offset + rows, mask=there, other=0.0)
        chosen = (score > float("-inf")) & (score * scale >= threshold[:, None]) & (winner >= 0)[:, None]
        upstream = upstream.to(tl.float32) * share[:, None]
        weight = tl.trans(chosen.to(DOT_GRAD))
        total = tl.dot(weight, upstream.to(DOT_GRAD), total, input_precision=PRECISION)
    dv += batch * dv_batch + kv_head * dv_head + first_key.to(tl.int64) * dv_row
    store_rows(dv, columns, dv_row, here, total, DV, BV)
