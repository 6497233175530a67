"""The loss: cross-entropy with label smoothing, and R-Drop.

`wanted` holds the target token (or class) of each place, and `NOTHING` if there is none.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.training import cross_entropy_gpu

NOTHING = -100
Logits = Float[Tensor, "place choice"]
TargetIds = Int[Tensor, "place"]


class Loss(NamedTuple):
    """Sums over the places that have a target: the objective to train on, and the plain negative log-likelihood."""

    objective: Float[Tensor, ""]
    nll: Float[Tensor, ""]


def cross_entropy(logits: Logits, targets: TargetIds, smoothing: float = 0.0) -> Loss:
    """Return the sum of -log p(target). With smoothing e, the target has weight 1 - e, and any choice with
    e / choices.

    >>> import torch
    >>> logits, targets = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, NOTHING])
    >>> round(cross_entropy(logits, targets).nll.item(), 4)
    0.2395
    """
    if cross_entropy_gpu.serves(logits):
        return Loss(*cross_entropy_gpu.cross_entropy(logits, targets, smoothing))
    if smoothing == 0:
        nll = F.cross_entropy(at_least_float32(logits), targets, ignore_index=NOTHING, reduction="sum")
        return Loss(nll, nll.detach())
    return loss_from_log_probs(torch.log_softmax(at_least_float32(logits), -1), targets, smoothing)


def at_least_float32(logits: Logits) -> Logits:
    """Return logits in float32 or wider: half precision is too coarse for a sum over a vocabulary."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def loss_from_log_probs(log_probs: Logits, targets: TargetIds, smoothing: float) -> Loss:
    nll = F.nll_loss(log_probs, targets, ignore_index=NOTHING, reduction="sum")
    if smoothing == 0:
        return Loss(nll, nll.detach())
    spread = -log_probs.mean(-1).masked_fill(targets == NOTHING, 0).sum()
    return Loss((1 - smoothing) * nll + smoothing * spread, nll.detach())


def r_drop(logits: Logits, targets: TargetIds, smoothing: float, weight: float) -> Loss:
    """Return R-Drop's loss of logits that hold the same places twice, from passes with different dropout: the mean of
    both cross-entropies, and `weight` / 4 times the divergence of each answer from the other, so that the two come to
    agree.

    This is half of what Liang et al. (2021) write, -log p - log q + weight / 2 (KL(p, q) + KL(q, p)): the gradient of
    a batch stays as large as without R-Drop, and `weight` is their alpha.
    """
    if cross_entropy_gpu.serves(logits):
        return Loss(*cross_entropy_gpu.r_drop(logits, targets, smoothing, weight))
    log_probs = torch.log_softmax(at_least_float32(logits), -1)
    p, q = log_probs.chunk(2)
    nothing, _ = (targets == NOTHING).chunk(2)
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1).masked_fill(nothing, 0).sum()
    cross_entropies = loss_from_log_probs(log_probs, targets, smoothing)
    return Loss(cross_entropies.objective / 2 + weight / 4 * divergence, cross_entropies.nll / 2)
