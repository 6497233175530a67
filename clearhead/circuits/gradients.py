"""Methods by gradients: the change that a patched edge would make, to first order.

Edge attribution patching (EAP): what the sender would send instead, times the gradient at the receiver's input. It is
the derivative of the metric by the edge's mask. The others take that gradient elsewhere, or follow it by other rules.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from einops import einsum
from torch import Tensor, nn

from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.kernels import run
from clearhead.circuits.forward import Listener, Patch, Statistics, freeze
from clearhead.circuits.methods import Contrast, Method, Scores
from clearhead.circuits.ports import Port
from clearhead.model.norms import FrozenNorm
from clearhead.registry import register
from clearhead.taps import replacing

Normalize = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Gradients(Listener):
    """Keeps what receivers read, to take gradients there; `start` may move the embedded texts somewhere else."""

    start: Callable[[str, Tensor], Tensor] = lambda side, vector: vector
    wholes: dict[str, Tensor] = field(default_factory=dict)
    read: dict[str, tuple[Tensor, Normalize, Tensor]] = field(default_factory=dict)
    """By port of heads: the stream, its norm, and the queries, keys or values."""
    contexts: dict[str, tuple[AttentionInputs, Tensor]] = field(default_factory=dict)

    def embedded(self, side: str, vector: Tensor) -> Tensor:
        return self.start(side, vector).detach().requires_grad_()

    def whole(self, port: Port, x: Tensor) -> Tensor:
        self.wholes[port.name] = x.view_as(x)
        return self.wholes[port.name]

    def heads(self, port: Port, x: Tensor, normalize: Normalize, mapped: Tensor) -> Tensor:
        self.read[port.name] = x.detach(), normalize, mapped
        return mapped

    def context(self, at: str, call: object, context: Tensor) -> Tensor:
        assert isinstance(call, AttentionInputs)
        self.contexts[at] = call, context
        return context

    def take(self, value: Tensor) -> dict[str, Tensor]:
        """Return the gradients of a number by what every port, and every context, holds; by name."""
        tensors = {
            **self.wholes,
            **{name: mapped for name, (_, _, mapped) in self.read.items()},
            **{name: context for name, (_, context) in self.contexts.items()},
        }
        found = torch.autograd.grad(value, list(tensors.values()), allow_unused=True)
        filled = [
            torch.zeros_like(tensor) if gradient is None else gradient
            for tensor, gradient in zip(tensors.values(), found, strict=True)
        ]
        return dict(zip(tensors, filled, strict=True))

    def at_inputs(self, port: Port, weight: Tensor | None, gradient: Tensor) -> Tensor:
        """Return the gradient at the input of each receiver of a port, `(batch, receiver, n, d_model)`."""
        if weight is None:
            return gradient[0].unsqueeze(1)
        x, normalize, _ = self.read[port.name]
        at_normed = einsum(gradient, weight, "batch head n width, head d width -> batch head n d")
        with torch.enable_grad():
            expanded = x.unsqueeze(2).expand(-1, -1, len(port.receivers), -1, -1).detach().requires_grad_()
            normed = normalize(expanded)
            if normed is expanded:
                return at_normed
            [at_input] = torch.autograd.grad(normed, expanded, at_normed.unsqueeze(0))
        return at_input[0]


def edge_scores(
    contrast: Contrast, listener: Gradients, value: Tensor, skip: frozenset[str] = frozenset()
) -> tuple[Scores, dict[str, Tensor]]:
    """Return difference · gradient for every edge and pair, and the gradients; ports whose role is in `skip` stay 0."""
    gradients = listener.take(value)
    clean, source, graph = contrast.clean_run, contrast.source, contrast.graph
    scores = value.new_zeros(len(contrast), len(graph.edges))
    for port in graph.ports.values():
        if port.name.rpartition(".")[2] in skip:
            continue
        matrices = graph.matrices.get(port.name)
        at_inputs = listener.at_inputs(port, None if matrices is None else matrices.weight, gradients[port.name])
        difference = (source.contribution(port).to(value) - clean.contribution(port))[:, 0]
        found = einsum(difference, at_inputs, "s batch n d, batch r n d -> batch s r")
        scores[:, port.edges] = found.flatten(1)
    return scores, gradients


def attribute(contrast: Contrast, listener: Gradients | None = None, statistics: Statistics | None = None) -> Scores:
    """Return the scores by one forward and one backward pass."""
    listener = listener or Gradients()
    return edge_scores(contrast, listener, contrast.listened(listener, statistics=statistics).sum())[0]


def between(contrast: Contrast, share: float) -> Gradients:
    """Return a listener that moves the embedded texts: at 1 they are the clean ones, at 0 the others."""

    def start(side: str, vector: Tensor) -> Tensor:
        other = contrast.other_run.inputs[f"{side}.0.attention.query"]
        return other + share * (vector - other)

    return Gradients(start)


@final
@dataclass(frozen=True)
class EAP(Method):
    """Edge attribution patching: one gradient, at the clean texts."""

    def score(self, contrast: Contrast) -> Scores:
        return attribute(contrast)


@final
@dataclass(frozen=True)
class EAPIGInputs(Method):
    """EAP with integrated gradients: the mean of gradients on the way from the other texts' embeddings to the clean."""

    steps: int = 5

    def score(self, contrast: Contrast) -> Scores:
        total = None
        for step in range(1, self.steps + 1):
            scores = attribute(contrast, between(contrast, step / self.steps))
            total = scores if total is None else total + scores
            contrast.progress(step, self.steps)
        assert total is not None
        return total / self.steps


