"""Attention of a few queries a head on a CPU, as products of small matrices.

In a decoding step each head has one query a row, or one a beam. For so few, torch's attention kernel takes 1.5 to four
times as long: it calls MKL for each head by itself.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def attend_few(
    query: Float[Tensor, "row head n d"],
    keys: Float[Tensor, "row head column d"],
    values: Float[Tensor, "row head column d_value"],
    bias: Tensor | None,
    scale: float,
) -> Float[Tensor, "row head n d_value"]:
    """Return the context of a few queries a head; `bias` is added to the scores, `(row * head, n or 1, column)`."""
    added, beta = (query.new_empty(1), 0) if bias is None else (bias, 1)  # with a beta of 0 it is not read
    score = torch.baddbmm(added, query.flatten(0, 1), keys.flatten(0, 1).mT, beta=beta, alpha=scale)
    return torch.bmm(score.softmax(-1), values.flatten(0, 1)).unflatten(0, query.shape[:2])
