"""The loss over a vocabulary on a GPU: cross-entropy with label smoothing and R-Drop, forward and backward one Triton
kernel each.

Logits stay in the dtype they come in: of 32,768 x 50,304 in bfloat16, 3.3 GB are read twice and written once. The sums
are in float32, as in `losses.py`, which is the definition.

A forward program walks along a row (or along two rows that hold the same place, for R-Drop) and keeps its log-sum-exp;
a backward program makes a block of the gradient from it. So logits are read twice and their gradient is written once,
all in the logits' own dtype: nothing in float32 stands in memory. A negative target means that nothing is wanted there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import wrap_triton

from clearhead.compiling import TRITON_INTERPRETED, Operator, jit, missing_triton
from clearhead.devices import FLOATS

if TYPE_CHECKING:
    import triton.language as tl

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


def launch_forward(logits: Tensor, wanted: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp of every row, and `(2, row)`: objectives and negative log-likelihoods."""
    n_rows, choices = logits.shape
    lse = torch.empty(n_rows, dtype=torch.float32, device=logits.device)
    losses = torch.empty(2, n_rows, dtype=torch.float32, device=logits.device)
    sizes = {"SMOOTHING": smoothing, "CHOICES": choices, "BLOCK": ROW_BLOCK, "num_warps": ROW_WARPS}
    wrap_triton(cross_entropy_forward.jitted)[(n_rows,)](logits, wanted, lse, losses, n_rows, **sizes)
    return lse, losses


def launch_backward(logits: Tensor, wanted: Tensor, lse: Tensor, upstream: Tensor, smoothing: float) -> Tensor:
    """Return the gradient of the summed objective, times the first number of the upstream gradient."""
    n_rows, choices = logits.shape
    grad = torch.empty_like(logits)
    sizes = {"SMOOTHING": smoothing, "CHOICES": choices, "BLOCK": BLOCK, "num_warps": WARPS}
    kernel = wrap_triton(cross_entropy_backward.jitted)
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
    kernel = wrap_triton(r_drop_forward.jitted)
    kernel[(n_pairs,)](logits, wanted, lse, divergence, losses, n_pairs, **sizes)
    return lse, divergence, losses


