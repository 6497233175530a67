"""Operations on lists of tensors, in place and in one call each: what torch has under private names."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor


def zero_all(tensors: Sequence[Tensor]) -> None:
    """Zero the tensors."""
    if tensors:
        torch._foreach_zero_(list(tensors))  # pyright: ignore[reportPrivateImportUsage]


def copy_all(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into the tensors."""
    if tensors:
        torch._foreach_copy_(list(tensors), list(values))  # pyright: ignore[reportPrivateImportUsage]


def move_all(tensors: Sequence[Tensor], towards: Sequence[Tensor], share: float) -> None:
    """Move the tensors a share of the way towards others."""
    torch._foreach_lerp_(list(tensors), list(towards), share)  # pyright: ignore[reportPrivateImportUsage]


def add_all(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Add others to the tensors."""
    if tensors:
        torch._foreach_add_(list(tensors), list(others))  # pyright: ignore[reportPrivateImportUsage]


def subtract_all(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Subtract others from the tensors."""
    torch._foreach_sub_(list(tensors), list(others))  # pyright: ignore[reportPrivateImportUsage]


def scale_all(tensors: Sequence[Tensor], factor: float | Tensor) -> None:
    """Multiply the tensors by one number."""
    torch._foreach_mul_(list(tensors), factor)  # pyright: ignore[reportPrivateImportUsage]


@final
class RoundAll(torch.autograd.Function):
    """Weights in a narrower dtype, all by one call; on the way back their gradients go into `grad` by one or two.

    With `fresh` they take the place of what `grad` holds, which need not have been zeroed; else they are added. A
    rounding, a widening and an addition of each weight by itself are three launches: 358 of the 1,286 in a step of a
    translator of 4 + 4 blocks.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, fresh: bool, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.weights, ctx.fresh = weights, fresh
        ctx.set_materialize_grads(False)
        rounded = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        copy_all(rounded, weights)
        ctx.mark_non_differentiable(
            *(new for new, weight in zip(rounded, weights, strict=True) if not weight.requires_grad)
        )
        return tuple(rounded)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        trained = [(weight, grad) for weight, grad in zip(ctx.weights, grads, strict=True) if weight.requires_grad]
        used = [(parameter, grad) for parameter, grad in trained if grad is not None]
        for weight, _ in used:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        accumulated, new = [weight.grad for weight, _ in used], [grad for _, grad in used]
        if ctx.fresh:
            zero_all([parameter.grad for parameter, grad in trained if grad is None and parameter.grad is not None])
            copy_all(accumulated, new)
        else:
            wide = [torch.empty_like(weight) for weight in accumulated]
            copy_all(wide, new)
            add_all(accumulated, wide)
        return (None,) * (2 + len(grads))
