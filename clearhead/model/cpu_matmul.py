"""Products of a few rows with a large matrix: what a step of decoding on a CPU spends its time on.

MKL reads a matrix from memory two to four times as fast when it is the left factor and the rows are the right one; a
single row is doubled for that, since for one it takes another routine. The figures are in docs/decisions/0006.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

FEWEST, FEW, MANY = 8, 64, 256
Map = tuple[Tensor, Tensor | None]
"""A matrix and a bias."""

WIDE, LARGE = 256, 1 << 17
"""Least width and number of entries for which it pays: below, copying the result back takes longer."""


def is_large(weight: Float[Tensor, "d_out d_in"]) -> bool:
    return weight.device.type == "cpu" and weight.shape[1] >= WIDE and weight.numel() >= LARGE


def few_rows(
    x: Float[Tensor, "row d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, "d_out"] | None = None
) -> Float[Tensor, "row d_out"]:
    """Return `F.linear(x, weight, bias)` for a large matrix, without gradients."""
    rows = x.shape[0]
    if rows > FEW or (rows == 1 and weight.shape[1] > weight.shape[0]):
        return F.linear(x, weight, bias)
    columns = (x.expand(2, -1).contiguous() if rows == 1 else x).T
    return as_columns(columns, weight, bias).T[:rows].contiguous()


def through(
    x: Float[Tensor, "row d_model"], up: Map, activate: Callable[[Tensor], Tensor], down: Map
) -> Float[Tensor, "row d_model"]:
    """Return `down(activate(up(x)))` for two large matrices; with more rows, hidden values stay columns."""
    rows = x.shape[0]
    if not FEWEST < rows <= MANY:
        return few_rows(activate(few_rows(x, *up)), *down)
    hidden = activate(as_columns(x.T, *up))
    return F.linear(hidden.T, *down) if rows > FEW else as_columns(hidden, *down).T.contiguous()


def as_columns(columns: Float[Tensor, "d_in row"], weight: Tensor, bias: Tensor | None) -> Float[Tensor, "d_out row"]:
    return weight @ columns if bias is None else torch.addmm(bias.unsqueeze(1), weight, columns)
