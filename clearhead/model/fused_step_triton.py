"""Triton code of a decoding step's products; `fused_step.py` launches it, and works without Triton.

A step multiplies a few rows with every weight of the model, so it cannot take less time than reading the weights once.
What stands between two products (norm, activation, gate, residual) is a thousand numbers: as a kernel of its own each
takes as long as it takes to launch, so all of it is done where the numbers are read or written anyway. For one row the
products are sums of elementwise products, since the matrix units would be idle but for a sixteenth; for several rows
they are the matrix units' work, with the weights as the left factor, since they need at least 16 rows there.

With `PDL` (programmatic dependent launch) a kernel starts while the one before it is still ending. It may read weights,
which no kernel writes, and must wait before it reads anything else.
"""

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from clearhead.jit_triton import jit


@jit
def activate(x, ACTIVATION: tl.constexpr):
    """Return the non-linearity of this name."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "silu":
        x = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # tanh(y) = 1 - 2 / (exp(2y) + 1), which holds for exp(2y) = inf too
        y = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = 0.5 * x * (2.0 - 2.0 / (tl.exp(2.0 * y) + 1.0))
    return x


@jit
def one_row_linear(
    x,
    weight,
    up,
    bias,
    up_bias,
    gamma,
    beta,
    residual,
    out,
    N,
    EPSILON: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    HAS_BETA: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write BLOCK_N numbers of `residual + activation(norm(x) W + b)`, of one row; GATED: activation(gate) · up.

    An RMS norm is applied to the sums: its factor is the same for all of x. A layer norm needs the mean first.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    inside = n < N
    rows = n.to(tl.int64)[:, None] * K
    first_mask = inside[:, None] & (k < K)[None, :]
    # The first weights are on their way before this kernel may read what the one before it writes.
    ahead = tl.load(weight + rows + k[None, :], mask=first_mask, other=0.0)
    if GATED:
        up_ahead = tl.load(up + rows + k[None, :], mask=first_mask, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    mean = 0.0
    deviation = 1.0
    if NORM == "layer":
        every = tl.arange(0, WIDTH)
        row = tl.load(x + every, mask=every < K, other=0.0).to(tl.float32)
        mean = tl.sum(row, 0) / K
        centred = tl.where(every < K, row - mean, 0.0)
        deviation = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 0) / K + EPSILON)
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    up_total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for first in tl.static_range(0, K, BLOCK_K):
        here = first + k
        there = here < K
        numbers = tl.load(x + here, mask=there, other=0.0).to(tl.float32)
        if NORM == "layer":
            numbers = (numbers - mean) * deviation * tl.load(gamma + here, mask=there, other=0.0).to(tl.float32)
            if HAS_BETA:
                numbers += tl.load(beta + here, mask=there, other=0.0).to(tl.float32)
        elif NORM == "rms":
            squares += numbers * numbers
            numbers = numbers * tl.load(gamma + here, mask=there, other=0.0).to(tl.float32)
        if first == 0:
            tile = ahead
        else:
            tile = tl.load(weight + rows + here[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        total += tile.to(tl.float32) * numbers[None, :]
        if GATED:
            if first == 0:
                up_tile = up_ahead
            else:
                up_tile = tl.load(up + rows + here[None, :], mask=inside[:, None] & there[None, :], other=0.0)
            up_total += up_tile.to(tl.float32) * numbers[None, :]
    y = tl.sum(total, 1)
    if NORM == "rms":
        factor = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / K + EPSILON)
        y = y * factor
    if BIASED:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    y = activate(y, ACTIVATION)
    if GATED:
        u = tl.sum(up_total, 1)
        if NORM == "rms":
            u = u * factor
        if BIASED:
            u += tl.load(up_bias + n, mask=inside, other=0.0).to(tl.float32)
        y = y * u
    if ADDS:
        y += tl.load(residual + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + n, y.to(out.dtype.element_ty), mask=inside)


@jit
def norm_rows(
    x,
    gamma,
    beta,
    out,
    EPSILON: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    HAS_BETA: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the norm of one row."""
    every = tl.arange(0, WIDTH)
    there = every < K
    factor = tl.load(gamma + every, mask=there, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * K
    row = tl.load(x + start + every, mask=there, other=0.0).to(tl.float32)
    if NORM == "layer":
        row = tl.where(there, row - tl.sum(row, 0) / K, 0.0)
    y = row / tl.sqrt_rn(tl.sum(row * row, 0) / K + EPSILON) * factor
    if HAS_BETA:
        y += tl.load(beta + every, mask=there, other=0.0).to(tl.float32)
    tl.store(out + start + every, y.to(out.dtype.element_ty), mask=there)


@jit(do_not_specialize=["rows"])
def few_rows_linear(
    x,
    weight,
    up,
    bias,
    up_bias,
    residual,
    out,
    partial,
    counters,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SHARE: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write BLOCK_N numbers of up to ROWS rows of `residual + activation(x W + b)`, or of activation(gate) · up.

    A matrix with few rows has too few programs to keep all of the memory busy. Then SPLITS programs sum up SHARE
    numbers of each row; the last one to come to its end adds up the sums, in a fixed order, and does the rest.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    row = tl.arange(0, ROWS)
    k = split * SHARE + tl.arange(0, BLOCK_K)
    inside, there = n < N, row < rows
    weights = weight + n.to(tl.int64)[:, None] * K + k[None, :]
    ups = up + n.to(tl.int64)[:, None] * K + k[None, :]
    numbers = x + row[None, :] * K + k[:, None]
    total = tl.zeros((BLOCK_N, ROWS), tl.float32)
    up_total = tl.zeros((BLOCK_N, ROWS), tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for first in tl.range(0, SHARE, BLOCK_K, num_stages=STAGES):
        wide = first + k < K
        vectors = tl.load(numbers + first, mask=wide[:, None] & there[None, :], other=0.0)
        tile = tl.load(weights + first, mask=inside[:, None] & wide[None, :], other=0.0)
        total = tl.dot(tile, vectors, total, input_precision="ieee")
        if GATED:
            up_tile = tl.load(ups + first, mask=inside[:, None] & wide[None, :], other=0.0)
            up_total = tl.dot(up_tile, vectors, up_total, input_precision="ieee")
    done = True
    places = row[None, :] * N + n[:, None]
    mask = inside[:, None] & there[None, :]
    if SPLITS > 1:
        size: tl.constexpr = ROWS * N  # pyright: ignore[reportAssignmentType]
        tl.store(partial + split * size + places, total, mask=mask)
        if GATED:
            tl.store(partial + (SPLITS + split) * size + places, up_total, mask=mask)
        tl.debug_barrier()  # every thread's sums are written before one of them says so
        done = tl.atomic_add(counters + tl.program_id(0), 1) == SPLITS - 1
        if done:
            tl.store(counters + tl.program_id(0), 0)
            total = tl.zeros((BLOCK_N, ROWS), tl.float32)
            up_total = tl.zeros((BLOCK_N, ROWS), tl.float32)
            for other in tl.static_range(SPLITS):
                total += tl.load(partial + other * size + places, mask=mask, other=0.0, cache_modifier=".cg")
                if GATED:
                    theirs = partial + (SPLITS + other) * size + places
                    up_total += tl.load(theirs, mask=mask, other=0.0, cache_modifier=".cg")
    if done:
        if BIASED:
            total += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[:, None]
        total = activate(total, ACTIVATION)
        if GATED:
            if BIASED:
                up_total += tl.load(up_bias + n, mask=inside, other=0.0).to(tl.float32)[:, None]
            total = total * up_total
        if ADDS:
            total += tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + places, total.to(out.dtype.element_ty), mask=mask)