@final
@dataclass(frozen=True)
class CleanCorrupted(Method):
    """The mean of two gradients: at the clean texts, and at the others."""

    def score(self, contrast: Contrast) -> Scores:
        return (attribute(contrast) + attribute(contrast, between(contrast, 0.0))) / 2


@final
@dataclass(frozen=True)
class EAPIGActivations(Method):
    """EAP with integrated gradients over activations: each sender moves by itself, for all its receivers together."""

    steps: int = 5

    def score(self, contrast: Contrast) -> Scores:
        graph = contrast.graph
        scores = contrast.clean_value.new_zeros(len(contrast), len(graph.edges))
        shares = torch.arange(self.steps).to(scores) / self.steps  # from the clean value to just before the other
        for done, sender in enumerate(graph.senders):
            edges = graph.edges_of(sender).to(scores)
            mask = (shares[:, None, None] * edges).repeat(1, len(contrast), 1).requires_grad_()
            patch = Patch(mask, contrast.source, frozenset([sender]))
            [gradient] = torch.autograd.grad(contrast.listened(Listener(), patch=patch).sum(), mask)
            scores += (gradient * edges).sum(0)
            contrast.progress(done + 1, len(graph.senders))
        return scores / self.steps


def own_statistics(name: str, norm: nn.Module, x: Tensor) -> FrozenNorm:
    """Return a norm with the statistics of its input, through which no gradient goes."""
    return freeze(name, norm, x if x.ndim == 4 else x[:, :, 0])  # all heads read the same here


@final
@dataclass(frozen=True)
class RelP(Method):
    """Relevance patching: EAP with the rules of layer-wise relevance propagation in place of gradients.

    Norms keep their statistics (LN-rule); an activation passes back its output over its input (Identity-rule); of a
    product of two values each passes back half (Half-rule). Attention is followed by its gradient.
    """

    def score(self, contrast: Contrast) -> Scores:
        with replacing(contrast.graph.model, RelPRules().replace):
            return attribute(contrast, statistics=own_statistics)


