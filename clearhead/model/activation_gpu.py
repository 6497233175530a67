"""Activations on a GPU, for training that is compiled or captured: forward and backward are one Triton kernel each, and
the backward sums up the gradient of the bias before it on the way.

A bias's gradient is a sum over all rows of a gradient that the activation's backward has just written: on its own that
is another pass over it. And what a compiler would compute again on the way back, f(x), is kept here.

Of the backward, a program takes a strip of columns through TILES tiles of ROWS rows, and sums the gradient over all of
these rows on the way: what is left to add up afterwards is one row for each program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.library import wrap_triton

from clearhead.compiling import Operator, jit
from clearhead.cuda_graphs import in_captured_training

if TYPE_CHECKING:
    import triton.language as tl

KINDS = ("relu", "silu", "gelu", "gelu_tanh")
BLOCK, ROWS, COLUMNS, WARPS = 4096, 8, 256, 4
"""Numbers of a program of the forward; rows and columns of a tile of the backward; warps of both."""
PROGRAMS = 1056
"""Programs of the backward: eight for each multiprocessor of an H200."""


def serves(x: Tensor) -> bool:
    """Check whether these kernels are the ones to take in a pass over x: on a GPU, compiled (then they are registered)
    or captured, with gradients. Elsewhere Python takes longer to call them than they save.
    """
    if torch.compiler.is_compiling():
        return x.is_cuda and backward_op.registered and torch.is_grad_enabled()
    return in_captured_training(x)


def launch_forward(x: Tensor, kind: str) -> Tensor:
    """Return f(x)."""
    x = x.contiguous()
    out = torch.empty_like(x)
    grid = (-(-x.numel() // BLOCK),)
    wrap_triton(activate_forward.jitted)[grid](x, out, x.numel(), KIND=kind, BLOCK=BLOCK, num_warps=WARPS)
    return out


def launch_backward(grad: Tensor, x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and its sum over all rows."""
    grad, x = grad.contiguous(), x.contiguous()
    width = x.shape[-1]
    n_rows, strips = x.numel() // width, -(-width // COLUMNS)
    programs = max(1, min(PROGRAMS // strips, -(-n_rows // ROWS)))
    grad_x = torch.empty_like(x)
    partial = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    sizes = {"WIDTH": width, "KIND": kind, "ROWS": ROWS, "COLUMNS": COLUMNS, "TILES": -(-n_rows // (ROWS * programs))}
    kernel = wrap_triton(activate_backward.jitted)
    kernel[(programs, strips)](grad, x, grad_x, partial, n_rows, **sizes, num_warps=WARPS)
    return grad_x, partial.sum(0)


forward_op = Operator("activate_forward", launch_forward)
backward_op = Operator("activate_backward", launch_backward)


class Activation(torch.autograd.Function):
    """f(x) of an x that a bias was added to: on the way back the bias gets its gradient here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, kind: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kind, ctx.dtype = kind, bias.dtype
        return forward_op(x, kind)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_x, total = backward_op(grads[0], *ctx.saved_tensors, ctx.kind)
        return grad_x, total.to(ctx.dtype), None


def activate(x: Tensor, bias: Tensor, kind: str) -> Tensor:
    """Return f(x), where x is a product plus this bias, detached: its gradient comes back from here."""
    return Activation.apply(x, bias, kind)  # type: ignore[return-value]


@jit
def share_passed(x, KIND: tl.constexpr):
    """Return the share of x that passes, f(x) / x."""
    if KIND == "silu":
        share = tl.sigmoid(x)
    elif KIND == "gelu_tanh":
        # (1 + tanh y) / 2 is sigmoid(2y), here with y = sqrt(2 / pi) (x + 0.044715 x³): one exponential, and no tanh.
        share = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == "gelu":
        share = 0.5 * (1 + tl.erf(0.7071067811865476 * x))
    else:
        share = tl.where(x <= 0, 0.0, 1.0)  # not x > 0: NaN must pass, as it does in torch
    return share


@jit
def slope_of(x, KIND: tl.constexpr):
    """Return f'(x)."""
    slope = share_passed(x, KIND)  # of f = x s(x) the slope is s + x s'
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
    # Not x times its share for relu: inf times 0 is NaN.
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
        total += lower  # in float32, before it is rounded for grad_x: the bias gets the exact sum
    tl.store(partial + tl.program_id(0) * WIDTH + columns, tl.sum(total, 0), mask=columns < WIDTH)
