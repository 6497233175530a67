"""Attention of a few queries a head on a CPU, as products of small matrices.

In a decoding step each head has one query a row, or one a beam. For so few, torch's attention kernel takes 1.5 to four
times as long: it calls MKL for each head by itself.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.masks import Table


def attend_few(
    query: Float[Tensor, "row head n d"],
    keys: Float[Tensor, "row head column d"],
    values: Float[Tensor, "row head column d_value"],
    bias: Tensor,
    scale: float,
) -> Float[Tensor, "row head n d_value"]:
    """Return the context of a few queries a head; `bias` is added to the scores, `(row * head, n or 1, column)`."""
    score = torch.baddbmm(bias, query.flatten(0, 1), keys.flatten(0, 1).mT, alpha=scale)
    return torch.bmm(score.softmax(-1), values.flatten(0, 1)).unflatten(0, query.shape[:2])


@final
class BeamAttention:
    """Attention of the beams of each sentence to its source."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.real: Table | None = None
        self.bias: Tensor | None = None
        self.is_served = True

    def serves(self, query: Tensor, real: Table | None) -> bool:
        """Take over which source positions are real; False where a sentence has none: its context must be zeros.

        In bfloat16 torch's kernel keeps scores in float32, which a product would round.
        """
        if not query.is_cpu or query.dtype not in (torch.float32, torch.float64):
            return False
        if real is not self.real:
            self.real = real
            self.bias = None if real is None else real.table.float().log_()
            self.is_served = real is None or bool(real.table.any(-1).all())
        return self.is_served

    def attend(
        self,
        query: Float[Tensor, "sentence head beam d"],
        keys: Float[Tensor, "sentence head n d"],
        values: Float[Tensor, "sentence head n d_value"],
    ) -> Float[Tensor, "sentence head beam d_value"]:
        bias = query.new_zeros(1)
        if self.bias is not None:
            bias = self.bias.to(query.dtype).expand(-1, query.shape[1], -1, -1).flatten(0, 1)
        return attend_few(query, keys, values, bias, self.scale)
