"""Ports: receivers that read one sum of senders, and the matrix by which each head reads or writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention.heads import WholeMap
from clearhead.attention.layer import Attention
from clearhead.model.transformers import Transformer
from clearhead.tracing.names import names_of

Parts = Float[Tensor, "sender variant batch n d_model"]


class Term(NamedTuple):
    """One summand of what a port reads: a vector of a sender, and the norms that stand between, in order.

    The constant has a term for each bias and each beta; every other sender has one.
    """

    sender: str
    vector: str
    norms: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Port:
    """Receivers that read the same sum, each by its own matrix."""

    name: str
    receivers: tuple[str, ...]
    terms: tuple[Term, ...]
    first: int
    """The number of its first edge."""
    norms: tuple[str, ...] = ()
    """The norms that its receivers have before their maps, by name."""

    @cached_property
    def senders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(term.sender for term in self.terms))

    @property
    def shape(self) -> tuple[int, int]:
        """Return how many senders and receivers it has: its edges, in this order."""
        return len(self.senders), len(self.receivers)

    @property
    def edges(self) -> slice:
        """Return which of the graph's edges are its own."""
        return slice(self.first, self.first + len(self.senders) * len(self.receivers))


class Wiring:
    """A model's ports, in the order of its forward pass, and the matrices of its heads."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.names = model, names_of(model)
        self.ports: dict[str, Port] = {}
        self.matrices = Matrices(self.names.sites)
        self.biased = {name for name, layer in self.names.sites.items() if has_bias(layer)}
        """The attentions whose W_O has a bias, which is the constant's."""

    def add_port(self, name: str, receivers: Sequence[str], terms: Sequence[Term], norms: Sequence[str] = ()) -> None:
        first = sum(len(port.senders) * len(port.receivers) for port in self.ports.values())
        self.ports[name] = Port(
            name=name, receivers=tuple(receivers), terms=tuple(terms), first=first, norms=tuple(norms)
        )


class HeadMatrices(NamedTuple):
    """What each head's map does to a vector: `x @ weight[head] + bias[head]`."""

    weight: Float[Tensor, "head d_in d_out"]
    bias: Float[Tensor, "head d_out"]


class Matrices(Mapping[str, HeadMatrices]):
    """By port, what each receiver's query, key or value is of its input; by attention, what W_O makes of a head.

    Each is worked out when it is first asked for: together they are a copy of the model's attentions.
    """

    def __init__(self, sites: Mapping[str, Attention]) -> None:
        self.sites = sites
        self.names = [name for at in sites for name in (at, *(f"{at}.{role}" for role in ("query", "key", "value")))]
        self.found: dict[str, HeadMatrices] = {}

    def __getitem__(self, name: str) -> HeadMatrices:
        if name not in self.found:
            at, _, role = name.rpartition(".")
            layer = self.sites[name] if name in self.sites else self.sites[at]
            self.found[name] = (
                output_matrices(layer) if name in self.sites else head_matrices(getattr(layer, role), layer.d_model)
            )
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def value_width(layer: Attention) -> int:
    """Return d_value, which a map of the user's own may choose."""
    return layer.value(next(layer.parameters()).new_zeros(1, 1, layer.d_model)).shape[-1]


def has_bias(layer: Attention) -> bool:
    """Return whether W_O adds something to nothing; a part of the user's own is asked by what it does."""
    if getattr(layer.output, "bias", None) is not None:
        return True
    with torch.no_grad():
        nothing = next(layer.parameters()).new_zeros(1, layer.shape.n_heads * value_width(layer))
        return bool(layer.output(nothing).any())


def head_matrices(head_map: nn.Module, d_model: int) -> HeadMatrices:
    """Return the matrix of each head of a map, found by applying the map to the unit vectors, whatever its kind."""
    apply = head_map.map_linearly if isinstance(head_map, WholeMap) else head_map
    reference = next(head_map.parameters())
    unit = torch.eye(d_model, device=reference.device, dtype=reference.dtype).unsqueeze(0)
    with torch.no_grad():
        bias = apply(torch.zeros_like(unit[:, :1]))
        return HeadMatrices((apply(unit) - bias)[0], bias[0, :, 0])


def output_matrices(layer: Attention) -> HeadMatrices:
    """Return what W_O makes of the context of each head; the bias, which belongs to no head, once."""
    reference = next(layer.parameters())
    with torch.no_grad():
        n_heads, d_value = layer.shape.n_heads, value_width(layer)
        unit = torch.eye(n_heads * d_value, device=reference.device, dtype=reference.dtype)
        bias = layer.output(torch.zeros_like(unit[:1]))
        return HeadMatrices((layer.output(unit) - bias).unflatten(0, (n_heads, d_value)), bias)
