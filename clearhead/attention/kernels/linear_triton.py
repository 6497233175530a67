"""Triton code of linear attention, forward; `linear_gpu.py` launches it, and works without Triton.

The sequence is cut into *segments* of a few hundred positions, and a segment into *chunks* that fit a matrix product.
One program walks through one segment, chunk by chunk, and carries the state S = Σ φ(k) vᵀ and z = Σ φ(k) in float32
registers. The state at the start of each segment is the sum over the segments before it, which `sum_keys` writes:

    sum_keys      each segment's Σ φ(k) vᵀ and Σ φ(k)
    scan          exclusive prefix sums of those, forwards or backwards (only where there are many segments)
    attend        context = (tril(φ(q) φ(k)ᵀ) v + φ(q) S) / (row sums + φ(q) z), and 1 / denominator for gradients

Queries and keys are aligned at their ends: `slot` counts positions so that the last query and the last key share the
last slot. Rows outside a tensor, padding, and queries that see no key are loaded as zeros, so that NaN or Inf there
reaches nothing. Without CAUSAL the same programs run without the part inside a chunk.
The backward pass is `linear_backward_triton.py`.
"""

import triton.language as tl

from clearhead.compiling import jit

COUNTS = [
    "n_heads",
    "n_kv_heads",
    "n_query",
    "n_key",
    "n_slots",
    "first_segment",
    "n_segments",
    "n_sums",
    "length_stride",
]
"""Numbers that change from call to call: Triton must not compile again when one of them is 1 or a multiple of 16."""


@jit
def narrow(x, DOT: tl.constexpr):
    """Return float32 numbers in the type of a product's factors.

    Two at a time: Triton rounds to bfloat16 one by one, by an instruction of a quarter of the rate, and a third of the
    time went there.
    """
    if DOT == tl.bfloat16:  # noqa: SIM300 - the capitals are Triton's
        rounded = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.bfloat16, is_pure=False, pack=2
        )
    else:
        rounded = x.to(DOT)
    return rounded


@jit
def exponential(x, DOT: tl.constexpr):
    """Return exp(x) in float32; for bfloat16 in one instruction, to which results below 1e-38 are 0."""
    return tl.exp2(x * 1.4426950408889634) if DOT == tl.bfloat16 else tl.exp(x)  # noqa: SIM300 - Triton's capitals


@jit
def feature_map(x, MAP: tl.constexpr, DOT: tl.constexpr):
    """Return φ(x) in the type of a product's factors."""
    x = x.to(tl.float32)
    if MAP == "elu":
        below = tl.minimum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        x = tl.maximum(x, 0.0) + exponential(below, DOT)
    if MAP == "relu":
        x = tl.maximum(x, 0.0)
    return narrow(x, DOT)


@jit
def times_slope(gradient, features, MAP: tl.constexpr):
    """Return the gradient times φ'(x), told by φ(x) in float32: for elu it is exp(x), at most 1."""
    if MAP == "elu":
        gradient = gradient * tl.minimum(features, 1.0)
    if MAP == "relu":
        gradient = tl.where(features > 0, gradient, 0.0)
    return gradient


