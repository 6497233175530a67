"""Operations on lists of tensors, in place and in one call each: what torch has under private names."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["copy_all", "move_all", "zero_all"]


def zero_all(tensors: Sequence[Tensor]) -> None:
    """Zero the tensors."""
    torch._foreach_zero_(list(tensors))  # pyright: ignore[reportPrivateImportUsage]


def copy_all(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into the tensors."""
    torch._foreach_copy_(list(tensors), list(values))  # pyright: ignore[reportPrivateImportUsage]


def move_all(tensors: Sequence[Tensor], towards: Sequence[Tensor], share: float) -> None:
    """Move the tensors a share of the way towards others."""
    torch._foreach_lerp_(list(tensors), list(towards), share)  # pyright: ignore[reportPrivateImportUsage]