def launch_r_drop_backward(
    logits: Tensor, wanted: Tensor, lse: Tensor, divergence: Tensor, upstream: Tensor, smoothing: float, weight: float
) -> Tensor:
    """Return the gradient of the summed objective of both passes, times the first number of the upstream gradient."""
    n_pairs, choices = len(logits) // 2, logits.shape[1]
    grad = torch.empty_like(logits)
    sizes = {"SMOOTHING": smoothing, "WEIGHT": weight, "CHOICES": choices, "BLOCK": PAIR_BLOCK, "num_warps": PAIR_WARPS}
    kernel = wrap_triton(r_drop_backward.jitted)
    kernel[(n_pairs, -(-choices // PAIR_BLOCK))](logits, wanted, lse, divergence, upstream, grad, n_pairs, **sizes)
    return grad


forward_op = Operator("cross_entropy_forward", launch_forward)
backward_op = Operator("cross_entropy_backward", launch_backward)
r_drop_forward_op = Operator("r_drop_forward", launch_r_drop_forward)
r_drop_backward_op = Operator("r_drop_backward", launch_r_drop_backward)


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


@jit
def sum_row(row, CHOICES: tl.constexpr, BLOCK: tl.constexpr):
    """Return the log-sum-exp of a row of logits, and their sum."""
    highest = tl.max(tl.full((BLOCK,), float("-inf"), tl.float32), 0)
    exps = tl.sum(tl.zeros((BLOCK,), tl.float32), 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, CHOICES, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        there = columns < CHOICES
        logit = tl.load(row + columns, mask=there, other=float("-inf")).to(tl.float32)
        # One pass: where a block has a higher logit, the sum so far is scaled to it. -inf alone would be -inf - -inf.
        above = tl.maximum(highest, tl.max(logit, 0))
        base = tl.where(above == float("-inf"), 0.0, above)
        exps = exps * tl.exp(highest - base) + tl.sum(tl.exp(logit - base), 0)
        highest = above
        total += tl.where(there, logit, 0.0)
    return highest + tl.log(exps), tl.sum(total, 0)


@jit
def logit_of(row, target, CHOICES: tl.constexpr):
    """Return the logit of a target; NaN for one that is no choice, so that it does not pass for a loss."""
    return tl.load(row + target, mask=(target >= 0) & (target < CHOICES), other=float("nan")).to(tl.float32)


@jit
def cross_entropy_forward(
    logits, wanted, lse, losses, n_rows, SMOOTHING: tl.constexpr, CHOICES: tl.constexpr, BLOCK: tl.constexpr
):
    """Write a row's log-sum-exp, and its objective and negative log-likelihood: zeros if nothing is wanted."""
    place = tl.program_id(0)
    target = tl.load(wanted + place)
    row = logits + place.to(tl.int64) * CHOICES  # int64: places times choices may pass 2^31
    log_sum, total = sum_row(row, CHOICES, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    there = target >= 0
    nll = log_sum - logit_of(row, target, CHOICES)
    objective = nll
    if SMOOTHING > 0:
        # The mean of -log p over all choices needs only the sum of the logits, which came along in the same pass.
        objective = (1 - SMOOTHING) * nll + SMOOTHING * (log_sum - total / CHOICES)
    tl.store(lse + place, log_sum)
    tl.store(losses + place, tl.where(there, objective, 0.0))
    tl.store(losses + n_rows + place, tl.where(there, nll, 0.0))


@jit
def cross_entropy_backward(
    logits, wanted, lse, upstream, grad, SMOOTHING: tl.constexpr, CHOICES: tl.constexpr, BLOCK: tl.constexpr
):
    """Write a block of the gradient: softmax less the smoothed target, times the upstream gradient."""
    place = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < CHOICES
    target = tl.load(wanted + place)
    there = target >= 0
    first = place.to(tl.int64) * CHOICES
    # Where nothing is wanted, the logits are not even read: padding costs only the zeros it writes.
    logit = tl.load(logits + first + columns, mask=inside & there, other=0.0).to(tl.float32)
    slope = tl.exp(logit - tl.load(lse + place)) - SMOOTHING / CHOICES - tl.where(columns == target, 1 - SMOOTHING, 0.0)
    slope = tl.where(there, slope * tl.load(upstream), 0.0)
    tl.store(grad + first + columns, slope.to(grad.dtype.element_ty), mask=inside)


@jit
def r_drop_forward(
    logits,
    wanted,
    lse,
    divergence,
    losses,
    n_pairs,
    SMOOTHING: tl.constexpr,
    WEIGHT: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write, of a place's two rows, both log-sum-exps and KL divergences, and their objective and negative
    log-likelihood.
    """
    place = tl.program_id(0)
    target = tl.load(wanted + place)
    there = target >= 0
    p_row = logits + place.to(tl.int64) * CHOICES
    q_row = logits + (place + n_pairs).to(tl.int64) * CHOICES
    p_sum, p_total = sum_row(p_row, CHOICES, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    q_sum, q_total = sum_row(q_row, CHOICES, BLOCK)
    # The divergence needs both log-sum-exps first, so the rows are read a second time; they are in the cache by now.
    from_p = tl.zeros((BLOCK,), tl.float32)
    from_q = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, CHOICES, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < CHOICES
        log_p = tl.load(p_row + columns, mask=inside, other=0.0).to(tl.float32) - p_sum
        log_q = tl.load(q_row + columns, mask=inside, other=0.0).to(tl.float32) - q_sum
        from_p += tl.where(inside, tl.exp(log_p) * (log_p - log_q), 0.0)
        from_q += tl.where(inside, tl.exp(log_q) * (log_q - log_p), 0.0)
    p_kl, q_kl = tl.sum(from_p, 0), tl.sum(from_q, 0)
    nll = (p_sum - logit_of(p_row, target, CHOICES) + q_sum - logit_of(q_row, target, CHOICES)) / 2
    spread = (p_sum + q_sum - (p_total + q_total) / CHOICES) / 2
    objective = (1 - SMOOTHING) * nll + WEIGHT / 4 * (p_kl + q_kl)
    if SMOOTHING > 0:
        objective += SMOOTHING * spread
    tl.store(lse + place, p_sum)
    tl.store(lse + n_pairs + place, q_sum)
    tl.store(divergence + place, p_kl)
    tl.store(divergence + n_pairs + place, q_kl)
    tl.store(losses + place, tl.where(there, objective, 0.0))
    tl.store(losses + n_pairs + place, tl.where(there, nll, 0.0))


@jit
def r_drop_backward(
    logits,
    wanted,
    lse,
    divergence,
    upstream,
    grad,
    n_pairs,
    SMOOTHING: tl.constexpr,
    WEIGHT: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write a block of the gradient of both rows of a place.

    With d = log p - log q the divergence KL(p, q) + KL(q, p) has the gradient p (d - KL(p, q)) + p - q in the logits of
    p, and the same with p and q exchanged in those of q.
    """
    place = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < CHOICES
    target = tl.load(wanted + place)
    there = target >= 0
    p_first = place.to(tl.int64) * CHOICES
    q_first = (place + n_pairs).to(tl.int64) * CHOICES
    log_p = tl.load(logits + p_first + columns, mask=inside, other=0.0).to(tl.float32) - tl.load(lse + place)
    log_q = tl.load(logits + q_first + columns, mask=inside, other=0.0).to(tl.float32) - tl.load(lse + n_pairs + place)
    p, q = tl.exp(log_p), tl.exp(log_q)
    smoothed = SMOOTHING / CHOICES + tl.where(columns == target, 1 - SMOOTHING, 0.0)
    p_slope = p * (log_p - log_q - tl.load(divergence + place)) + p - q
    q_slope = q * (log_q - log_p - tl.load(divergence + n_pairs + place)) + q - p
    scale = tl.load(upstream)
    p_slope = ((p - smoothed) / 2 + WEIGHT / 4 * p_slope) * scale
    q_slope = ((q - smoothed) / 2 + WEIGHT / 4 * q_slope) * scale
    tl.store(grad + p_first + columns, tl.where(there, p_slope, 0.0).to(grad.dtype.element_ty), mask=inside)
    tl.store(grad + q_first + columns, tl.where(there, q_slope, 0.0).to(grad.dtype.element_ty), mask=inside)