@jit
def load_or(nothing, base, rows, stride, valid, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Load vectors; `nothing` in rows that are not valid and in columns past WIDTH."""
    columns = tl.arange(0, BLOCK)
    mask = valid[:, None]
    if WIDTH < BLOCK:
        mask = mask & (columns < WIDTH)[None, :]
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=mask, other=nothing)


@jit
def load_rows(base, rows, stride, valid, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Load vectors; zeros in rows that are not valid and in columns past WIDTH."""
    return load_or(0.0, base, rows, stride, valid, WIDTH, BLOCK)


@jit
def store_rows(base, rows, stride, valid, vectors, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = valid[:, None]
    if WIDTH < BLOCK:
        mask = mask & (columns < WIDTH)[None, :]
    places = base + rows[:, None] * stride + columns[None, :]
    tl.store(places, vectors.to(base.dtype.element_ty), mask=mask)


@jit
def load_features(
    base, rows, stride, valid, MAP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr
):
    """Load vectors and return φ of them, zeros where there is nothing: φ(0) of elu is 1, but φ(-inf) is 0."""
    if MAP == "elu":
        x = load_or(float("-inf"), base, rows, stride, valid, WIDTH, BLOCK)
    else:
        x = load_rows(base, rows, stride, valid, WIDTH, BLOCK)
    return feature_map(x, MAP, DOT)


@jit
def as_result(features, DOT: tl.constexpr):
    """Return the features in float32, laid out in registers as the results of products are.

    A product with the identity does this exactly. Left to itself the compiler computes the features once more in that
    layout: 10 and 15 % of the instructions of `grad_query` and `grad_key`.
    """
    if DOT == tl.bfloat16:  # noqa: SIM300 - the capitals are Triton's
        n: tl.constexpr = features.shape[1]
        identity = (tl.arange(0, n)[:, None] == tl.arange(0, n)[None, :]).to(DOT)
        wide = tl.dot(features, identity)
    else:
        wide = features.to(tl.float32)
    return wide


@jit
def row_length(lengths, batch, length_stride, n_key, PADDED: tl.constexpr):
    """Return how many keys this batch row has."""
    length = n_key
    if PADDED:
        given = tl.load(lengths + batch * length_stride)
        length = tl.minimum(tl.maximum(given, 0), n_key).to(tl.int32)
    return length


@jit
def rows_inside(places, n, WHOLE: tl.constexpr):
    """Check which of these places there are. If all are (WHOLE), the compiler drops every mask made of this."""
    return tl.full(places.shape, True, tl.int1) if WHOLE else (places >= 0) & (places < n)


@jit
def rows_seeing(here, key_places, length, CAUSAL: tl.constexpr, WHOLE: tl.constexpr):
    """Check which queries see a key."""
    sees = here
    if not WHOLE:
        sees = here & (length > 0)
        if CAUSAL:
            sees = sees & (key_places >= 0)
    return sees


@jit
def add_product(x, state, total, DOT: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr):
    """Return total + x @ state. With SPLIT a float32 state enters as two bfloat16 parts, 16 bits of it in all."""
    high = narrow(state, DOT)
    total = tl.dot(x, high, total, input_precision=PRECISION)
    if SPLIT:
        low = narrow(state - high.to(tl.float32), DOT)
        total = tl.dot(x, low, total, input_precision=PRECISION)
    return total


@jit
def load_state(sums, first, last, BF: tl.constexpr, BV: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Add up the states of the segments from `first` up to `last`."""
    features, columns = tl.arange(0, BF), tl.arange(0, BV)
    if TRANSPOSED:
        places = features[None, :] * BV + columns[:, None]
        total = tl.zeros((BV, BF), tl.float32)
    else:
        places = features[:, None] * BV + columns[None, :]
        total = tl.zeros((BF, BV), tl.float32)
    rest = tl.zeros((BF,), tl.float32)
    base = sums + first.to(tl.int64) * (BF * BV + BF)  # int64: an offset may pass 2^31
    for _ in range(0, last - first):
        total += tl.load(base + places)
        rest += tl.load(base + BF * BV + features)
        base += BF * BV + BF
    return total, rest


@jit
def store_state(base, total, rest, BF: tl.constexpr, BV: tl.constexpr):
    features, columns = tl.arange(0, BF), tl.arange(0, BV)
    tl.store(base + features[:, None] * BV + columns[None, :], total)
    tl.store(base + BF * BV + features, rest)


@jit
def segments_to_add(segment, n_sums, SUMS: tl.constexpr, REVERSE: tl.constexpr):
    """Return which of the sums make the state at the border of this segment."""
    first, last = segment * 0, segment * 0  # zeros of the segment's type: Triton needs one type on every path
    if SUMS == "all":
        last = last + n_sums
    if SUMS == "scanned":
        first, last = segment, segment + 1
    if SUMS == "added":
        if REVERSE:
            first, last = segment + 1, last + n_sums
        else:
            last = segment
    return first, last


@jit(do_not_specialize=COUNTS)
def sum_keys(
    k,
    v,
    sums,
    lengths,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    n_kv_heads,
    n_key,
    n_slots,
    n_segments,
    length_stride,
    PADDED: tl.constexpr,
    MAP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BF: tl.constexpr,
    BV: tl.constexpr,
    CHUNK: tl.constexpr,
    WHOLE: tl.constexpr,
    SEGMENT: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    program = tl.program_id(0)
    segment, row = program % n_segments, (program // n_segments).to(tl.int64)
    batch, head = row // n_kv_heads, row % n_kv_heads
    length = row_length(lengths, batch, length_stride, n_key, PADDED)
    first_key = segment * SEGMENT - (n_slots - n_key)  # below 0 at first, where there are fewer keys than queries
    k += batch * k_batch + head * k_head + first_key.to(tl.int64) * k_row
    v += batch * v_batch + head * v_head + first_key.to(tl.int64) * v_row
    total, rest = tl.zeros((BF, BV), tl.float32), tl.zeros((BF,), tl.float32)
    for start in range(0, tl.minimum(SEGMENT, length - first_key), CHUNK):
        rows = start + tl.arange(0, CHUNK)
        valid = rows_inside(first_key + rows, length, WHOLE)
        features = load_features(k, rows, k_row, valid, MAP, D, BF, DOT)
        value = load_rows(v, rows, v_row, valid, DV, BV).to(DOT)
        total = tl.dot(tl.trans(features), value, total, input_precision=PRECISION)
        # z sums the features as they were rounded for the product, so that numerator and denominator agree.
        rest += tl.sum(features.to(tl.float32), 0)
    store_state(sums + program.to(tl.int64) * (BF * BV + BF), total, rest, BF, BV)


@jit(do_not_specialize=["n_sums"])
def scan(sums, scanned, n_sums, SIZE: tl.constexpr, REVERSE: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """Write at each segment the sum of those before it (after it, if REVERSE), some of the state's numbers a program.

    The numbers are read one segment off, so that nothing is subtracted and nothing cancels.
    """
    program = tl.program_id(0)
    tiles: tl.constexpr = (SIZE + COLUMNS - 1) // COLUMNS
    columns = program % tiles * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < SIZE
    base = (program // tiles).to(tl.int64) * n_sums * SIZE
    carried = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, n_sums, BLOCK):
        here = start + tl.arange(0, BLOCK)
        before = here - 1
        if REVERSE:
            from_segment, to_segment = n_sums - 1 - before, n_sums - 1 - here
        else:
            from_segment, to_segment = before, here
        there = (here < n_sums)[:, None] & inside[None, :]
        places = base + from_segment.to(tl.int64)[:, None] * SIZE + columns[None, :]
        numbers = tl.load(sums + places, mask=there & (before >= 0)[:, None], other=0.0)
        places = base + to_segment.to(tl.int64)[:, None] * SIZE + columns[None, :]
        tl.store(scanned + places, tl.cumsum(numbers, 0) + carried[None, :], mask=there)
        carried += tl.sum(numbers, 0)


@jit(do_not_specialize=COUNTS)
def attend(
    q,
    k,
    v,
    out,
    inverse,
    sums,
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
    n_heads,
    n_kv_heads,
    n_query,
    n_key,
    n_slots,
    first_segment,
    n_segments,
    n_sums,
    length_stride,
    CAUSAL: tl.constexpr,
    PADDED: tl.constexpr,
    NORMALISED: tl.constexpr,
    MAP: tl.constexpr,
    SUMS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BF: tl.constexpr,
    BV: tl.constexpr,
    CHUNK: tl.constexpr,
    WHOLE: tl.constexpr,
    SEGMENT: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
):
    program = tl.program_id(0)
    segment, row = first_segment + program % n_segments, (program // n_segments).to(tl.int64)
    batch, head = row // n_heads, row % n_heads
    kv_head = head // (n_heads // n_kv_heads)
    length = row_length(lengths, batch, length_stride, n_key, PADDED)
    start_slot = segment * SEGMENT
    first_query, first_key = start_slot - (n_slots - n_query), start_slot - (n_slots - n_key)
    q += batch * q_batch + head * q_head + first_query.to(tl.int64) * q_row
    out += batch * out_batch + head * out_head + first_query.to(tl.int64) * out_row
    inverse += row * n_query + first_query
    if CAUSAL:  # otherwise the sums hold every key, and k and v are not read
        k += batch * k_batch + kv_head * k_head + first_key.to(tl.int64) * k_row
        v += batch * v_batch + kv_head * v_head + first_key.to(tl.int64) * v_row
    sums += (batch * n_kv_heads + kv_head) * n_sums * (BF * BV + BF)
    first, last = segments_to_add(segment, n_sums, SUMS, False)
    total, rest = load_state(sums, first, last, BF, BV, False)
    for start in range(0, tl.minimum(SEGMENT, n_slots - start_slot), CHUNK):
        rows = start + tl.arange(0, CHUNK)
        here = rows_inside(first_query + rows, n_query, WHOLE)
        sees = rows_seeing(here, first_key + rows, length, CAUSAL, WHOLE)
        query = load_features(q, rows, q_row, sees, MAP, D, BF, DOT)
        # Keys of earlier chunks come from the state (S, z); those of this chunk are scored one by one.
        amount = tl.zeros((CHUNK, BV), tl.float32)
        denominator = tl.sum(query.to(tl.float32) * rest[None, :], 1)
        if CAUSAL:
            valid = rows_inside(first_key + rows, length, WHOLE)
            key = load_features(k, rows, k_row, valid, MAP, D, BF, DOT)
            value = load_rows(v, rows, v_row, valid, DV, BV).to(DOT)
            score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
            # The denominator adds up the weights as they are rounded for the product: a row's weights sum to 1.
            score = narrow(tl.where(rows[:, None] >= rows[None, :], score, 0.0), DOT)
            amount = tl.dot(score, value, amount, input_precision=PRECISION)
            denominator += tl.sum(score.to(tl.float32), 1)
        amount = add_product(query, total, amount, DOT, PRECISION, SPLIT)
        if CAUSAL:  # only now, so that no query met a key of its own chunk in the state
            total = tl.dot(tl.trans(key), value, total, input_precision=PRECISION)
            rest += tl.sum(key.to(tl.float32), 0)
        if NORMALISED:
            nothing = denominator == 0  # a row that sees no key, or whose features are all 0: its context is 0
            factor = tl.where(nothing, 0.0, 1.0 / tl.where(nothing, 1.0, denominator))
            amount = amount * factor[:, None]
            tl.store(inverse + rows, factor, mask=here)
        store_rows(out, rows, out_row, here, amount, DV, BV)
