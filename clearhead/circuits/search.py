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
        scores, begin = contrast.clean_value.new_zeros(len(contrast), len(contrast.only)), 0
        if saved := contrast.load():
            scores, begin = saved["scores"].to(scores), int(saved["edges"])
        while begin < len(edges):
            part = edges[begin : begin + contrast.variants_at_once]
            mask = torch.nn.functional.one_hot(part, len(contrast.only)).bool()
            scores[:, part] = (contrast.patched(mask) - contrast.clean_value).T
            begin += len(part)
            contrast.save({"scores": scores, "edges": torch.tensor(begin)})
            contrast.progress(begin, len(edges))
        return scores


@final
@dataclass(frozen=True)
class NodePatching(Method):
    """Patch every sender by itself, for all its receivers; each of its edges has that number.

    >>> from clearhead.circuits import NodePatching
    >>> method = NodePatching()
    """

    def score(self, contrast: Contrast) -> Scores:
        every = torch.stack([contrast.graph.edges_of(sender) for sender in contrast.graph.senders])
        changes = contrast.patched(every) - contrast.clean_value
        return changes.T @ every.to(changes)


@final
@dataclass(frozen=True)
class NodeAttribution(Method):
    """Attribution patching of nodes: the effect of all edges of a sender together, by one gradient.

    >>> from clearhead.circuits import NodeAttribution
    >>> method = NodeAttribution()
    """

    def score(self, contrast: Contrast) -> Scores:
        every = torch.stack([contrast.graph.edges_of(sender) for sender in contrast.graph.senders])
        scores = attribute(contrast)
        every = every.to(scores)
        return scores @ every.T @ every


@final
@dataclass(frozen=True)
class ACDC(Method):
    """Automatic circuit discovery: from the output back, remove each edge whose loss changes the metric little.

    An edge's score is the largest threshold at which it stays. Edges of one sender and port are tried one after
    another.

    Args:
        thresholds: Shares of the difference between clean and other texts.

    >>> from clearhead.circuits import ACDC
    >>> method = ACDC(thresholds=(0.01, 0.1))
    """

    by_pair: ClassVar[bool] = False
    thresholds: tuple[float, ...] = (0.001, 0.01, 0.03, 0.1, 0.3)

    def score(self, contrast: Contrast) -> Scores:
        scale = (contrast.clean_value - contrast.other_value).abs().mean().clamp(min=1e-9)
        scores = contrast.clean_value.new_zeros(1, len(contrast.graph.edges))
        thresholds, order = sorted(self.thresholds), self.backwards(contrast)
        if saved := contrast.load():
            scores, removed, now = saved["scores"].to(scores), saved["removed"], saved["now"].to(scores)
            first, tried = int(saved["threshold"]), int(saved["tried"])
        else:
            removed, now, first, tried = torch.zeros(len(order), dtype=torch.bool), contrast.clean_value, 0, 0
        for number in range(first, len(thresholds)):
            for place in range(tried, len(order)):
                removed[order[place]] = True
                [value] = contrast.patched(removed.unsqueeze(0))
                if (value - now).abs().mean() < thresholds[number] * scale:
                    now = value
                else:
                    removed[order[place]] = False
                tensors = {"scores": scores, "removed": removed, "now": now, "threshold": torch.tensor(number)}
                contrast.save({**tensors, "tried": torch.tensor(place + 1)})
                contrast.progress(number * len(order) + place + 1, len(thresholds) * len(order))
            scores[0, ~removed] = thresholds[number]
            removed, now, tried = torch.zeros_like(removed), contrast.clean_value, 0
        return scores

    @staticmethod
    def backwards(contrast: Contrast) -> list[int]:
        """Return the numbers of edges from the output back."""
        ports = reversed(list(contrast.graph.ports.values()))
        return [edge for port in ports for edge in reversed(range(port.edges.start, port.edges.stop))]


@final
@dataclass(frozen=True)
class EdgePruning(Method):
    """Learned masks: gradient descent on a mask with hard-concrete noise keeps the metric with few edges.

    The score is how sure the mask is that an edge stays.

    Args:
        steps: Steps of the descent.
        rate: Learning rate.
        sparsity: Weight of the number of edges in the loss.
        seed: Random seed.

    >>> from clearhead.circuits import EdgePruning
    >>> method = EdgePruning(steps=50)
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
        begin = self.resume(contrast, logits, optimizer)
        for step in range(self.steps):
            noise = torch.rand(logits.shape, generator=generator, dtype=value.dtype).clamp(1e-4, 1 - 1e-4)
            if step < begin:
                continue  # the noise of steps that are done is drawn, so that the next has its own
            stays = torch.sigmoid((logits + torch.logit(noise).to(logits)) * 1.5)
            stays = (stays * 1.2 - 0.1).clamp(0, 1)  # stretched, so that it may be exactly 0 or 1
            patched = contrast.listened(Listener(), patch=Patch((1 - stays).unsqueeze(0), contrast.source))[0]
            loss = ((patched - value).abs() / scale).mean() + self.sparsity * torch.sigmoid(logits).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            contrast.save({"logits": logits.detach(), **optimizer.state[logits]})
            contrast.progress(step + 1, self.steps)
        return torch.sigmoid(logits.detach()).unsqueeze(0)

    @staticmethod
    def resume(contrast: Contrast, logits: Tensor, optimizer: torch.optim.Adam) -> int:
        """Take up logits and moments that were saved, and return how many steps are done."""
        saved = contrast.load()
        if not saved:
            return 0
        with torch.no_grad():
            logits.copy_(saved.pop("logits"))
        optimizer.state[logits] = {name: value if name == "step" else value.to(logits) for name, value in saved.items()}
        return int(saved["step"])


register(Exact, option="exact")
register(NodePatching, option="node-patching")
register(NodeAttribution, option="node-attribution")
register(ACDC, option="acdc")
register(EdgePruning, option="edge-pruning")
