"""The largest of a long row, and what turns logits into log-probabilities; in few passes over the logits."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decoding.hypotheses import Candidates

GROUP = 64
"""Neighbours looked at together: the k largest of a row lie in the k groups whose maxima are largest."""
SMALL = 1 << 16
"""Numbers below which one pass is quicker than groups."""


def top(values: Float[Tensor, "row vocabulary"], k: int) -> tuple[Float[Tensor, "row k"], Int[Tensor, "row k"]]:
    """Return the k largest of each row and their indices, the largest first; all of them if there are fewer."""
    n = values.shape[-1]
    k = min(k, n)
    grouped = n - n % GROUP
    if n < 32 * GROUP or 4 * k * GROUP > n or values.device.type != "cpu":
        return values.topk(k, -1)
    groups = values[:, :grouped].unflatten(-1, (-1, GROUP))
    best = groups.amax(-1).topk(k, -1).indices
    near = groups.gather(1, best.unsqueeze(-1).expand(-1, -1, GROUP)).flatten(1)
    index = (best.unsqueeze(-1) * GROUP + torch.arange(GROUP, device=values.device)).flatten(1)
    if grouped < n:
        tail = torch.arange(grouped, n, device=values.device).expand(len(values), -1)
        near, index = torch.cat([near, values[:, grouped:]], -1), torch.cat([index, tail], -1)
    chosen = near.topk(k, -1)
    return chosen.values, index.gather(-1, chosen.indices)


class LogSoftmax:
    """Log-probabilities of logits, in float32 or better, in memory that is used again at every step.

    Fresh memory of many megabytes is faulted in page by page, which takes longer than the arithmetic.
    """

    def __init__(self) -> None:
        self.buffer = torch.empty(0)

    def of(self, logits: Float[Tensor, "row vocabulary"]) -> Float[Tensor, "row vocabulary"]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        if logits.is_cpu:
            logits = logits.to(wide)  # within log_softmax it would be one number at a time
        if self.buffer.ndim < 2 or len(self.buffer) < len(logits):
            self.buffer = torch.empty_like(logits, dtype=wide)
        return torch.log_softmax(logits, -1, dtype=wide, out=self.buffer[: len(logits)])


def best(values: Float[Tensor, "row vocabulary"]) -> tuple[Float[Tensor, "row"], Int[Tensor, "row"]]:
    """Return the largest of each row and its index."""
    if values.numel() < SMALL:
        return values.max(-1)
    value, index = top(values, 1)
    return value.squeeze(-1), index.squeeze(-1)


def top_candidates(log_probs: Float[Tensor, "row vocabulary"], count: int) -> list[Candidates]:
    """Return the likeliest tokens of every row and their log-probabilities."""
    if not count:
        return [()] * len(log_probs)
    values, tokens = top(log_probs, count)
    return [tuple(zip(*pair, strict=True)) for pair in zip(tokens.tolist(), values.tolist(), strict=True)]
