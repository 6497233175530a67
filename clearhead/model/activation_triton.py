"""Triton code of activations; `activation_gpu.py` launches it, and works without Triton.

Of the backward, a program takes a strip of columns through TILES tiles of ROWS rows, and sums the gradient over all of
these rows on the way: what is left to add up afterwards is one row for each program.
"""

import triton.language as tl

from clearhead.jit_triton import jit


@jit
def share_passed(x, KIND: tl.constexpr):
    """Return the share of x that passes, f(x) / x."""
    if KIND == "silu":
        share = tl.sigmoid(x)
    elif KIND == "gelu_tanh":
        share = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == "gelu":
        share = 0.5 * (1 + tl.erf(0.7071067811865476 * x))
    else:
        share = tl.where(x <= 0, 0.0, 1.0)
    return share


@jit
def slope_of(x, KIND: tl.constexpr):
    """Return f'(x)."""
    slope = share_passed(x, KIND)
    if KIND == "silu":
        slope = slope * (1 + x * (1 - slope))
    elif KIND == "gelu_tanh":
        slope = slope * (1 + x * (1 - slope) * 1.5957691216057308 * (1 + 0.134145 * x * x))
    elif KIND == "gelu":
        slope = slope + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return slope


@jit
def activate_forward(x, out, n_numbers, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Write f of a block of numbers."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n_numbers
    value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(value <= 0, 0.0, value) if KIND == "relu" else value * share_passed(value, KIND)
    tl.store(out + places, value.to(out.dtype.element_ty), mask=inside)


@jit
def activate_backward(
    grad,
    x,
    grad_x,
    partial,
    n_rows,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Write the gradient of x, and for each program its sums over rows."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(TILES):
        rows = (tile * tl.num_programs(0) + tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
        there = (rows < n_rows)[:, None] & (columns < WIDTH)[None, :]
        places = rows[:, None].to(tl.int64) * WIDTH + columns[None, :]
        value = tl.load(x + places, mask=there, other=0.0).to(tl.float32)
        lower = tl.load(grad + places, mask=there, other=0.0).to(tl.float32) * slope_of(value, KIND)
        tl.store(grad_x + places, lower.to(grad_x.dtype.element_ty), mask=there)
        total += lower
    tl.store(partial + tl.program_id(0) * WIDTH + columns, tl.sum(total, 0), mask=columns < WIDTH)
