"""Triton code of attention with one query a head; `one_query_gpu.py` launches it, and works without Triton.

Softmax needs the largest score first. A program goes through its keys once, with the largest so far: what was summed
up before is multiplied by exp(largest before - largest now).

In a decoding step (`attend_step`) one program has the heads of one row that share keys and values, so that these are
read once, or a share of their columns: where rows and heads are few, SPLITS programs read the columns side by side, and
the last one to come to its end puts their contexts together. Each program turns its queries and the new key by their
position and norms them itself, which would take as many kernels as there are operations.
"""

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

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


@jit
def turn_heads(
    vectors,
    offsets,
    real,
    gamma,
    cos,
    sin,
    EPSILON: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TURNED: tl.constexpr,
    HALVES: tl.constexpr,
    NORMED: tl.constexpr,
):
    """Return the vectors of some heads after RMS norm and rotation, rounded after each as the model's steps are."""
    parts = tl.arange(0, WIDTH)
    kind = vectors.dtype.element_ty
    inside = real[:, None] & (parts < D)[None, :]
    x = tl.load(vectors + offsets[:, None] + parts[None, :], mask=inside, other=0.0)
    factor = 1.0
    if NORMED:
        wide = x.to(tl.float32)
        factor = (1.0 / tl.sqrt(tl.sum(wide * wide, 1) / D + EPSILON))[:, None]
        x = (wide * factor * tl.load(gamma + parts, mask=parts < D, other=0.0).to(tl.float32)[None, :]).to(kind)
    if TURNED > 0:
        turns = parts < TURNED
        behind = parts >= TURNED // 2 if HALVES else parts % 2 == 1
        apart = TURNED // 2 if HALVES else 1
        partner = tl.where(behind, parts - apart, parts + apart)
        pair = tl.minimum(parts, partner) if HALVES else parts // 2
        y = tl.load(vectors + offsets[:, None] + partner[None, :], mask=real[:, None] & turns[None, :], other=0.0)
        if NORMED:
            learned = tl.load(gamma + partner, mask=turns, other=0.0).to(tl.float32)
            y = (y.to(tl.float32) * factor * learned[None, :]).to(kind)
        c = tl.load(cos + pair, mask=turns, other=1.0)
        s = tl.load(sin + pair, mask=turns, other=0.0) * tl.where(behind, 1.0, -1.0)
        x = (x.to(tl.float32) * c[None, :] + y.to(tl.float32) * s[None, :]).to(kind)
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
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
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
    """Write the new key and value of one row into column `last`, and the contexts of GROUP heads over first … last.

    `vectors` has query, key and value of every head side by side. The new key is seen as it is there, not in the cache,
    where another program may not have written it yet. The matrix units take at least 16 queries: QUERIES are GROUP and
    some that are 0.
    """
    row, shared, split = (tl.program_id(0) // KV_HEADS).to(tl.int64), tl.program_id(0) % KV_HEADS, tl.program_id(1)
    parts, query = tl.arange(0, WIDTH), tl.arange(0, QUERIES)
    inside, real = parts < D, query < GROUP
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
        vectors += row * ((GROUP + 2) * KV_HEADS * D)
        cos += (end - begin) * (TURNED // 2)
        sin += (end - begin) * (TURNED // 2)
        heads = (shared * GROUP + query) * D
        q = turn_heads(vectors, heads, real, query_gamma, cos, sin, QUERY_EPSILON, D, WIDTH, TURNED, HALVES, NORMED)
        keys += row * key_row + shared * key_head
        values += row * value_row + shared * value_head
        largest = tl.full((QUERIES,), float("-inf"), tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        amount = tl.zeros((QUERIES, WIDTH), tl.float32)
        if split == 0:
            only = tl.arange(0, 1)
            place = (GROUP * KV_HEADS + shared + only) * D
            key = turn_heads(
                vectors, place, only == 0, key_gamma, cos, sin, KEY_EPSILON, D, WIDTH, TURNED, HALVES, NORMED
            )
            value = tl.load(vectors + place + KV_HEADS * D + parts, mask=inside, other=0.0)
            tl.store(keys + end * key_column + parts[None, :], key, mask=inside[None, :])
            tl.store(values + end * value_column + parts, value, mask=inside)
            largest = tl.sum(q.to(tl.float32) * key.to(tl.float32), 1) * SCALE
            total += 1.0
            amount += value.to(tl.float32)[None, :]
        stop = tl.minimum(end, (split + 1) * SHARE)
        for start in range(tl.maximum(begin, split * SHARE), stop, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            there = columns < stop
            mask = there[:, None] & inside[None, :]
            old_keys = tl.load(keys + columns[:, None] * key_column + parts[None, :], mask=mask, other=0.0)
            old_values = tl.load(values + columns[:, None] * value_column + parts[None, :], mask=mask, other=0.0)
            score = tl.dot(q, tl.trans(old_keys), input_precision="ieee") * SCALE
            score = tl.where(there[None, :], score, float("-inf"))
            before, largest = largest, tl.maximum(largest, tl.max(score, 1))
            weight, fade = tl.exp(score - largest[:, None]), tl.exp(before - largest)
            total = total * fade + tl.sum(weight, 1)
            seen = tl.dot(weight.to(old_values.dtype), old_values, input_precision="ieee")
            amount = amount * fade[:, None] + seen
        place = tl.program_id(0).to(tl.int64)
        done = True
        if SPLITS > 1:
            size: tl.constexpr = QUERIES * (WIDTH + 2)  # pyright: ignore[reportAssignmentType]
            sums = query[:, None] * WIDTH + parts[None, :]
            mine = partial + (place * SPLITS + split) * size
            tl.store(mine + sums, amount)
            tl.store(mine + QUERIES * WIDTH + query, largest)
            tl.store(mine + QUERIES * (WIDTH + 1) + query, total)
            tl.debug_barrier()  # every thread's part is written before one of them says so
            done = tl.atomic_add(counters + place, 1) == sharing - 1
            if done:
                tl.store(counters + place, 0)
                largest = tl.full((QUERIES,), float("-inf"), tl.float32)
                total = tl.zeros((QUERIES,), tl.float32)
                amount = tl.zeros((QUERIES, WIDTH), tl.float32)
                for other in range(sharing):
                    theirs = partial + (place * SPLITS + other) * size
                    top = tl.load(theirs + QUERIES * WIDTH + query, cache_modifier=".cg")
                    before, largest = largest, tl.maximum(largest, top)
                    origin = tl.where(largest == float("-inf"), 0.0, largest)
                    fade, factor = tl.exp(before - origin), tl.exp(top - origin)
                    more = tl.load(theirs + QUERIES * (WIDTH + 1) + query, cache_modifier=".cg")
                    total = total * fade + factor * more
                    amount = amount * fade[:, None] + factor[:, None] * tl.load(theirs + sums, cache_modifier=".cg")
        if done:
            out = context + row * (GROUP * KV_HEADS * D) + heads[:, None] + parts[None, :]
            mean = amount / total[:, None]
            tl.store(out, mean.to(context.dtype.element_ty), mask=real[:, None] & inside[None, :])
