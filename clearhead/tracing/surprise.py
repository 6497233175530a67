"""Surprise: how unlikely each token of a text is to the model, −log p in nats."""

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import OptionError
from clearhead.tracing.inner import InnerValues
from clearhead.tracing.stopping import check_stopped

ROWS = 256
"""The number of positions whose logits are computed at a time."""


def read_surprise(inner: InnerValues, side: str) -> Float[Tensor, "n"]:
    """Return −log p of each token of the side that answers; NaN for a token that nothing predicts.

    A language model and a translator predict a token at the place before it, so the first has none. A model that fills
    blanks predicts each token at its own place, where it also reads it.
    """
    part, ids = inner.names.sides[side][1], torch.tensor(inner.ids[side])
    output = part.spec.output
    if output is None or not output.by_position or len(output_row(inner, side)) != part.spec.vocabulary:
        raise OptionError("this model does not predict tokens, so no token can surprise it")
    shift = 1 if output.causal else 0
    surprise = torch.full((len(ids),), float("nan"))
    for start in range(0, len(ids) - shift, ROWS):
        check_stopped()
        stop = min(start + ROWS, len(ids) - shift)
        logits = inner.value(f"{side}.output.logits", slice(start, stop))
        rows = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
        tokens = ids[start + shift : stop + shift].to(rows.device).unsqueeze(-1)
        surprise = surprise.to(rows.dtype)
        surprise[start + shift : stop + shift] = -rows.gather(-1, tokens)[:, 0].cpu()
    return surprise


def output_row(inner: InnerValues, side: str) -> Tensor:
    return inner.value(f"{side}.output.logits", slice(0, 1))[0]
