"""Lists of tensors, all changed in place by one call: what torch keeps under private names."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["copy_all", "move_all", "zero_all"]


def zero_all(tensors: Sequence[Tensor]) -> None:
    """Makes them zero."""
    torch._foreach_zero_(list(tensors))  # pyright: ignore[reportPrivateImportUsage]


def copy_all(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copies values into them."""
    torch._foreach_copy_(list(tensors), list(values))  # pyright: ignore[reportPrivateImportUsage]


def move_all(tensors: Sequence[Tensor], towards: Sequence[Tensor], share: float) -> None:
    """Moves them a share of the way."""
    torch._foreach_lerp_(list(tensors), list(towards), share)  # pyright: ignore[reportPrivateImportUsage]
