"""Triton code of linear attention, forward and backward; `linear_gpu.py` launches it, and works without Triton.

The sequence is cut into *segments* of a few hundred positions, and a segment into *chunks* that fit a matrix product.
One program walks through one segment, chunk by chunk, and carries the state S = Σ φ(k) vᵀ and z = Σ φ(k) in float32
registers. The state at the start of each segment is the sum over the segments before it, which `sum_keys` writes:

    sum_keys      each segment's Σ φ(k) vᵀ and Σ φ(k)
    scan          exclusive prefix sums of those, forwards or backwards (only where there are many segments)
    attend        context = (tril(φ(q) φ(k)ᵀ) v + φ(q) S) / (row sums + φ(q) z), and 1 / denominator for the way back

The way back, with p = φ(q) / denominator, g the upstream gradient and d = -g · context:

    grad_query    d, and dφ(q) = (tril(g vᵀ + d) φ(k) + g Sᵀ + d z) / denominator, walking forwards
    sum_queries   each segment's R = Σ pᵀ g and w = Σ d p
    scan          backwards
    grad_key      dφ(k) = tril(g vᵀ + d)ᵀ p + v Rᵀ + w and dv = tril(p φ(k)ᵀ)ᵀ g + φ(k) R, walking backwards

g·v and d nearly cancel, so care is taken of both. The denominator goes into φ(q) and not into g: g then enters its
products unrounded, and what is rounded (p) is the same factor of both. And d is added up anew in float32: the context
that went out was rounded, and to use it makes dq three times less exact in bfloat16.

Queries and keys are aligned at their ends: `slot` counts positions so that the last query and the last key share the
last slot. Rows outside a tensor, padding, and queries that see no key are loaded as zeros, so that NaN or Inf there
reaches nothing. Without CAUSAL the same programs run without the part inside a chunk.
"""

import inspect

import triton
import triton.language as tl

__all__ = ["attend", "grad_key", "grad_query", "jit", "scan", "sum_keys", "sum_queries"]

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
"""Numbers that change from call to call: Triton shall not compile anew when one of them is 1 or a multiple of 16."""


def jit(**options):
    """Compile a function by Triton, without the check of shapes that tests put around every function."""
    return lambda function: triton.jit(inspect.unwrap(function), **options)


@jit()
def feature_map(x, MAP: tl.constexpr):
    """Return φ(x) in float32."""
    x = x.to(tl.float32)
    if MAP == "elu":
        x = tl.where(x > 0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))
    if MAP == "relu":
        x = tl.maximum(x, 0.0)
    return x


@jit()
def times_slope(gradient, x, MAP: tl.constexpr):
    """Return the gradient times φ'(x)."""
    x = x.to(tl.float32)
    if MAP == "elu":
        gradient = gradient * tl.exp(tl.minimum(x, 0.0))
    if MAP == "relu":
        gradient = tl.where(x > 0, gradient, 0.0)
    return gradient


