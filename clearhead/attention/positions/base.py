"""Base classes of positions: those that act inside attention, and those added to the embeddings before it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention.parts import HeadShape, Part, structure_of
from clearhead.attention.score_index import ScoreIndex
from clearhead.devices import widest_float
from clearhead.registry import kind

Angles = tuple[Tensor, ...]


@kind("position")
class Position(Part):
    """Base class of positions inside attention: they rotate queries and keys, or add a bias to each score."""

    bias_kind: ClassVar[str] = "none"
    """Kind of bias, by which kernels are chosen: `none`, `fixed`, or `learned` (it needs a gradient)."""
    shared = False
    """True if all layers of a stack with this part have the same learned values."""

    def build(self, shape: HeadShape) -> "Position":
        """Return the part with new learned values, for one layer; itself if it has none."""
        return self

    @property
    def structure(self) -> tuple[object, ...]:
        """Class and plain numbers it is made of: parts of one structure differ in their tensors alone."""
        return structure_of(self)

    def pairs(self, d_head: int) -> list[tuple[int, int]]:
        """Return which entries of a vector turn together, in the order of `angles`; none if it does not say."""
        return []

    @property
    def turns(self) -> bool:
        """True if it rotates queries and keys."""
        return type(self).turn_by is not Position.turn_by

    def angles(self, positions: Tensor, d_head: int) -> Angles:
        """Return what rotates vectors of this width at positions `(n,)` or `(batch, n)`; empty if nothing does."""
        return ()

    def turn_by(self, vectors: Tensor, angles: Angles) -> Tensor:
        """Return queries or keys `(batch, head, n, d)`, rotated by these angles."""
        return vectors

    def turn(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """Return queries or keys rotated by their positions."""
        return self.turn_by(vectors, self.angles(positions, vectors.shape[-1])) if self.turns else vectors

    def bias(self, cells: ScoreIndex, dtype: torch.dtype) -> Tensor | float:
        """Return what is added to the scaled score of each cell, in that dtype."""
        return 0.0


@final
@dataclass(frozen=True)
class NoPosition(Position):
    """No position: attention that does not know the order of tokens.

    >>> import clearhead as ch
    >>> layer = ch.Attention(16, heads=4, position=ch.positions.NoPosition())
    """

    words: ClassVar[str] = "no positions"


@kind("embedded position")
class EmbeddedPosition(Part, ABC):
    """Base class of positions that are added to the embeddings: `encoding = spec.embed(d_model); x + encoding(n)`.

    Attributes:
        skips: Id of a token that takes no position; None if every token takes one.

    >>> import clearhead as ch
    >>> issubclass(ch.positions.Sinusoidal, ch.positions.EmbeddedPosition)
    True
    """

    scales_tokens: ClassVar[bool] = False
    """Whether its vectors are as large as 1, so that token vectors beside them are scaled by √d_model to be so too."""
    skips: int | None = None
    """Id of a token that takes no position; None if every token takes one."""

    @abstractmethod
    def embed(self, d_model: int) -> "PositionTable":
        """Return a module that gives the `(n, d_model)` vectors to add."""


class PositionTable(nn.Module, ABC):
    """The vectors of positions, to be added to embeddings."""

    skips: int | None = None
    """Id of a token that takes no position; None if every token takes one."""

    @abstractmethod
    def forward(self, n: int, start: int = 0) -> Float[Tensor, "n d_model"]:
        """Return the vectors of positions `start` to `start + n - 1`."""

    @abstractmethod
    def at(self, positions: Tensor) -> Float[Tensor, "*batch n d_model"]:
        """Return the vectors of any positions, `(n,)` or `(batch, n)`."""

    @property
    def length(self) -> int | None:
        """Number of positions there are; None if any number."""
        return None

    def count(self, tokens: Tensor) -> Tensor | None:
        """Return the position of each token `(batch, n)`, -1 for those that take none; None if every token takes one.

        >>> from clearhead.attention.positions import Learned
        >>> Learned(8, first=1, skips=9).embed(4).count(torch.tensor([[5, 9, 6, 7]])).tolist()
        [[0, -1, 1, 2]]
        """
        if self.skips is None:
            return None
        takes = tokens != self.skips
        return takes.cumsum(-1) * takes - 1


def angle_dtype(device: torch.device) -> torch.dtype:
    """Return float64, so that an angle at position 100,000 keeps its digits; float32 if there is no float64."""
    return widest_float(device)
