"""Softmax attention to few keys in training on a CPU: two batched products around a softmax, and their gradients.

Torch's fused kernel works through blocks of 32 queries and up to 512 keys, and computes the weights again in the
backward pass. With fewer than 32 keys, as in a batch of short sentences, each block is mostly empty, and to keep the
weights costs little: forward and backward take less time here. Figures: docs/decisions/0023.
"""

from typing import Any, final

import torch
from torch import Tensor

from clearhead.attention.kernels.base import Context, Refused
from clearhead.attention.modes import can_read

FEW_KEYS = 32


def serves_short(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Check for a call in training with few keys, as many heads for keys as for queries, and no learned bias."""
    return (
        can_read(query)  # first: a compiler is to make no guard of what follows
        and key.shape[2] < FEW_KEYS
        and query.shape[1] == key.shape[1]
        and torch.is_grad_enabled()
        and (query.requires_grad or key.requires_grad or value.requires_grad)
        and not (mask is not None and mask.requires_grad)
        and query.dtype in (torch.float32, torch.float64)
    )


def attend_short(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool, scale: float
) -> Context:
    """Return what `scaled_dot_product_attention` does. `mask` is truth values (True = may attend) or a bias."""
    if causal:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril_()
    return ShortSoftmax.apply(mask, scale, query, key, value)  # pyright: ignore[reportReturnType]


@final
class ShortSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mask: Tensor | None, scale: float, *sources: Tensor) -> Tensor:
        batch, heads, n_query, _ = sources[0].shape
        query, key, value = (x.reshape(batch * heads, x.shape[2], -1) for x in sources)
        score = torch.baddbmm(query.new_empty(1), query, key.transpose(1, 2), beta=0, alpha=scale)
        if mask is not None:
            apart = score.view(batch, heads, n_query, -1)
            # Not added as -inf: the score of a key that is NaN would stay NaN.
            apart.masked_fill_(~mask, float("-inf")) if mask.dtype is torch.bool else apart.add_(mask)
        weight = torch.softmax(score, -1)
        ctx.scale = scale
        ctx.save_for_backward(*sources, query, key, value, weight)
        return torch.bmm(weight, value).view(batch, heads, n_query, -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *sources, query, key, value, weight = ctx.saved_tensors
        with torch.no_grad():
            rows = grad.reshape(*weight.shape[:2], -1)
            d_value = torch.bmm(weight.transpose(1, 2), rows)
            d_weight = torch.bmm(rows, value.transpose(1, 2))
            d_score = torch.ops.aten._softmax_backward_data(d_weight, weight, -1, weight.dtype)
            nothing = query.new_empty(1)
            d_query = torch.baddbmm(nothing, d_score, key, beta=0, alpha=ctx.scale)
            d_key = torch.baddbmm(nothing, d_score.transpose(1, 2), query, beta=0, alpha=ctx.scale)
        gradients = [
            gradient.view_as(source) for gradient, source in zip((d_query, d_key, d_value), sources, strict=True)
        ]
        if torch.is_grad_enabled():  # a graph of the gradients is asked for, and there is none
            gradients = [Refused.apply("fused", gradient, grad, *sources) for gradient in gradients]
        return None, None, *gradients
