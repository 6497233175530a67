"""Biases by distance: ALiBi (Press et al., 2022) and T5's learned buckets (Raffel et al., 2020)."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from clearhead.attention.parts import HeadShape, MadeFor
from clearhead.attention.positions.base import Position
from clearhead.attention.score_index import ScoreIndex
from clearhead.errors import NotBuiltError, OptionError


def alibi_slope(head: Tensor, n_heads: int, dtype: torch.dtype) -> Tensor:
    """Return a geometric series over the heads: 2^(-8/n), 2^(-16/n), …; heads past a power of two fill in between."""
    power = 2 ** math.floor(math.log2(n_heads))
    exponent = torch.where(head < power, 8 * (head + 1), 4 * (2 * (head - power) + 1))
    return torch.exp2(-exponent.to(dtype) / power)


@final
@dataclass(frozen=True)
class ALiBi(Position):
    """ALiBi (Press et al., 2022): subtracts slope × distance from each score, with a fixed slope for each head.

    >>> import clearhead as ch
    >>> layer = ch.Attention(16, heads=4, position=ch.positions.ALiBi())
    """

    words: ClassVar[str] = "ALiBi bias"
    bias_kind: ClassVar[str] = "fixed"

    def bias(self, cells: ScoreIndex, dtype: torch.dtype) -> Tensor:
        slope = alibi_slope(cells.head, cells.n_heads, dtype)
        if cells.by_index:  # an index is exact in float32, and a GPU subtracts floats faster
            wide = torch.promote_types(dtype, torch.float32)
            return -slope * (cells.query.to(wide) - cells.key.to(wide)).abs().to(dtype)
        return -slope * (cells.query - cells.key).abs()


@final
@dataclass(frozen=True)
class T5Bias(Position):
    """T5's bias: a learned number for each head and bucket of distances. Far distances share a bucket.

    Args:
        buckets: Number of buckets.
        reach: Distances from here on share the last bucket.
        two_sided: Keep half of the buckets for keys after the query; if False they share the bucket of distance 0.
        shared: All layers of a stack use one table, as in T5.

    Raises:
        OptionError: If a number is out of range.

    >>> import clearhead as ch
    >>> layer = ch.Attention(16, heads=4, position=ch.positions.T5Bias(buckets=8, reach=16))
    """

    words: ClassVar[str] = "T5 bias"
    bias_kind: ClassVar[str] = "learned"
    buckets: int = 32
    reach: int = 128
    two_sided: bool = True
    shared: bool = False

    def __post_init__(self) -> None:
        least = 4 if self.two_sided else 2
        if self.buckets < least or self.buckets % 2 or self.reach <= self.buckets // 2:
            raise OptionError(
                f"T5Bias: buckets must be even and at least {least}, reach more than half of them; "
                f"came buckets={self.buckets}, reach={self.reach}"
            )

    def bias(self, cells: ScoreIndex, dtype: torch.dtype) -> Tensor:
        raise NotBuiltError(
            "T5Bias has learned values and none to start from: use it in clearhead.Attention(position=...), "
            "or build it first: position.build(clearhead.HeadShape(n_heads=..., n_kv_heads=..., d_head=...))"
        )

    def build(self, shape: HeadShape) -> "LearnedT5Bias":
        return LearnedT5Bias(self, shape.n_heads)

    def bucket(self, ahead: Tensor) -> Tensor:
        """Return the bucket of a distance, `ahead` = key position - query position."""
        half = self.buckets // 2 if self.two_sided else self.buckets
        side = (ahead > 0) * half if self.two_sided else torch.zeros_like(ahead)
        distance = ahead.abs() if self.two_sided else (-ahead).clamp(min=0)
        exact = half // 2
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.reach / exact) * (half - exact)
        far = (exact + growth.long()).clamp(max=half - 1)
        return side + torch.where(distance < exact, distance, far)


class LearnedT5Bias(nn.Module, Position):
    """T5's bias with its table, `(buckets, n_heads)`."""

    words: ClassVar[str] = T5Bias.words
    bias_kind: ClassVar[str] = "learned"

    def __init__(self, spec: T5Bias, n_heads: int) -> None:
        super().__init__()
        self.spec = spec
        self.made_for = MadeFor(n_heads=n_heads)
        self.table = nn.Parameter(torch.randn(spec.buckets, n_heads) * 0.02)

    def extra_repr(self) -> str:
        return f"{self.spec!r}, heads={self.made_for.n_heads}"

    @property
    def structure(self) -> tuple[object, ...]:
        return (LearnedT5Bias, self.spec)

    def bias(self, cells: ScoreIndex, dtype: torch.dtype) -> Tensor:
        return self.table[self.spec.bucket(cells.key - cells.query), cells.head].to(dtype)

    def of_head(self, head: int) -> "LearnedT5Bias":
        return self  # the cells say which head they belong to
