"""Patching: edges that carry what a sender sent in another text, its mean over texts, nothing, or a given vector.

An edge carries its sender's share of the receiver's input. Without norms, and in pre-norm, that is what the sender
wrote, and the receiver's norm, live, sees the changed sum. In post-norm, where norms stand on the way, it is what those
norms make of it with the statistics of the run it comes from; so patching no edge is the clean run and patching all
edges the other run, whatever the norms are.

>>> import torch
>>> from clearhead.circuits import Graph, Texts, patch_edges, record
>>> from clearhead.model import presets
>>> graph = Graph(presets.gpt2("tiny", vocabulary=20).build())
>>> clean, other = (Texts(tokens={"decoder": torch.randint(20, (2, 5))}) for _ in range(2))
>>> logits = patch_edges(graph, clean, graph.edges, record(graph, other))
>>> torch.allclose(logits, record(graph, other).logits[0], atol=1e-5)
True
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from clearhead.calls import public
from clearhead.circuits.forward import Activations, EdgeSource, Patch, Statistics, run_graph
from clearhead.circuits.graph import Edge, Graph, node_of
from clearhead.circuits.ports import Parts, Port
from clearhead.circuits.texts import Texts
from clearhead.errors import OptionError


@public
def record(graph: Graph, texts: Texts, *, statistics: Statistics | None = None) -> Activations:
    """Run the model over texts, and keep what every sender sent: a source for patches."""
    return run_graph(graph, texts, statistics=statistics, keep=True)


@final
@public
@dataclass(frozen=True, eq=False)
class MeanSource(EdgeSource):
    """What each sender sends on average over the texts of a run, place by place."""

    run: Activations

    def contribution(self, port: Port, senders: Sequence[int] | None = None) -> Parts:
        return self.run.contribution(port, senders).mean(2, keepdim=True)


@final
@public
@dataclass(frozen=True)
class ZeroSource(EdgeSource):
    """Nothing: zero ablation."""

    def contribution(self, port: Port, senders: Sequence[int] | None = None) -> Parts:
        return torch.zeros(len(port.senders if senders is None else senders), 1, 1, 1, 1)


@final
@public
@dataclass(frozen=True, eq=False)
class ConstantSource(EdgeSource):
    """A given vector for each sender, as its receivers get it; it may be learned. Senders without one send nothing."""

    vectors: Mapping[str, Tensor]

    def contribution(self, port: Port, senders: Sequence[int] | None = None) -> Parts:
        some = next(iter(self.vectors.values()))
        names = port.senders if senders is None else [port.senders[number] for number in senders]
        rows = [self.vectors.get(sender, torch.zeros_like(some)) for sender in names]
        return torch.stack(rows)[:, None, None, None, :]


@public
def patch_edges(
    graph: Graph,
    texts: Texts,
    edges: Iterable[Edge | str] | Tensor,
    source: EdgeSource,
    *,
    statistics: Statistics | None = None,
) -> Tensor:
    """Return the logits of texts while these edges carry what the source has for them."""
    mask = graph.mask(edges).to(texts.device)
    logits = run_graph(graph, texts, patch=Patch(torch.atleast_2d(mask), source), statistics=statistics).logits
    return logits[0] if mask.ndim == 1 else logits


@public
def patch_path(graph: Graph, texts: Texts, path: Sequence[Edge | str], source: EdgeSource) -> Tensor:
    """Return the logits while one path of edges alone carries the change: path patching.

    The first edge carries what the source has; each next edge, what its sender then sends.
    """
    edges = [graph.edges[graph.find(edge)] for edge in path]
    for before, after in pairwise(edges):
        if node_of(before.receiver) != after.sender and not reaches_group(graph, before.receiver, after.sender):
            raise OptionError(
                f"a path goes on from where it came: after {before} an edge of {node_of(before.receiver)}"
            )
    for edge in edges:
        source = run_graph(graph, texts, patch=Patch(graph.select([edge]).unsqueeze(0).to(texts.device), source))
    assert isinstance(source, Activations)
    return source.logits[0]


def reaches_group(graph: Graph, receiver: str, sender: str) -> bool:
    """Check whether a key or value that several heads share is read by this head."""
    site, _, role_head = receiver.rpartition(".")
    at, role = site.rpartition(".")[::2]
    if role not in ("key", "value") or not sender.startswith(f"{at}.head."):
        return False
    shape = graph.names.sites[at].shape
    return int(sender.rpartition(".")[2]) * shape.n_kv_heads // shape.n_heads == int(role_head)
