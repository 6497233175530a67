"""Activations on a GPU, for training that is compiled or captured: forward and backward are one Triton kernel each, and
the backward sums up the gradient of the bias before it on the way.

A bias's gradient is a sum over all rows of a gradient that the activation's backward has just written: on its own that
is another pass over it. And what a compiler would compute again on the way back, f(x), is kept here.
"""

import importlib
from typing import Any, final

import torch
from torch import Tensor
from torch.library import wrap_triton

from clearhead.cuda_graphs import in_captured_training
from clearhead.operators import Operator

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


def kernel_named(name: str) -> Any:
    return wrap_triton(getattr(importlib.import_module("clearhead.model.activation_triton"), name))


def launch_forward(x: Tensor, kind: str) -> Tensor:
    """Return f(x)."""
    x = x.contiguous()
    out = torch.empty_like(x)
    grid = (-(-x.numel() // BLOCK),)
    kernel_named("activate_forward")[grid](x, out, x.numel(), KIND=kind, BLOCK=BLOCK, num_warps=WARPS)
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
    kernel = kernel_named("activate_backward")
    kernel[(programs, strips)](grad, x, grad_x, partial, n_rows, **sizes, num_warps=WARPS)
    return grad_x, partial.sum(0)


forward_op = Operator("activate_forward", launch_forward)
backward_op = Operator("activate_backward", launch_backward)


@final
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
