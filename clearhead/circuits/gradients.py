"""Methods by gradients: the change that a patched edge would make, to first order.

Edge attribution patching (EAP): what the sender would send instead, times the gradient at the receiver's input. It is
the derivative of the metric by the edge's mask. The others take that gradient elsewhere, or follow it by other rules.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import final

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.kernels import run
from clearhead.circuits.forward import Listener, Patch, Statistics, freeze
from clearhead.circuits.methods import Contrast, Method, Scores
from clearhead.circuits.ports import Port, Term
from clearhead.model.norms import FrozenNorm
from clearhead.registry import register
from clearhead.taps import replacing

Normalize = Callable[[Tensor], Tensor]
ROLES = ("query", "key")
"""What AtP* sees through a softmax that is sure."""


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
        self.wholes[port.name] = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()  # n-grams' has none
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

    def at_inputs(self, contrast: Contrast, gradients: Mapping[str, Tensor], port: Port) -> Tensor:
        """Return the gradient at the input of each receiver of a port, `(batch, receiver, n, d_model)`."""
        if port.name not in self.read:
            return gradients[port.name][0].unsqueeze(1)
        x, normalize, _ = self.read[port.name]
        weight = contrast.graph.matrices[port.name].weight
        at_normed = einsum(gradients[port.name], weight, "batch head n width, head d width -> batch head n d")
        with torch.enable_grad():
            expanded = x.unsqueeze(2).expand(-1, -1, len(port.receivers), -1, -1).detach().requires_grad_()
            normed = normalize(expanded)
            if normed is expanded:
                return at_normed
            [at_input] = torch.autograd.grad(normed, expanded, at_normed.unsqueeze(0))
        return at_input[0]


class Changes:
    """What each sender would send in place of what it sends; made once for all ports that read it alike."""

    def __init__(self, contrast: Contrast) -> None:
        self.contrast = contrast
        self.made: dict[str, tuple[list[Term], Tensor]] = {}

    def of(self, port: Port) -> Float[Tensor, "sender batch n d_model"]:
        """Return the change of each sender of a port."""
        clean, source = self.contrast.clean_run, self.contrast.source
        terms: dict[str, list[Term]] = {}
        for term in port.terms:
            terms.setdefault(term.sender, []).append(term)
        new = [
            number
            for number, sender in enumerate(port.senders)
            if sender not in self.made or self.made[sender][0] != terms[sender]
        ]
        if new:
            own = clean.contribution(port, new)
            changes = (source.contribution(port, new).to(own) - own)[:, 0]
            for number, change in zip(new, changes, strict=True):
                sender = port.senders[number]
                self.made[sender] = terms[sender], change.expand_as(clean.inputs[port.name][0])
        return torch.stack([self.made[sender][1] for sender in port.senders])


def edge_scores(contrast: Contrast, at_inputs: Mapping[str, Tensor]) -> Scores:
    """Return change · gradient for every edge and pair, given the gradients at ports; edges of other ports stay 0."""
    scores = contrast.clean_value.new_zeros(len(contrast), len(contrast.graph.edges))
    changes = Changes(contrast)
    ports = [port for port in contrast.graph.ports.values() if port.name in at_inputs]
    # Queries, keys and values of a layer read the same senders: one product for all of them reads the changes once.
    for _, group in groupby(ports, key=lambda port: port.terms):
        together = list(group)
        gradient = torch.cat([at_inputs[port.name] for port in together], 1)
        found = torch.bmm(changes.of(together[0]).flatten(2).transpose(0, 1), gradient.flatten(2).transpose(1, 2))
        parts = found.split([len(port.receivers) for port in together], 2)
        for port, part in zip(together, parts, strict=True):
            scores[:, port.edges] = part.flatten(1)
    return scores


def attribute(contrast: Contrast, shares: Sequence[float] = (1.0,), statistics: Statistics | None = None) -> Scores:
    """Return the scores by a forward and a backward pass for each share of the way from the other texts to the clean.

    Scores are linear in gradients, so gradients are summed over the passes, and multiplied with the changes once.
    """
    sums: dict[str, Tensor] = {}
    for done, share in enumerate(shares):
        listener = between(contrast, share)
        gradients = listener.take(contrast.listened(listener, statistics=statistics).sum() / len(shares))
        for port in contrast.graph.ports.values():
            gradient = listener.at_inputs(contrast, gradients, port)
            sums[port.name] = sums[port.name].add_(gradient) if done else gradient
        contrast.progress(done + 1, len(shares))
    return edge_scores(contrast, sums)


def between(contrast: Contrast, share: float) -> Gradients:
    """Return a listener that moves the embedded texts: at 1 they are the clean ones, at 0 the others."""

    def start(side: str, vector: Tensor) -> Tensor:
        other = contrast.other_run.inputs[f"{side}.0.attention.query"]
        return other + share * (vector - other)

    return Gradients() if share == 1 else Gradients(start)


@final
@dataclass(frozen=True)
class EAP(Method):
    """Edge attribution patching: one gradient, at the clean texts."""

    def score(self, contrast: Contrast) -> Scores:
        return attribute(contrast)


@final
@dataclass(frozen=True)
class EAPIGInputs(Method):
    """EAP with integrated gradients: the mean of gradients between the other texts' embeddings and the clean ones.

    Args:
        steps: Steps of the integral.

    >>> from clearhead.circuits import EAPIGInputs
    >>> method = EAPIGInputs(steps=10)
    """

    steps: int = 5

    def score(self, contrast: Contrast) -> Scores:
        return attribute(contrast, [step / self.steps for step in range(1, self.steps + 1)])


@final
@dataclass(frozen=True)
class CleanCorrupted(Method):
    """The mean of two gradients: at the clean texts, and at the others.

    >>> from clearhead.circuits import CleanCorrupted
    >>> method = CleanCorrupted()
    """

    def score(self, contrast: Contrast) -> Scores:
        return attribute(contrast, (1.0, 0.0))


@final
@dataclass(frozen=True)
class EAPIGActivations(Method):
    """EAP with integrated gradients over activations: each sender moves by itself, for all its receivers together.

    Args:
        steps: Steps of the integral.

    >>> from clearhead.circuits import EAPIGActivations
    >>> method = EAPIGActivations(steps=10)
    """

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
    """Relevance patching: EAP with the rules of layer-wise relevance propagation instead of gradients.

    Norms keep their statistics (LN-rule); an activation passes back its output over its input (Identity-rule); each
    factor of a product passes back half (Half-rule). Attention is followed by its gradient.

    >>> from clearhead.circuits import RelP
    >>> method = RelP()
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
    """AtP*: EAP with two fixes.

    QK fix: for queries and keys, attention is computed with the changed ones, because a saturated softmax has no
    gradient. GradDrop: sizes are averaged over gradients that each leave out one block, because direct and indirect
    effects may cancel.

    Args:
        drop: Use GradDrop.

    >>> from clearhead.circuits import AtPStar
    >>> method = AtPStar(drop=False)
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
        gradients = listener.take(contrast.listened(listener).sum())
        fixed = {
            port: role for port in contrast.graph.ports.values() if (role := port.name.rpartition(".")[2]) in ROLES
        }
        others = [port for port in contrast.graph.ports.values() if port not in fixed]
        scores = edge_scores(contrast, {port.name: listener.at_inputs(contrast, gradients, port) for port in others})
        for port, role in fixed.items():
            scores[:, port.edges] = attention_changes(contrast, listener, port, role, gradients).flatten(1)
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
