"""What a head by itself adds to the residual stream."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.layer import Attention
from clearhead.decoding.generating import eval_mode


def head_outputs(layer: Attention, context: Float[Tensor, "head n d_value"]) -> Iterator[Float[Tensor, "n d_model"]]:
    """Yield what W_O makes of vectors of each head, without the bias: of contexts, or of values."""
    with eval_mode(layer):
        bias = layer.output(context.new_zeros(1, context.shape[0] * context.shape[2]))
        for head, of_head in enumerate(context):
            alone = torch.zeros_like(context)
            alone[head] = of_head
            yield layer.output(alone.transpose(0, 1).flatten(1)) - bias
