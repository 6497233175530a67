"""The graph of a model: who writes into the residual stream, and who reads from it.

A *sender* writes a vector at every place: the embeddings of tokens, positions and token types, each head (its part of
W_O), each feed-forward, the encoder's output, and a constant (biases of W_O, betas of norms). A *receiver* reads the
sum of senders: the query of each head, the key and value of each key-value head, each feed-forward, the encoder's
output, the output. An *edge* is what one sender gives to one receiver. Receivers that read the same sum by the same
map, as the queries of all heads of a layer, are one *port*. A classifier's n-grams are a sender that only its logits
read.

>>> from clearhead.circuits import Graph
>>> from clearhead.model import presets
>>> graph = Graph(presets.gpt2("tiny", vocabulary=20).build())
>>> len(graph.senders), len(graph.receivers), len(graph.edges)
(13, 27, 152)
>>> str(graph.edges[-1])
'decoder.1.feed_forward -> decoder.output'
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from clearhead.calls import public
from clearhead.circuits.forward import GraphPass
from clearhead.circuits.ports import Wiring
from clearhead.errors import OptionError
from clearhead.model.transformers import Transformer
from clearhead.tracing.names import Names, list_near

ARROW = " -> "


class Edge(NamedTuple):
    """What a sender gives to a receiver; written `sender -> receiver`.

    Attributes:
        sender: Name of the sender.
        receiver: Name of the receiver.

    >>> from clearhead.circuits import Edge
    >>> str(Edge("decoder.0.attention.head.1", "decoder.1.attention.query.0"))
    'decoder.0.attention.head.1 -> decoder.1.attention.query.0'
    """

    sender: str
    receiver: str

    def __str__(self) -> str:
        return f"{self.sender}{ARROW}{self.receiver}"

    @classmethod
    def read(cls, text: str) -> "Edge":
        """Return the edge with this text."""
        sender, arrow, receiver = text.partition(ARROW)
        if not arrow:
            raise OptionError(f"an edge is written 'sender{ARROW}receiver'; came {text!r:.120}")
        return cls(sender, receiver)


@final
@public
class Graph(Wiring):
    """Senders, receivers and edges of an encoder, a decoder or an encoder-decoder.

    Edges are numbered; the edges of one port follow one another, by sender and then by receiver.

    Args:
        model: The model.

    >>> import clearhead as ch
    >>> graph = ch.circuits.Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> str(graph.edges[0]).count(" -> ")
    1
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        check_sides(self.names)
        GraphPass.explore(self)

    @cached_property
    def edges(self) -> list[Edge]:
        return [
            Edge(sender, receiver)
            for port in self.ports.values()
            for sender in port.senders
            for receiver in port.receivers
        ]

    @cached_property
    def number(self) -> dict[Edge, int]:
        """Return the number of each edge."""
        return {edge: number for number, edge in enumerate(self.edges)}

    @cached_property
    def senders(self) -> list[str]:
        return list(dict.fromkeys(edge.sender for edge in self.edges))

    @cached_property
    def receivers(self) -> list[str]:
        return list(dict.fromkeys(edge.receiver for edge in self.edges))

    def select(self, edges: Iterable[Edge | str]) -> Tensor:
        """Return a mask over the graph's edges that is True for these."""
        mask = torch.zeros(len(self.edges), dtype=torch.bool)
        for edge in edges:
            mask[self.find(edge)] = True
        return mask

    def find(self, edge: Edge | str) -> int:
        """Return the number of an edge; OptionError, with the nearest name, if the model does not have it."""
        edge = Edge.read(edge) if isinstance(edge, str) else edge
        if edge in self.number:
            return self.number[edge]
        for name, names in ((edge.sender, self.senders), (edge.receiver, self.receivers)):
            if name not in names:
                raise OptionError(f"there is no {name!r:.80} in this graph; {list_near(name, names)}")
        raise OptionError(f"{edge}: the receiver does not read what this sender writes, which comes later or is lost")

    def mask(self, edges: Iterable[Edge | str] | Tensor) -> Tensor:
        """Return edges given by name, or as a mask, as a mask."""
        if not isinstance(edges, Tensor):
            return self.select(edges)
        if edges.shape[-1] != len(self.edges):
            raise OptionError(f"expected a mask of {len(self.edges)} edges; came {tuple(edges.shape)}")
        return edges

    @cached_property
    def inputs(self) -> dict[str, tuple[str, ...]]:
        """By sender, the receivers whose sums it is computed from; none for embeddings and the constant."""
        return {sender: tuple(self.receivers_of(sender)) for sender in self.senders}

    def receivers_of(self, sender: str) -> Iterator[str]:
        site, _, head = sender.rpartition(".head.")
        if site:
            shape = self.names.sites[site].shape
            shared = int(head) * shape.n_kv_heads // shape.n_heads
            yield from (f"{site}.query.{head}", f"{site}.key.{shared}", f"{site}.value.{shared}")
        elif sender in self.receivers:
            yield sender

    @cached_property
    def last(self) -> tuple[str, ...]:
        """Return the receivers that no sender is computed from: the output."""
        read = {receiver for receivers in self.inputs.values() for receiver in receivers}
        return tuple(receiver for receiver in self.receivers if receiver not in read)

    def edges_of(self, sender: str) -> Tensor:
        """Return a mask of all edges of a sender: patching them is patching the node."""
        return self.select(edge for edge in self.edges if edge.sender == sender)


def node_of(receiver: str) -> str:
    """Return the node that a receiver belongs to: of a query its head, of a key or value that key-value head.

    >>> node_of("decoder.0.attention.query.2"), node_of("decoder.1.feed_forward")
    ('decoder.0.attention.head.2', 'decoder.1.feed_forward')
    """
    return re.sub(r"\.(query|key|value)\.(\d+)$", r".head.\2", receiver)


def check_sides(names: Names) -> None:
    crossing = [name for name in names.sites if name.endswith(".cross")]
    if crossing and "encoder" not in names.sides:
        raise OptionError(f"{crossing[0]} reads an encoder that is not part of this model: give the whole model")