@jit()
def load_rows(base, rows, stride, valid, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Load vectors; zeros in rows that are not valid and in columns past WIDTH."""
    columns = tl.arange(0, BLOCK)
    mask = valid[:, None]
    if WIDTH < BLOCK:
        mask = mask & (columns < WIDTH)[None, :]
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@jit()
def store_rows(base, rows, stride, valid, vectors, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = valid[:, None]
    if WIDTH < BLOCK:
        mask = mask & (columns < WIDTH)[None, :]
    places = base + rows[:, None] * stride + columns[None, :]
    tl.store(places, vectors.to(base.dtype.element_ty), mask=mask)


@jit()
def load_features(x, valid, MAP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Return φ(x) in float32, zeros where there is nothing: φ(0) need not be 0."""
    features = feature_map(x, MAP)
    if MAP == "elu":
        mask = valid[:, None]
        if WIDTH < BLOCK:
            mask = mask & (tl.arange(0, BLOCK) < WIDTH)[None, :]
        features = tl.where(mask, features, 0.0)
    return features


@jit()
def row_length(lengths, batch, length_stride, n_key, PADDED: tl.constexpr):
    """Return how many keys this batch row has."""
    length = n_key
    if PADDED:
        given = tl.load(lengths + batch * length_stride)
        length = tl.minimum(tl.maximum(given, 0), n_key).to(tl.int32)
    return length


@jit()
def add_product(x, state, total, DOT: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr):
    """Return total + x @ state. With SPLIT a float32 state enters as two bfloat16 parts, 16 bits of it in all."""
    high = state.to(DOT)
    total = tl.dot(x, high, total, input_precision=PRECISION)
    if SPLIT:
        low = (state - high.to(tl.float32)).to(DOT)
        total = tl.dot(x, low, total, input_precision=PRECISION)
    return total


@jit()
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
    base = sums + first.to(tl.int64) * (BF * BV + BF)
    for _ in range(0, last - first):
        total += tl.load(base + places)
        rest += tl.load(base + BF * BV + features)
        base += BF * BV + BF
    return total, rest


@jit()
def store_state(base, total, rest, BF: tl.constexpr, BV: tl.constexpr):
    features, columns = tl.arange(0, BF), tl.arange(0, BV)
    tl.store(base + features[:, None] * BV + columns[None, :], total)
    tl.store(base + BF * BV + features, rest)


@jit()
def segments_to_add(segment, n_sums, SUMS: tl.constexpr, REVERSE: tl.constexpr):
    """Return which of the sums make the state at the border of this segment."""
    first, last = segment * 0, segment * 0
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
    SEGMENT: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    program = tl.program_id(0)
    segment, row = program % n_segments, (program // n_segments).to(tl.int64)
    batch, head = row // n_kv_heads, row % n_kv_heads
    length = row_length(lengths, batch, length_stride, n_key, PADDED)
    first_key = segment * SEGMENT - (n_slots - n_key)
    k += batch * k_batch + head * k_head + first_key.to(tl.int64) * k_row
    v += batch * v_batch + head * v_head + first_key.to(tl.int64) * v_row
    total, rest = tl.zeros((BF, BV), tl.float32), tl.zeros((BF,), tl.float32)
    for start in range(0, tl.minimum(SEGMENT, length - first_key), CHUNK):
        rows = start + tl.arange(0, CHUNK)
        valid = (first_key + rows >= 0) & (first_key + rows < length)
        key = load_rows(k, rows, k_row, valid, D, BF)
        value = load_rows(v, rows, v_row, valid, DV, BV).to(DOT)
        features = load_features(key, valid, MAP, D, BF).to(DOT)
        total = tl.dot(tl.trans(features), value, total, input_precision=PRECISION)
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
    if CAUSAL:
        k += batch * k_batch + kv_head * k_head + first_key.to(tl.int64) * k_row
        v += batch * v_batch + kv_head * v_head + first_key.to(tl.int64) * v_row
    sums += (batch * n_kv_heads + kv_head) * n_sums * (BF * BV + BF)
    first, last = segments_to_add(segment, n_sums, SUMS, False)
    total, rest = load_state(sums, first, last, BF, BV, False)
    for start in range(0, tl.minimum(SEGMENT, n_slots - start_slot), CHUNK):
        rows = start + tl.arange(0, CHUNK)
        here = (first_query + rows >= 0) & (first_query + rows < n_query)
        sees = here & (length > 0)
        if CAUSAL:
            sees = sees & (first_key + rows >= 0)
        query = load_features(load_rows(q, rows, q_row, sees, D, BF), sees, MAP, D, BF).to(DOT)
        amount = tl.zeros((CHUNK, BV), tl.float32)
        denominator = tl.sum(query.to(tl.float32) * rest[None, :], 1)
        if CAUSAL:
            valid = (first_key + rows >= 0) & (first_key + rows < length)
            key = load_features(load_rows(k, rows, k_row, valid, D, BF), valid, MAP, D, BF).to(DOT)
            value = load_rows(v, rows, v_row, valid, DV, BV).to(DOT)
            score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
            # The denominator adds up the weights as they are rounded for the product: a row's weights sum to 1.
            score = tl.where(rows[:, None] >= rows[None, :], score, 0.0).to(DOT)
            amount = tl.dot(score, value, amount, input_precision=PRECISION)
            denominator += tl.sum(score.to(tl.float32), 1)
        amount = add_product(query, total, amount, DOT, PRECISION, SPLIT)
        if CAUSAL:
            total = tl.dot(tl.trans(key), value, total, input_precision=PRECISION)
            rest += tl.sum(key.to(tl.float32), 0)
        if NORMALISED:
            nothing = denominator == 0
            factor = tl.where(nothing, 0.0, 1.0 / tl.where(nothing, 1.0, denominator))
            amount = amount * factor[:, None]
            tl.store(inverse + rows, factor, mask=here)
        store_rows(out, rows, out_row, here, amount, DV, BV)


@jit(do_not_specialize=COUNTS)
def sum_queries(
    q,
    grad,
    inverse,
    delta,
    sums,
    lengths,
    q_batch,
    q_head,
    q_row,
    grad_batch,
    grad_head,
    grad_row,
    n_heads,
    n_query,
    n_key,
    n_slots,
    n_segments,
    length_stride,
    CAUSAL: tl.constexpr,
    PADDED: tl.constexpr,
    NORMALISED: tl.constexpr,
    MAP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BF: tl.constexpr,
    BV: tl.constexpr,
    CHUNK: tl.constexpr,
    SEGMENT: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    program = tl.program_id(0)
    segment, row = program % n_segments, (program // n_segments).to(tl.int64)
    batch, head = row // n_heads, row % n_heads
    length = row_length(lengths, batch, length_stride, n_key, PADDED)
    start_slot = segment * SEGMENT
    first_query, first_key = start_slot - (n_slots - n_query), start_slot - (n_slots - n_key)
    q += batch * q_batch + head * q_head + first_query.to(tl.int64) * q_row
    grad += batch * grad_batch + head * grad_head + first_query.to(tl.int64) * grad_row
    inverse += row * n_query + first_query
    delta += row * n_query + first_query
    total, rest = tl.zeros((BF, BV), tl.float32), tl.zeros((BF,), tl.float32)
    for start in range(0, tl.minimum(SEGMENT, n_slots - start_slot), CHUNK):
        rows = start + tl.arange(0, CHUNK)
        here = (first_query + rows >= 0) & (first_query + rows < n_query)
        sees = here & (length > 0)
        if CAUSAL:
            sees = sees & (first_key + rows >= 0)
        features = load_features(load_rows(q, rows, q_row, sees, D, BF), sees, MAP, D, BF)
        upstream = load_rows(grad, rows, grad_row, sees, DV, BV)
        if NORMALISED:
            features = (features * tl.load(inverse + rows, mask=sees, other=0.0)[:, None]).to(DOT)
            change = tl.load(delta + rows, mask=sees, other=0.0)
            rest += tl.sum(features.to(tl.float32) * change[:, None], 0)
        else:
            features = features.to(DOT)
        total = tl.dot(tl.trans(features), upstream.to(DOT), total, input_precision=PRECISION)
    store_state(sums + program.to(tl.int64) * (BF * BV + BF), total, rest, BF, BV)


@jit(do_not_specialize=COUNTS)
def grad_query(
    q,
    k,
    v,
    grad,
    inverse,
    delta,
    sums,
    dq,
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
    grad_batch,
    grad_head,
    grad_row,
    dq_batch,
    dq_head,
    dq_row,
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
    dq += batch * dq_batch + head * dq_head + first_query.to(tl.int64) * dq_row
    grad += batch * grad_batch + head * grad_head + first_query.to(tl.int64) * grad_row
    inverse += row * n_query + first_query
    delta += row * n_query + first_query
    if CAUSAL:
        k += batch * k_batch + kv_head * k_head + first_key.to(tl.int64) * k_row
        v += batch * v_batch + kv_head * v_head + first_key.to(tl.int64) * v_row
    sums += (batch * n_kv_heads + kv_head) * n_sums * (BF * BV + BF)
    first, last = segments_to_add(segment, n_sums, SUMS, False)
    total, rest = load_state(sums, first, last, BF, BV, True)
    for start in range(0, tl.minimum(SEGMENT, n_slots - start_slot), CHUNK):
        rows = start + tl.arange(0, CHUNK)
        here = (first_query + rows >= 0) & (first_query + rows < n_query)
        sees = here & (length > 0)
        if CAUSAL:
            sees = sees & (first_key + rows >= 0)
        query = load_rows(q, rows, q_row, sees, D, BF)
        upstream = load_rows(grad, rows, grad_row, sees, DV, BV).to(DOT)
        slope = add_product(upstream, total, tl.zeros((CHUNK, BF), tl.float32), DOT, PRECISION, SPLIT)
        causal = rows[:, None] >= rows[None, :]
        if NORMALISED:
            features = load_features(query, sees, MAP, D, BF).to(DOT)
            agreement = tl.sum(features.to(tl.float32) * slope, 1)
        if CAUSAL:
            valid = (first_key + rows >= 0) & (first_key + rows < length)
            key = load_features(load_rows(k, rows, k_row, valid, D, BF), valid, MAP, D, BF).to(DOT)
            value = load_rows(v, rows, v_row, valid, DV, BV).to(DOT)
            score = tl.dot(upstream, tl.trans(value), input_precision=PRECISION)
            if NORMALISED:
                weight = tl.dot(features, tl.trans(key), input_precision=PRECISION)
                agreement += tl.sum(tl.where(causal, weight * score, 0.0), 1)
        if NORMALISED:
            factor = tl.load(inverse + rows, mask=sees, other=0.0)
            change = -agreement * factor
            tl.store(delta + rows, change, mask=here)
            slope += change[:, None] * rest[None, :]
        if CAUSAL:
            if NORMALISED:
                score += change[:, None]
            slope = tl.dot(tl.where(causal, score, 0.0).to(DOT), key, slope, input_precision=PRECISION)
            total = tl.dot(tl.trans(value), key, total, input_precision=PRECISION)
            rest += tl.sum(key.to(tl.float32), 0)
        if NORMALISED:
            slope = slope * factor[:, None]
        slope = tl.where(sees[:, None], times_slope(slope, query, MAP), 0.0)
        store_rows(dq, rows, dq_row, here, slope, D, BF)


@jit(do_not_specialize=COUNTS)
def grad_key(
    q,
    k,
    v,
    grad,
    inverse,
    delta,
    sums,
    dk,
    dv,
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
    grad_batch,
    grad_head,
    grad_row,
    dk_batch,
    dk_head,
    dk_row,
    dv_batch,
    dv_head,
    dv_row,
    n_heads,
    n_kv_heads,
    n_query,
    n_key,
    n_slots,
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
    SEGMENT: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
):
    program = tl.program_id(0)
    segment, row = program % n_segments, (program // n_segments).to(tl.int64)
    batch, head = row // n_heads, row % n_heads
    kv_head = head // (n_heads // n_kv_heads)
    length = row_length(lengths, batch, length_stride, n_key, PADDED)
    start_slot = segment * SEGMENT
    first_query, first_key = start_slot - (n_slots - n_query), start_slot - (n_slots - n_key)
    k += batch * k_batch + kv_head * k_head + first_key.to(tl.int64) * k_row
    v += batch * v_batch + kv_head * v_head + first_key.to(tl.int64) * v_row
    dk += batch * dk_batch + head * dk_head + first_key.to(tl.int64) * dk_row
    dv += batch * dv_batch + head * dv_head + first_key.to(tl.int64) * dv_row
    if CAUSAL:
        q += batch * q_batch + head * q_head + first_query.to(tl.int64) * q_row
        grad += batch * grad_batch + head * grad_head + first_query.to(tl.int64) * grad_row
        inverse += row * n_query + first_query
        delta += row * n_query + first_query
    sums += row * n_sums * (BF * BV + BF)
    first, last = segments_to_add(segment, n_sums, SUMS, True)
    total, rest = load_state(sums, first, last, BF, BV, False)
    n_chunks = tl.cdiv(tl.minimum(SEGMENT, n_slots - start_slot), CHUNK)
    for step in range(0, n_chunks):
        rows = (n_chunks - 1 - step) * CHUNK + tl.arange(0, CHUNK)
        here = (first_key + rows >= 0) & (first_key + rows < n_key)
        valid = here & (first_key + rows < length)
        key = load_rows(k, rows, k_row, valid, D, BF)
        value = load_rows(v, rows, v_row, valid, DV, BV).to(DOT)
        features = load_features(key, valid, MAP, D, BF).to(DOT)
        slope = tl.zeros((CHUNK, BF), tl.float32) + rest[None, :]
        amount = tl.zeros((CHUNK, BV), tl.float32)
        if CAUSAL:
            sees = (first_query + rows >= 0) & (first_query + rows < n_query) & (length > 0) & (first_key + rows >= 0)
            query = load_features(load_rows(q, rows, q_row, sees, D, BF), sees, MAP, D, BF)
            upstream = load_rows(grad, rows, grad_row, sees, DV, BV).to(DOT)
            change = tl.zeros((CHUNK,), tl.float32)
            if NORMALISED:
                change = tl.load(delta + rows, mask=sees, other=0.0)
                query = query * tl.load(inverse + rows, mask=sees, other=0.0)[:, None]
            query = query.to(DOT)
            after = rows[:, None] <= rows[None, :]
            weight = tl.dot(features, tl.trans(query), input_precision=PRECISION)
            amount = tl.dot(tl.where(after, weight, 0.0).to(DOT), upstream, amount, input_precision=PRECISION)
            score = tl.dot(value, tl.trans(upstream), input_precision=PRECISION) + change[None, :]
            slope = tl.dot(tl.where(after, score, 0.0).to(DOT), query, slope, input_precision=PRECISION)
        amount = add_product(features, total, amount, DOT, PRECISION, SPLIT)
        slope = add_product(value, tl.trans(total), slope, DOT, PRECISION, SPLIT)
        if CAUSAL:
            total = tl.dot(tl.trans(query), upstream, total, input_precision=PRECISION)
            if NORMALISED:
                rest += tl.sum(query.to(tl.float32) * change[:, None], 0)
        slope = tl.where(valid[:, None], times_slope(slope, key, MAP), 0.0)
        store_rows(dk, rows, dk_row, here, slope, D, BF)
        store_rows(dv, rows, dv_row, here, amount, DV, BV)
