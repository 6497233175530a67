"""Triton code of linear attention, backward: the gradients of query, key and value. See `linear_triton.py` first.

With p = φ(q) / denominator, g the upstream gradient and d = -g · context:

    grad_query    d, and dφ(q) = (tril(g vᵀ + d) φ(k) + g Sᵀ + d z) / denominator, walking forwards
    sum_queries   each segment's R = Σ pᵀ g and w = Σ d p
    scan          backwards
    grad_key      dφ(k) = tril(g vᵀ + d)ᵀ p + v Rᵀ + w and dv = tril(p φ(k)ᵀ)ᵀ g + φ(k) R, walking backwards

g·v and d nearly cancel, so care is taken of both. The denominator goes into φ(q) and not into g: g then enters its
products unrounded, and what is rounded (p) is the same factor of both. And d is added up anew in float32: the context
of the forward pass was rounded, and to use it makes dq three times less exact in bfloat16.
"""

import triton.language as tl

from clearhead.attention.kernels.linear_triton import (
    COUNTS,
    add_product,
    as_result,
    load_features,
    load_rows,
    load_state,
    narrow,
    row_length,
    rows_inside,
    rows_seeing,
    segments_to_add,
    store_rows,
    store_state,
    times_slope,
)
from clearhead.compiling import jit


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
    WHOLE: tl.constexpr,
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
        here = rows_inside(first_query + rows, n_query, WHOLE)
        sees = rows_seeing(here, first_key + rows, length, CAUSAL, WHOLE)
        features = load_features(q, rows, q_row, sees, MAP, D, BF, DOT)
        upstream = load_rows(grad, rows, grad_row, sees, DV, BV)
        if NORMALISED:
            # p = φ(q) / denominator, rounded once: the same p enters R = Σ pᵀ g and w = Σ d p, which nearly cancel.
            features = narrow(features.to(tl.float32) * tl.load(inverse + rows, mask=sees, other=0.0)[:, None], DOT)
            change = tl.load(delta + rows, mask=sees, other=0.0)
            rest += tl.sum(features.to(tl.float32) * change[:, None], 0)
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
    dq += batch * dq_batch + head * dq_head + first_query.to(tl.int64) * dq_row
    grad += batch * grad_batch + head * grad_head + first_query.to(tl.int64) * grad_row
    inverse += row * n_query + first_query
    delta += row * n_query + first_query
    if CAUSAL:  # otherwise the sums hold every key, and k and v are not read
        k += batch * k_batch + kv_head * k_head + first_key.to(tl.int64) * k_row
        v += batch * v_batch + kv_head * v_head + first_key.to(tl.int64) * v_row
    sums += (batch * n_kv_heads + kv_head) * n_sums * (BF * BV + BF)
    first, last = segments_to_add(segment, n_sums, SUMS, False)
    total, rest = load_state(sums, first, last, BF, BV, True)  # transposed: dφ(q) needs g Sᵀ
    for start in range(0, tl.minimum(SEGMENT, n_slots - start_slot), CHUNK):
        rows = start + tl.arange(0, CHUNK)
        here = rows_inside(first_query + rows, n_query, WHOLE)
        sees = rows_seeing(here, first_key + rows, length, CAUSAL, WHOLE)
        features = load_features(q, rows, q_row, sees, MAP, D, BF, DOT)
        upstream = load_rows(grad, rows, grad_row, sees, DV, BV).to(DOT)
        query = narrow(as_result(features, DOT), DOT)  # narrow again, for it is held in registers to the end
        slope = add_product(upstream, total, tl.zeros((CHUNK, BF), tl.float32), DOT, PRECISION, SPLIT)
        causal = rows[:, None] >= rows[None, :]
        if NORMALISED:
            # g · context times the denominator: the part of earlier chunks here, that of this chunk below.
            agreement = tl.sum(query.to(tl.float32) * slope, 1)
        if CAUSAL:
            valid = rows_inside(first_key + rows, length, WHOLE)
            key = load_features(k, rows, k_row, valid, MAP, D, BF, DOT)
            value = load_rows(v, rows, v_row, valid, DV, BV).to(DOT)
            score = tl.dot(upstream, tl.trans(value), input_precision=PRECISION)
            if NORMALISED:
                weight = tl.dot(features, tl.trans(key), input_precision=PRECISION)
                agreement += tl.sum(tl.where(causal, weight * score, 0.0), 1)
        if NORMALISED:
            factor = tl.load(inverse + rows, mask=sees, other=0.0)
            change = -agreement * factor  # d, added up in float32 and kept for the two kernels that follow
            tl.store(delta + rows, change, mask=here)
            slope += change[:, None] * rest[None, :]
        if CAUSAL:
            if NORMALISED:
                score += change[:, None]  # g vᵀ + d: added before rounding, since the two nearly cancel
            slope = tl.dot(narrow(tl.where(causal, score, 0.0), DOT), key, slope, input_precision=PRECISION)
            total = tl.dot(tl.trans(value), key, total, input_precision=PRECISION)
            rest += tl.sum(key.to(tl.float32), 0)
        if NORMALISED:
            slope = slope * factor[:, None]
        slope = tl.where(sees[:, None], times_slope(slope, query.to(tl.float32), MAP), 0.0)
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
    WHOLE: tl.constexpr,
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
    if CAUSAL:  # otherwise the sums hold every query, and q and grad are not read
        q += batch * q_batch + head * q_head + first_query.to(tl.int64) * q_row
        grad += batch * grad_batch + head * grad_head + first_query.to(tl.int64) * grad_row
        inverse += row * n_query + first_query
        delta += row * n_query + first_query
    sums += row * n_sums * (BF * BV + BF)
    first, last = segments_to_add(segment, n_sums, SUMS, True)
    total, rest = load_state(sums, first, last, BF, BV, False)
    n_chunks = tl.cdiv(tl.minimum(SEGMENT, n_slots - start_slot), CHUNK)
    for step in range(0, n_chunks):  # from the last chunk to the first: a key is seen by the queries after it
        rows = (n_chunks - 1 - step) * CHUNK + tl.arange(0, CHUNK)
        here = rows_inside(first_key + rows, n_key, WHOLE)
        valid = rows_inside(first_key + rows, length, WHOLE)
        features = load_features(k, rows, k_row, valid, MAP, D, BF, DOT)
        value = load_rows(v, rows, v_row, valid, DV, BV).to(DOT)
        # Queries of later chunks come from the state (R, w); those of this chunk are met one by one.
        slope = tl.zeros((CHUNK, BF), tl.float32) + rest[None, :]
        amount = tl.zeros((CHUNK, BV), tl.float32)
        if CAUSAL:
            asked = rows_inside(first_query + rows, n_query, WHOLE)
            sees = rows_seeing(asked, first_key + rows, length, CAUSAL, WHOLE)
            query = load_features(q, rows, q_row, sees, MAP, D, BF, DOT)
            upstream = load_rows(grad, rows, grad_row, sees, DV, BV).to(DOT)
            change = tl.zeros((CHUNK,), tl.float32)
            if NORMALISED:
                change = tl.load(delta + rows, mask=sees, other=0.0)
                query = narrow(query.to(tl.float32) * tl.load(inverse + rows, mask=sees, other=0.0)[:, None], DOT)
            after = rows[:, None] <= rows[None, :]
            weight = tl.dot(features, tl.trans(query), input_precision=PRECISION)
            amount = tl.dot(narrow(tl.where(after, weight, 0.0), DOT), upstream, amount, input_precision=PRECISION)
            score = tl.dot(value, tl.trans(upstream), input_precision=PRECISION) + change[None, :]
            slope = tl.dot(narrow(tl.where(after, score, 0.0), DOT), query, slope, input_precision=PRECISION)
        amount = add_product(features, total, amount, DOT, PRECISION, False)  # here nothing cancels
        slope = add_product(value, tl.trans(total), slope, DOT, PRECISION, SPLIT)
        if CAUSAL:  # only now, so that no key met a query of its own chunk in the state
            total = tl.dot(tl.trans(query), upstream, total, input_precision=PRECISION)
            if NORMALISED:
                rest += tl.sum(query.to(tl.float32) * change[:, None], 0)
        slope = tl.where(valid[:, None], times_slope(slope, as_result(features, DOT), MAP), 0.0)
        store_rows(dk, rows, dk_row, here, slope, D, BF)
        store_rows(dv, rows, dv_row, here, amount, DV, BV)
