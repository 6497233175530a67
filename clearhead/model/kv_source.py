"""Where an attention slot takes its keys and values from. The blocks are the same whichever it is.

In a forward pass they are computed from the sequence itself (`FromSelf`) or from the encoder's output (`FromMemory`);
in decoding the KV cache holds them. A model's forward is one piece of code, and takes one of these for each slot.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from clearhead.attention.layer import Attention
from clearhead.attention.masks import Mask
from clearhead.model.fast_step import FastStep


class KVSource(ABC):
    """Runs an attention layer on some vectors, and says where its keys and values come from."""

    @abstractmethod
    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        """Return the layer's output for these vectors."""

    def fast_step(self, layer: Attention) -> FastStep:
        """Return the layer as a function of one new position of every row: by default a call of `self`."""
        return lambda x: self(layer, x.unsqueeze(1)).squeeze(1)


class KVSources(NamedTuple):
    """The sources of one block: of its self-attention, and of its cross-attention."""

    attention: KVSource
    cross: KVSource | None = None


# Compared by identity, since torch 2.11's compiler hashes such an object before its fields are set.
@final
@dataclass(frozen=True, eq=False)
class FromSelf(KVSource):
    """Keys and values of the sequence itself; `mask` beside the layer's own, positions from 0 unless given."""

    mask: Mask | None = None
    positions: Tensor | None = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        return layer(x, mask=self.mask, query_positions=self.positions, key_positions=self.positions)


@final
@dataclass(frozen=True, eq=False)
class FromMemory(KVSource):
    """Keys and values of `memory`, the encoder's output. Both sequences count their positions from 0."""

    memory: Tensor
    mask: Mask | None = None
    positions: Tensor | None = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        if not layer.uses_positions:
            return layer(x, self.memory, mask=self.mask)
        n_query, n_key = x.shape[-2], self.memory.shape[-2]
        every = torch.arange(max(n_query, n_key), device=x.device)
        positions = every[:n_query] if self.positions is None else self.positions
        return layer(x, self.memory, mask=self.mask, query_positions=positions, key_positions=every[:n_key])
