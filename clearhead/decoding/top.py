"""The largest of a long row, and what turns logits into log-probabilities; in few passes over the logits."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decoding.hypotheses import Candidates

__all__ = ["log_probs_of", "shown_to", "top"]

GROUP = 64
"""Neighbours looked at together: the k largest of a row lie in the k groups whose maxima are largest."""


def top(values: Float[Tensor, "row vocabulary"], k: int) -> tuple[Float[Tensor, "row k"], Int[Tensor, "row k"]]:
    """The k largest of each row and where they stand, the largest first; all of them if there are fewer."""
    n = values.shape[-1]
    k = min(k, n)
    whole = n - n % GROUP
    if n < 32 * GROUP or 4 * k * GROUP > n or values.device.type != "cpu":
        return values.topk(k, -1)
    groups = values[:, :whole].unflatten(-1, (-1, GROUP))
    best = groups.amax(-1).topk(k, -1).indices
    near = groups.gather(1, best.unsqueeze(-1).expand(-1, -1, GROUP)).flatten(1)
    place = (best.unsqueeze(-1) * GROUP + torch.arange(GROUP, device=values.device)).flatten(1)
    if whole < n:
        rest = torch.arange(whole, n, device=values.device).expand(len(values), -1)
        near, place = torch.cat([near, values[:, whole:]], -1), torch.cat([place, rest], -1)
    found = near.topk(k, -1)
    return found.values, place.gather(-1, found.indices)


def log_probs_of(logits: Float[Tensor, "*row vocabulary"], tokens: Int[Tensor, "*row k"]) -> Float[Tensor, "*row k"]:
    """The log-probabilities of these tokens, in float32 or better."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return torch.log_softmax(logits, -1, dtype=wide).gather(-1, tokens)


def shown_to(logits: Float[Tensor, "row vocabulary"], count: int) -> list[Candidates]:
    """The likeliest tokens of every row and their log-probabilities, whatever rules forbid."""
    if not count:
        return [()] * len(logits)
    _, tokens = top(logits, count)
    pairs = zip(tokens.tolist(), log_probs_of(logits, tokens).tolist(), strict=True)
    return [tuple(zip(row, log_probs, strict=True)) for row, log_probs in pairs]
