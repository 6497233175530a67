"""Fused: torch's scaled_dot_product_attention, with Clearhead's rule for masks around it.

Boolean masks mean "may attend" there too; what torch lacks is added here: positions other than top-left for causal,
zeros for rows that see nothing, and no leak from keys nobody sees.
"""

from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention.call import Call, Facts, Sight
from clearhead.attention.kernels.base import Context, Kernel
from clearhead.attention.similarity import Similarity

__all__ = ["Fused"]


@final
class Fused(Kernel):
    name: ClassVar[str] = "fused"
    summary: ClassVar[str] = "softmax of a dot product in torch's fused kernel"

    def refusal(self, facts: Facts) -> str | None:
        if facts.weighting != "softmax":
            return "torch's fused kernel computes softmax, and no other weighting"
        if facts.similarity != "dot":
            return "torch's fused kernel scores by a dot product; this similarity is not one"
        return None

    def notes(self, facts: Facts) -> tuple[str, ...]:
        found = []
        if facts.device == "cpu" and facts.dropout:
            found.append("with dropout on the CPU torch builds the n_query x n_key weights")
        if facts.device == "cpu" and facts.bias == "learned" and facts.gradients:
            found.append("for a bias's gradient on the CPU torch builds the n_query x n_key weights")
        if not facts.equal_widths:
            found.append(
                "d_value differs from d_head: the narrower is filled up with zeros, or torch would build n x n"
            )
        if len(facts.masks) > 1 or facts.masks - {"none", "causal", "padding"} or not facts.aligned:
            found.append("this mask is built as n_query x n_key truth values, one byte each")
        if facts.bias != "none":
            found.append("the bias is built as n_query x n_key numbers a head")
        return tuple(found)

    def run(self, call: Call) -> Context:
        if call.complete and call.position.bias_kind == "none":
            return attend_fused(call, None)
        cells = call.cells()
        allowed = call.mask.allowed(cells)
        sight = Sight.of(allowed)
        if not call.complete:
            call = call.sealed(sight)
        blind = ~sight.rows.unsqueeze(-1)
        mask = allowed | blind
        if call.position.bias_kind != "none":
            bias = (
                call.position.bias(cells, torch.promote_types(call.query.dtype, torch.float32))
                / call.weighting.temperature
            )
            mask = torch.where(mask, bias, float("-inf")).to(call.query.dtype)
        return attend_fused(call, mask).masked_fill(blind, 0)


def attend_fused(call: Call, mask: Tensor | None) -> Context:
    query, key, scale = scaled_query(call)
    causal = mask is None and call.mask.kinds == {"causal"} and call.n_query > 1
    if causal and call.n_query != call.n_key:
        causal, mask = False, call.mask.allowed(call.cells())
    d_value = call.value.shape[-1]
    width = max(query.shape[-1], d_value)
    context = F.scaled_dot_product_attention(
        widen(query, width),
        widen(key, width),
        widen(call.value, width),
        attn_mask=mask,
        dropout_p=call.dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=call.n_heads != key.shape[1],
    )
    return context[..., :d_value]


def scaled_query(call: Call) -> tuple[Tensor, Tensor, float]:
    """Prepared queries and keys, and the factor for their product; a learned factor goes into the queries.

    Half precision is prepared in float32 and rounded once.
    """
    scale = call.scale / call.weighting.temperature
    if type(call.similarity).prepare is Similarity.prepare and not isinstance(scale, Tensor):
        return call.query, call.key, scale
    dtype, call = call.query.dtype, call.widened()
    query, key = call.similarity.prepare(call.query, call.key)
    return (query * scale).to(dtype), key.to(dtype), 1.0


def widen(vectors: Tensor, width: int) -> Tensor:
    """Filled up with zeros to `width`: a dot product does not notice."""
    return vectors if vectors.shape[-1] == width else F.pad(vectors, (0, width - vectors.shape[-1]))
