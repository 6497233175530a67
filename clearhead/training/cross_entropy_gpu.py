"""The loss over a vocabulary on a GPU: cross-entropy with label smoothing and R-Drop, forward and backward one Triton
kernel each.

Logits stay in the dtype they come in: of 32,768 x 50,304 in bfloat16, 3.3 GB are read twice and written once. The sums
are in float32, as in `losses.py`, which is the definition.
"""

import importlib
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import wrap_triton

from clearhead.compiling import TRITON_INTERPRETED, missing_triton
from clearhead.cuda_graphs import FLOATS
from clearhead.operators import Operator

ROW_BLOCK, ROW_WARPS = 2048, 4
"""Choices that a program of the forward takes at a time, and its warps: the quickest of 15 pairs on an H200."""
BLOCK, WARPS = 4096, 4
"""Choices of a program of the backward, and its warps."""
PAIR_BLOCK, PAIR_WARPS = 1024, 4
"""The same of R-Drop's backward, which holds two rows."""


def serves(logits: Tensor) -> bool:
    """Check whether these kernels are the ones to take for `(place, choice)` logits."""
    if (not logits.is_cuda and not TRITON_INTERPRETED) or logits.dtype not in FLOATS or 0 in logits.shape:
        return False
    if torch.compiler.is_compiling():
        return forward_op.registered
    return missing_triton(logits.device.type) is None and not torch._C._are_functorch_transforms_active()


def kernel_named(name: str) -> Any:
    return wrap_triton(getattr(importlib.import_module("clearhead.training.cross_entropy_triton"), name))


def launch_forward(logits: Tensor, wanted: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp of every row, and `(2, row)`: objectives and negative log-likelihoods."""
    n_rows, choices = logits.shape
    lse = torch.empty(n_rows, dtype=torch.float32, device=logits.device)
    losses = torch.empty(2, n_rows, dtype=torch.float32, device=logits.device)
    sizes = {"SMOOTHING": smoothing, "CHOICES": choices, "BLOCK": ROW_BLOCK, "num_warps": ROW_WARPS}
    kernel_named("cross_entropy_forward")[(n_rows,)](logits, wanted, lse, losses, n_rows, **sizes)
    return lse, losses


def launch_backward(logits: Tensor, wanted: Tensor, lse: Tensor, upstream: Tensor, smoothing: float) -> Tensor:
    """Return the gradient of the summed objective, times the first number of the upstream gradient."""
    n_rows, choices = logits.shape
    grad = torch.empty_like(logits)
    sizes = {"SMOOTHING": smoothing, "CHOICES": choices, "BLOCK": BLOCK, "num_warps": WARPS}
    kernel = kernel_named("cross_entropy_backward")
    kernel[(n_rows, -(-choices // BLOCK))](logits, wanted, lse, upstream, grad, **sizes)
    return grad


def launch_r_drop_forward(
    logits: Tensor, wanted: Tensor, smoothing: float, weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-sum-exps and KL divergences of every row, and `(2, place)`: objectives and negative
    log-likelihoods.
    """
    n_pairs, choices = len(logits) // 2, logits.shape[1]
    lse, divergence = (torch.empty(2 * n_pairs, dtype=torch.float32, device=logits.device) for _ in range(2))
    losses = torch.empty(2, n_pairs, dtype=torch.float32, device=logits.device)
    sizes = {"SMOOTHING": smoothing, "WEIGHT": weight, "CHOICES": choices, "BLOCK": ROW_BLOCK, "num_warps": ROW_WARPS}
    kernel = kernel_named("r_drop_forward")
    kernel[(n_pairs,)](logits, wanted, lse, divergence, losses, n_pairs, **sizes)
    return lse, divergence, losses


def launch_r_drop_backward(  # noqa: PLR0917 - an operator's arguments are positional
    logits: Tensor, wanted: Tensor, lse: Tensor, divergence: Tensor, upstream: Tensor, smoothing: float, weight: float
) -> Tensor:
    """Return the gradient of the summed objective of both passes, times the first number of the upstream gradient."""
    n_pairs, choices = len(logits) // 2, logits.shape[1]
    grad = torch.empty_like(logits)
    sizes = {"SMOOTHING": smoothing, "WEIGHT": weight, "CHOICES": choices, "BLOCK": PAIR_BLOCK, "num_warps": PAIR_WARPS}
    kernel = kernel_named("r_drop_backward")
    kernel[(n_pairs, -(-choices // PAIR_BLOCK))](logits, wanted, lse, divergence, upstream, grad, n_pairs, **sizes)
    return grad


forward_op = Operator("cross_entropy_forward", launch_forward)
backward_op = Operator("cross_entropy_backward", launch_backward)
r_drop_forward_op = Operator("r_drop_forward", launch_r_drop_forward)
r_drop_backward_op = Operator("r_drop_backward", launch_r_drop_backward)


@final
class CrossEntropy(torch.autograd.Function):
    """The summed objective and the summed negative log-likelihood, as one tensor; only the objective has a gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, smoothing: float) -> Tensor:
        lse, losses = forward_op(logits, wanted, smoothing)
        ctx.save_for_backward(logits, wanted, lse)
        ctx.smoothing = smoothing
        return losses.sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return backward_op(*ctx.saved_tensors, grads[0].contiguous(), ctx.smoothing), None, None


@final
class RDrop(torch.autograd.Function):
    """The same of R-Drop, of logits that hold every place twice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, smoothing: float, weight: float) -> Tensor:
        lse, divergence, losses = r_drop_forward_op(logits, wanted, smoothing, weight)
        ctx.save_for_backward(logits, wanted, lse, divergence)
        ctx.smoothing, ctx.weight = smoothing, weight
        return losses.sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (
            r_drop_backward_op(*ctx.saved_tensors, grads[0].contiguous(), ctx.smoothing, ctx.weight),
            None,
            None,
            None,
        )


def cross_entropy(logits: Tensor, wanted: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the objective and the negative log-likelihood, summed over places that want something."""
    sums = CrossEntropy.apply(logits.contiguous(), wanted.contiguous(), smoothing)
    return sums[0], sums[1].detach()


def r_drop(logits: Tensor, wanted: Tensor, smoothing: float, weight: float) -> tuple[Tensor, Tensor]:
    """Return R-Drop's objective and the negative log-likelihood of both passes' mean, summed over places."""
    sums = RDrop.apply(logits.contiguous(), wanted.contiguous(), smoothing, weight)
    return sums[0], sums[1].detach()
