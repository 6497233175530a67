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
    """Run the model over texts, and keep what every sender sent: a source for patches.

    Args:
        graph: The graph of the model.
        texts: The texts.
        statistics: Returns the statistics of each norm; computed anew if None.

    Returns:
        What was sent, and the logits.
    """
    return run_graph(graph, texts, statistics=statistics, keep=True)


@final
@public
@dataclass(frozen=True, eq=False)
class MeanSource(EdgeSource):
    """The mean of what each sender sends over the texts of a run, place by place.

    Args:
        run: What `record` returned.

    >>> import torch, clearhead as ch
    >>> graph = ch.circuits.Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> texts = ch.circuits.Texts(tokens={"decoder": torch.tensor([[3, 1, 4], [3, 2, 4]])})
    >>> source = ch.circuits.MeanSource(ch.circuits.record(graph, texts))
    """

    run: Activations

    def contribution(self, port: Port, senders: Sequence[int] | None = None) -> Parts:
        return self.run.contribution(port, senders).mean(2, keepdim=True)


@final
@public
@dataclass(frozen=True)
class ZeroSource(EdgeSource):
    """Zero ablation: patched edges carry nothing.

    >>> from clearhead.circuits import ZeroSource
    >>> source = ZeroSource()
    """

    def contribution(self, port: Port, senders: Sequence[int] | None = None) -> Parts:
        return torch.zeros(len(port.senders if senders is None else senders), 1, 1, 1, 1)


@final
@public
@dataclass(frozen=True, eq=False)
class ConstantSource(EdgeSource):
    """A given vector for each sender, as its receivers get it; it may be learned. Senders without one send nothing.

    Args:
        vectors: By sender.

    >>> import torch
    >>> from clearhead.circuits import ConstantSource
    >>> source = ConstantSource({"decoder.0.attention.head.1": torch.zeros(16)})
    """

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
    """Return the logits of texts while these edges carry the source's values.

    Args:
        graph: The graph of the model.
        texts: The texts.
        edges: Edges, `sender -> receiver`, or a mask.
        source: What the edges carry.
        statistics: Returns the statistics of each norm; computed anew if None.

    Returns:
        Logits.
    """
    mask = graph.mask(edges).to(texts.device)
    logits = run_graph(graph, texts, patch=Patch(torch.atleast_2d(mask), source), statistics=statistics).logits
    return logits[0] if mask.ndim == 1 else logits


@public
def patch_path(graph: Graph, texts: Texts, path: Sequence[Edge | str], source: EdgeSource) -> Tensor:
    """Return the logits while one path of edges alone carries the change: path patching.

    The first edge carries the source's value; each next edge, what its sender then sends.

    Args:
        graph: The graph of the model.
        texts: The texts.
        path: Edges, each beginning where the one before it ends.
        source: What the first edge carries.

    Returns:
        Logits.

    Raises:
        OptionError: If the edges do not form a path.

    >>> import torch, clearhead as ch
    >>> from clearhead.circuits import Graph, Texts, ZeroSource, patch_path
    >>> graph = Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> texts = Texts(tokens={"decoder": torch.tensor([[3, 1, 4]])})
    >>> patch_path(graph, texts, ["decoder.0.attention.head.1 -> decoder.output"], ZeroSource()).shape
    torch.Size([1, 3, 20])
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
