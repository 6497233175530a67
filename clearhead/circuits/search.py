"""Methods that run the patched model: exact patching of edges and nodes, ACDC, and masks that are learned."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from clearhead.circuits.forward import Listener, Patch
from clearhead.circuits.gradients import attribute
from clearhead.circuits.methods import Contrast, Method, Scores
from clearhead.registry import register


@final
@dataclass(frozen=True)
class Exact(Method):
    """Patch every edge by itself, and measure."""

    def score(self, contrast: Contrast) -> Scores:
        edges = contrast.only.nonzero().flatten()
        scores = contrast.clean_value.new_zeros(len(contrast), len(contrast.only))
        for done, part in enumerate(parts := edges.split(contrast.variants_at_once)):
            mask = torch.nn.functional.one_hot(part, len(contrast.only)).bool()
            scores[:, part] = (contrast.patched(mask) - contrast.clean_value).T
            contrast.progress(done + 1, len(parts))
        return scores


@final
@dataclass(frozen=True)
class NodePatching(Method):
    """Patch every sender by itself, for all its receivers; each of its edges has that number."""

    def score(self, contrast: Contrast) -> Scores:
        every = torch.stack([contrast.graph.edges_of(sender) for sender in contrast.graph.senders])
        changes = contrast.patched(every) - contrast.clean_value
        return changes.T @ every.to(changes)


@final
@dataclass(frozen=True)
class NodeAttribution(Method):
    """Attribution patching of nodes: what the edges of a sender make together, by one gradient."""

    def score(self, contrast: Contrast) -> Scores:
        every = torch.stack([contrast.graph.edges_of(sender) for sender in contrast.graph.senders])
        scores = attribute(contrast)
        every = every.to(scores)
        return scores @ every.T @ every


@final
@dataclass(frozen=True)
class ACDC(Method):
    """Automatic circuit discovery: from the output back, take out each edge whose loss changes the metric little.

    It is run for several thresholds, shares of the difference between clean and other; an edge's score is the largest
    threshold at which it stays. Edges of one sender and port are tried one after another.
    """

    by_pair: ClassVar[bool] = False
    thresholds: tuple[float, ...] = (0.001, 0.01, 0.03, 0.1, 0.3)

    def score(self, contrast: Contrast) -> Scores:
        scale = (contrast.clean_value - contrast.other_value).abs().mean().clamp(min=1e-9)
        scores = contrast.clean_value.new_zeros(1, len(contrast.graph.edges))
        for done, threshold in enumerate(sorted(self.thresholds)):
            kept = self.prune(contrast, float(threshold * scale))
            scores[0, kept] = threshold
            contrast.progress(done + 1, len(self.thresholds))
        return scores

    def prune(self, contrast: Contrast, threshold: float) -> Tensor:
        """Return a mask of the edges that stay."""
        removed = torch.zeros(len(contrast.graph.edges), dtype=torch.bool)
        now = contrast.clean_value
        for port in reversed(list(contrast.graph.ports.values())):
            for edge in reversed(range(port.edges.start, port.edges.stop)):
                removed[edge] = True
                [value] = contrast.patched(removed.unsqueeze(0))
                if (value - now).abs().mean() < threshold:
                    now = value
                else:
                    removed[edge] = False
        return ~removed


@final
@dataclass(frozen=True)
class EdgePruning(Method):
    """Learned masks: as few edges as possible keep the metric, by gradient descent on a mask with hard-concrete noise.

    The score is how sure the mask is that an edge stays.
    """

    by_pair: ClassVar[bool] = False
    steps: int = 120
    rate: float = 0.1
    sparsity: float = 0.5
    seed: int = 0

    def score(self, contrast: Contrast) -> Scores:
        value = contrast.clean_value
        scale = (value - contrast.other_value).abs().mean().clamp(min=1e-9)
        generator = torch.Generator(device="cpu").manual_seed(self.seed)
        logits = torch.full((len(contrast.graph.edges),), 2.0, dtype=value.dtype, device=value.device)
        logits.requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=self.rate)
        for step in range(self.steps):
            noise = torch.rand(logits.shape, generator=generator, dtype=value.dtype).clamp(1e-4, 1 - 1e-4)
            stays = torch.sigmoid((logits + torch.logit(noise).to(logits)) * 1.5)
            stays = (stays * 1.2 - 0.1).clamp(0, 1)  # stretched, so that it may be exactly 0 or 1
            patched = contrast.listened(Listener(), patch=Patch((1 - stays).unsqueeze(0), contrast.source))[0]
            loss = ((patched - value).abs() / scale).mean() + self.sparsity * torch.sigmoid(logits).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            contrast.progress(step + 1, self.steps)
        return torch.sigmoid(logits.detach()).unsqueeze(0)


register(Exact, option="exact")
register(NodePatching, option="node-patching")
register(NodeAttribution, option="node-attribution")
register(ACDC, option="acdc")
register(EdgePruning, option="edge-pruning")
