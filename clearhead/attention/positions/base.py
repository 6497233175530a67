"""What a position part is: something that acts inside attention, or something added to the embeddings before it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention.parts import HeadShape, Part
from clearhead.attention.score_index import ScoreIndex
from clearhead.devices import widest_float
from clearhead.registry import kind

__all__ = ["EmbeddedPosition", "NoPosition", "Position", "PositionTable", "angle_dtype"]


Angles = tuple[Tensor, ...]


@kind("position")
class Position(Part):
    """Acts inside attention: turns queries and keys by their positions, or adds a bias to each score."""

    bias_kind: ClassVar[str] = "none"
    """What kernels choose by: `none`, `fixed`, or `learned` (it needs a gradient)."""

    def build(self, shape: HeadShape) -> "Position":
        """The part with values of its own, for one layer; itself if it has none."""
        return self

    @property
    def structure(self) -> tuple[object, ...]:
        """The class and plain numbers it is made of: parts of one structure differ in their tensors alone."""
        return (type(self),)

    def pairs(self, d_head: int) -> list[tuple[int, int]]:
        """Return which entries of a vector turn together, in the order of `angles`; none where it does not say."""
        return []

    @property
    def turns(self) -> bool:
        """Whether it turns vectors."""
        return type(self).turned is not Position.turned

    def angles(self, positions: Tensor, d_head: int) -> Angles:
        """What turns vectors of this width at positions `(n,)` or `(batch, n)`; nothing, unless it turns them."""
        return ()

    def turned(self, vectors: Tensor, angles: Angles) -> Tensor:
        """Queries or keys `(batch, head, n, d)`, turned."""
        return vectors

    def turn(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys as their positions turn them."""
        return self.turned(vectors, self.angles(positions, vectors.shape[-1])) if self.turns else vectors

    def bias(self, cells: ScoreIndex, dtype: torch.dtype) -> Tensor | float:
        """What is added to the scaled score of each cell, in that dtype."""
        return 0.0


@final
@dataclass(frozen=True)
class NoPosition(Position):
    """Attention that knows nothing of order."""

    words: ClassVar[str] = "no positions"


@kind("embedded position")
class EmbeddedPosition(Part, ABC):
    """Added to the embeddings, before any attention: `encoding = spec.embed(d_model); x + encoding(n)`."""

    scales_tokens: ClassVar[bool] = False
    """Whether its vectors are as large as 1, so that token vectors beside them are scaled by √d_model to be so too."""

    @abstractmethod
    def embed(self, d_model: int) -> "PositionTable":
        """A module that gives the `(n, d_model)` vectors to add."""


class PositionTable(nn.Module, ABC):
    """The vectors of positions, to be added to embeddings."""

    @abstractmethod
    def forward(self, n: int, start: int = 0) -> Float[Tensor, "n d_model"]:
        """The vectors of positions `start` to `start + n - 1`."""

    @abstractmethod
    def at(self, positions: Tensor) -> Float[Tensor, "*batch n d_model"]:
        """The vectors of any positions, `(n,)` or `(batch, n)`."""

    @property
    def length(self) -> int | None:
        """How many positions there are; None if any number."""
        return None


def angle_dtype(device: torch.device) -> torch.dtype:
    """float64, so that an angle at position 100,000 keeps its digits; float32 where the device has no float64."""
    return widest_float(device)