class RelPRules:
    """Replaces values inside feed-forwards by equal ones whose gradients follow the rules of RelP."""

    def __init__(self) -> None:
        self.before: dict[str, Tensor] = {}

    def replace(self, path: str, value: Tensor) -> Tensor:
        part, _, name = path.rpartition(".")
        if not part.endswith("feed_forward") or not value.requires_grad:
            return value
        if name in ("pre_activation", "gate"):
            self.before[name] = value
        elif name == "activated_gate":
            return self.pass_ratio("gate", value)
        elif name == "hidden":
            plain = "pre_activation" in self.before
            return self.pass_ratio("pre_activation", value) if plain else value / 2 + value.detach() / 2
        return value

    def pass_ratio(self, before: str, value: Tensor) -> Tensor:
        x = self.before.pop(before)
        ratio = torch.where(x.detach() == 0, 0.0, value.detach() / x.detach())
        return value.detach() + ratio * (x - x.detach())


@final
@dataclass(frozen=True)
class AtPStar(Method):
    """AtP*: EAP with two fixes. For queries and keys the attention is computed with the changed ones, since a softmax
    that is sure has no gradient (QK fix); and sizes are averaged over gradients that leave out one block each, since
    direct and indirect effects may cancel (GradDrop).
    """

    drop: bool = True

    def score(self, contrast: Contrast) -> Scores:
        blocks = sorted({name.rpartition(".")[0] for name in contrast.graph.names.sites})
        if not self.drop or len(blocks) < 2:
            return self.fixed(contrast, Gradients())
        total = torch.zeros_like(contrast.clean_value).unsqueeze(1)
        for done, block in enumerate(blocks):
            total = total + self.fixed(contrast, Dropped(block)).abs()
            contrast.progress(done + 1, len(blocks))
        inside = [edge.receiver.startswith(tuple(f"{block}." for block in blocks)) for edge in contrast.graph.edges]
        return total / (len(blocks) - torch.tensor(inside).to(total))  # a receiver's own block gave it nothing

    def fixed(self, contrast: Contrast, listener: Gradients) -> Scores:
        value = contrast.listened(listener).sum()
        scores, gradients = edge_scores(contrast, listener, value, skip=frozenset(("query", "key")))
        for port in contrast.graph.ports.values():
            role = port.name.rpartition(".")[2]
            if role in ("query", "key"):
                found = attention_changes(contrast, listener, port, role, gradients)
                scores[:, port.edges] = found.flatten(1)
        return scores


class Dropped(Gradients):
    """Gradients that do not come back through what one block adds to the stream."""

    def __init__(self, block: str) -> None:
        super().__init__()
        self.block = block

    def branch(self, name: str, out: Tensor) -> Tensor:
        return out.detach() + 0 * out if name.startswith(f"{self.block}.") else out


def attention_changes(
    contrast: Contrast, listener: Gradients, port: Port, role: str, gradients: dict[str, Tensor]
) -> Tensor:
    """Return, `(batch, sender, receiver)`, the change of the contexts by a changed query or key, times the gradient."""
    at = port.name.rpartition(".")[0]
    graph, layer = contrast.graph, contrast.graph.names.sites[at]
    weight, bias = graph.matrices[port.name]
    call, context = listener.contexts[at]
    x, normalize, _ = listener.read[port.name]
    difference = contrast.source.contribution(port).to(x) - contrast.clean_run.contribution(port)
    found = []
    with torch.no_grad():
        for change in difference:
            inner = normalize(x + change)[0]
            mapped = torch.einsum("bnd,hdw->bhnw", inner, weight) + bias.unsqueeze(1)
            head_map = getattr(layer, role)
            mapped = head_map.normed(mapped) if hasattr(head_map, "normed") else mapped
            mapped = layer.position.turn(mapped, getattr(call.positions, role)) if layer.position.turns else mapped
            changed = run(layer.kernel, call.replace(**{role: mapped}))
            by_head = ((changed - context) * gradients[at]).sum((-2, -1))
            found.append(by_head.unflatten(1, (len(port.receivers), -1)).sum(-1))
    return torch.stack(found, 1)


register(EAP, option="eap")
register(EAPIGInputs, option="eap-ig")
register(EAPIGActivations, option="eap-ig-activations")
register(CleanCorrupted, option="clean-corrupted")
register(RelP, option="relp")
register(AtPStar, option="atp-star")
