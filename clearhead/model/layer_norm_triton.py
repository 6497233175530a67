"""Triton code of LayerNorm; `layer_norm_gpu.py` launches it, and works without Triton.

Of the backward, a program takes TILES tiles of ROWS rows each, and adds up the gradients of gamma and beta of all its
rows in registers, across tiles and, at the end, across the rows of a tile. So each number is read once, and what is
left to add up afterwards is one row for each program.
"""

import triton.language as tl

from clearhead.jit_triton import jit


@jit
def layer_norm_backward(
    grad,
    residual,
    x,
    gamma,
    mean,
    deviation,
    grad_x,
    partial,
    n_rows,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Write the gradient of x, and for each program its sums for gamma and beta.

    `residual` is a gradient that reaches x past the norm, and is added; None for none.
    """
    columns = tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    factor = tl.load(gamma + columns, mask=inside, other=0.0).to(tl.float32)
    grad_gamma = tl.zeros((ROWS, COLUMNS), tl.float32)
    grad_beta = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(TILES):
        rows = (tile * tl.num_programs(0) + tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
        there = (rows < n_rows)[:, None] & inside[None, :]
        places = rows[:, None].to(tl.int64) * WIDTH + columns[None, :]
        upper = tl.load(grad + places, mask=there, other=0.0).to(tl.float32)
        centre = tl.load(mean + rows, mask=rows < n_rows, other=0.0)[:, None]
        scale = tl.load(deviation + rows, mask=rows < n_rows, other=0.0)[:, None]
        normalized = tl.where(there, (tl.load(x + places, mask=there, other=0.0).to(tl.float32) - centre) * scale, 0.0)
        scaled = upper * factor[None, :]
        along = tl.sum(scaled * normalized, 1)[:, None] / WIDTH
        lower = (scaled - tl.sum(scaled, 1)[:, None] / WIDTH - normalized * along) * scale
        if residual is not None:
            lower += tl.load(residual + places, mask=there, other=0.0).to(tl.float32)
        tl.store(grad_x + places, lower.to(grad_x.dtype.element_ty), mask=there)
        grad_gamma += upper * normalized
        grad_beta += upper
    row = partial + tl.program_id(0) * 2 * WIDTH + columns
    tl.store(row, tl.sum(grad_gamma, 0), mask=inside)
    tl.store(row + WIDTH, tl.sum(grad_beta, 0), mask=inside)


@jit
def add_layer_norm(x, y, gamma, beta, out, EPSILON: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the norm of x + y, one program for each row; the sum is rounded as a tensor of its own would be."""
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32  # pyright: ignore[reportAssignmentType]
    columns = tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    places = tl.program_id(0).to(tl.int64) * WIDTH + columns
    total = tl.load(x + places, mask=inside, other=0.0).to(wide) + tl.load(y + places, mask=inside, other=0.0).to(wide)
    total = total.to(x.dtype.element_ty).to(wide)
    centred = tl.where(inside, total - tl.sum(total, 0) / WIDTH, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / WIDTH + EPSILON)
    normed = centred * scale * tl.load(gamma + columns, mask=inside, other=0.0).to(wide)
    if beta is not None:
        normed += tl.load(beta + columns, mask=inside, other=0.0).to(wide)
    tl.store(out + places, normed.to(out.dtype.element_ty), mask=inside)
