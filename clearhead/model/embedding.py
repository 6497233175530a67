"""Embedding: from token ids to vectors, with their positions."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention import modes, request
from clearhead.attention.positions import EmbeddedPosition, Sinusoidal
from clearhead.calls import CodeRepr, public
from clearhead.errors import DtypeError, OptionError, ShapeError
from clearhead.model.norms import Norm
from clearhead.taps import Tapped

Tokens = Int[Tensor, "batch n"]
Vectors = Float[Tensor, "batch n d_model"]
UNSCALED = 0.02


@final
@public
@dataclass(frozen=True, kw_only=True)
class Embedding(CodeRepr):
    """Spec of an embedding: table, times √d_model if `scaled`, plus position, norm and dropout if given.

    A scaled table starts normal with variance 1 / d_model, so that vectors have unit variance (and so have the logits
    of a tied output); another starts with a deviation of 0.02.

    Args:
        position: Positions that are added; None for none.
        scaled: Multiply by √d_model.
        frozen: Do not train the table.
        norm: Norm of the sum.
        dropout: Dropout of the sum.
        segments: How many segments a text may have, each with a vector that is added, as in BERT.

    Raises:
        OptionError: If a number is out of range.

    >>> from clearhead.model import Embedding
    >>> embedding = Embedding(position=None, scaled=False)
    """

    position: EmbeddedPosition | None = Sinusoidal()
    scaled: bool = True
    frozen: bool = False
    norm: Norm | None = None
    dropout: float = 0.0
    segments: int | None = None

    def __post_init__(self) -> None:
        request.check_dropout(self.dropout)
        if self.segments is not None and self.segments < 1:
            raise OptionError(f"Embedding: segments must be 1 or more; came {self.segments}")
        if not isinstance(self.position, EmbeddedPosition | None):
            raise OptionError(
                f"Embedding: position must be one that is added to embeddings, Sinusoidal or Learned, or None; came "
                f"{self.position!r}. Rotary, ALiBi and T5Bias go into AttentionSpec(position=...)"
            )

    def stream(self, d_model: int) -> float:
        """Return the standard deviation of its vectors at the start, without the positions."""
        return 1.0 if self.scaled or self.norm is not None else UNSCALED

    def build(self, vocabulary: int, d_model: int, *, table: nn.Parameter | None = None) -> "TokenEmbedding":
        """Return the embedding with a new table, or with the table of another embedding."""
        return TokenEmbedding(self, vocabulary, d_model, table)


class TokenEmbedding(Tapped):
    """The built embedding; `table` is `(vocabulary, d_model)`."""

    def __init__(self, spec: Embedding, vocabulary: int, d_model: int, table: nn.Parameter | None) -> None:
        super().__init__()
        if vocabulary < 1 or d_model < 1:
            raise OptionError(f"vocabulary and d_model must be 1 or more; came {vocabulary} and {d_model}")
        if table is None:
            spread = d_model**-0.5 if spec.scaled else UNSCALED
            table = nn.Parameter(torch.randn(vocabulary, d_model) * spread, requires_grad=not spec.frozen)
        self.table = table
        self.factor = d_model**0.5 if spec.scaled else 1.0
        self.position = None if spec.position is None else spec.position.embed(d_model)
        self.segment = None if spec.segments is None else nn.Parameter(torch.randn(spec.segments, d_model) * UNSCALED)
        self.norm = None if spec.norm is None else spec.norm.build(d_model)
        self.dropout = spec.dropout

    def extra_repr(self) -> str:
        (vocabulary, d_model), scaled = self.table.shape, self.factor != 1
        segments = "" if self.segment is None else f", segments={len(self.segment)}"
        dropout = f", dropout={self.dropout}" if self.dropout else ""
        frozen = "" if self.table.requires_grad else ", frozen=True"
        return f"vocabulary={vocabulary}, d_model={d_model}, scaled={scaled}{frozen}{segments}{dropout}"

    def forward(
        self,
        tokens: Tokens,
        *,
        positions: Tensor | None = None,
        start: int = 0,
        segments: Tensor | None = None,
        encoded: Tensor | None = None,
    ) -> Vectors:
        """Return vectors of tokens at these positions, `(n,)` or `(batch, n)`; by default from `start` on.

        `segments` has the number of each token's segment; by default all are of the first. `encoded` has the vectors
        of positions 0, 1, … where they were made before, for sines take longer than reading them. Where a token takes
        no position, they are counted from the tokens: that is only so in an encoder, whose rows are all from 0 on.
        """
        x = F.embedding(tokens, self.table)
        x = self.tap("token", x if self.factor == 1 else x * self.factor)
        if self.segment is not None:
            x = x + self.tap("segment", F.embedding(check_segments(segments, tokens, self.segment), self.segment))
        elif segments is not None:
            raise OptionError("this model has no segments: leave them out, or give its Embedding(segments=...)")
        counted = self.count_positions(tokens)
        return self.with_position(x, positions=positions if counted is None else counted, start=start, encoded=encoded)

    def count_positions(self, tokens: Tokens) -> Tensor | None:
        """Return the position of each token where one takes none; None where they are 0, 1, …"""
        return None if self.position is None else self.position.count(tokens)

    def with_position(
        self, x: Vectors, *, positions: Tensor | None = None, start: int = 0, encoded: Tensor | None = None
    ) -> Vectors:
        """Add the vectors of the positions to those of the tokens, and normalise the sum where there is a norm."""
        if self.position is not None:
            if positions is None:
                added = self.position(x.shape[1], start)
            else:
                added = self.position.at(positions) if encoded is None else F.embedding(positions, encoded)
            # A table of sines is float32 whatever the weights are: their sum is rounded to what the weights are.
            x = (x + self.tap("position", added)).to(x.dtype)
        if self.norm is not None:
            x = self.norm(x if self.position is None and self.segment is None else self.tap("sum", x))
        if self.training and self.dropout:
            x = F.dropout(x, self.dropout)
        return self.tap("out", x)


def check_positions(positions: Tensor, tokens: Tokens) -> None:
    """Raise for positions that are not one whole number for each token."""
    if not isinstance(positions, Tensor) or positions.dtype not in (torch.int64, torch.int32):
        came = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
        raise DtypeError(f"positions: expected a tensor of int64 or int32; came {came}")
    if positions.shape not in (tokens.shape[1:], tokens.shape):
        raise ShapeError(f"positions: expected one for each token {tuple(tokens.shape)}; came {tuple(positions.shape)}")


def check_segments(segments: Tensor | None, tokens: Tokens, table: Tensor) -> Tokens:
    """Return the segment of each token, the first where none are given; raise where there is no such segment."""
    if segments is None:
        return torch.zeros_like(tokens)
    if segments.shape != tokens.shape:
        raise ShapeError(f"segments: expected one for each token {tuple(tokens.shape)}; came {tuple(segments.shape)}")
    if segments.numel() and modes.can_read(segments):
        low, high = (int(x) for x in torch.aminmax(segments))
        if low < 0 or high >= len(table):
            raise OptionError(
                f"segments go from 0 to {len(table) - 1} in this model; there is {low if low < 0 else high}"
            )
    return segments
