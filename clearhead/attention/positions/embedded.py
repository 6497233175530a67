"""Positions added to the embeddings: sinusoidal, computed once and reused, and learned."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention.modes import has_numbers, is_captured
from clearhead.attention.positions.base import EmbeddedPosition, PositionTable, angle_dtype
from clearhead.errors import OptionError, ShapeError

Layout = Literal["interleaved", "halves"]


def sinusoid(positions: Tensor, d_model: int, *, base: float, layout: Layout) -> Float[Tensor, "*batch n d_model"]:
    """Return sin and cos of position / base^(2i/d_model): early dimensions turn fast, late ones slowly."""
    exact = angle_dtype(positions.device)
    frequency = base ** (-torch.arange(0, d_model, 2, device=positions.device, dtype=exact) / d_model)
    angle = positions.to(exact).unsqueeze(-1) * frequency
    if layout == "halves":
        return torch.cat([angle.sin(), angle.cos()], -1)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


@final
@dataclass(frozen=True)
class Sinusoidal(EmbeddedPosition):
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos of the same.

    Args:
        layout: `interleaved` as in the formula; `halves` puts all sines before the cosines.
        base: Base of the frequencies.
        first: The p of the first token.
        skips: Id of a token that takes no position: it gets zeros, and later tokens are counted without it. M2M100 has
            this and `first`.

    Raises:
        OptionError: If a value is out of range.

    >>> import clearhead as ch
    >>> ch.positions.Sinusoidal().embed(4)(2)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    scales_tokens: ClassVar[bool] = True
    layout: Layout = "interleaved"
    base: float = 10_000.0
    first: int = 0
    skips: int | None = None

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise OptionError(f"Sinusoidal: layout must be interleaved or halves; came {self.layout!r}")
        if not self.base > 0:
            raise OptionError(f"Sinusoidal: base must be above 0; came {self.base}")
        if self.first < 0:
            raise OptionError(f"Sinusoidal: first must be 0 or more; came {self.first}")

    def embed(self, d_model: int) -> "SinusoidalTable":
        if d_model < 2 or d_model % 2:
            raise OptionError(f"Sinusoidal: sines and cosines come in pairs, so d_model must be even; came {d_model}")
        return SinusoidalTable(self, d_model)


class SinusoidalTable(PositionTable):
    """The encoding of positions 0, 1, …: made once, grown when a longer sequence comes; nothing to save or learn."""

    like: Tensor

    def __init__(self, spec: Sinusoidal, d_model: int) -> None:
        super().__init__()
        self.spec, self.d_model, self.skips = spec, d_model, spec.skips
        self.register_buffer("like", torch.empty(0), persistent=False)  # has the module's dtype and device
        self.table = self.encode(torch.arange(0))

    def extra_repr(self) -> str:
        return f"{self.spec!r}, d_model={self.d_model}"

    def encode(self, positions: Tensor) -> Tensor:
        numbers = positions + self.spec.first if self.spec.first else positions
        exact = sinusoid(numbers, self.d_model, base=self.spec.base, layout=self.spec.layout)
        return exact.to(self.like.device, self.like.dtype)

    def forward(self, n: int, start: int = 0) -> Float[Tensor, "n d_model"]:
        if start < 0:
            raise ShapeError(
                f"sinusoidal positions are counted from 0; came start={start}. For others use .at(positions)"
            )
        stale = self.table.dtype != self.like.dtype or self.table.device != self.like.device
        if stale or start + n > self.table.shape[0]:
            with torch.inference_mode(False):  # what is kept must serve training too
                self.table = self.encode(torch.arange(max(start + n, 2 * self.table.shape[0])))
        return self.table[start : start + n]

    def at(self, positions: Tensor) -> Float[Tensor, "*batch n d_model"]:
        vectors = self.encode(positions)
        return vectors if self.skips is None else vectors.masked_fill((positions < 0).unsqueeze(-1), 0)


@final
@dataclass(frozen=True)
class Learned(EmbeddedPosition):
    """A learned vector for each position.

    Args:
        length: How many positions there are.
        first: Row of position 0 in the table; RoBERTa and BART have unused rows before it.
        skips: Id of a token that takes no position, as RoBERTa's padding: it gets the row before the first, and later
            tokens are counted without it.

    Raises:
        OptionError: If a number is out of range.

    >>> import clearhead as ch
    >>> ch.positions.Learned(8).embed(4)(3).shape
    torch.Size([3, 4])
    """

    length: int
    first: int = 0
    skips: int | None = None

    def __post_init__(self) -> None:
        if self.length < 1:
            raise OptionError(f"Learned: length must be 1 or more; came {self.length}")
        if self.first < 0:
            raise OptionError(f"Learned: first must be 0 or more; came {self.first}")
        if self.skips is not None and self.first < 1:
            raise OptionError("Learned: a token that takes no position gets the row before the first: set first to 1")

    def embed(self, d_model: int) -> "LearnedTable":
        if d_model < 1:
            raise OptionError(f"Learned: d_model must be 1 or more; came {d_model}")
        return LearnedTable(self.length, d_model, first=self.first, skips=self.skips)


class LearnedTable(PositionTable):
    """Learned vectors, `(first + length, d_model)`; asking past the last is an error, not a wrap."""

    def __init__(self, length: int, d_model: int, *, first: int = 0, skips: int | None = None) -> None:
        super().__init__()
        self.first, self.skips = first, skips
        self.table = nn.Parameter(torch.randn(first + length, d_model) * 0.02)

    def extra_repr(self) -> str:
        first = f", first={self.first}" if self.first else ""
        skips = "" if self.skips is None else f", skips={self.skips}"
        return f"length={self.length}, d_model={self.table.shape[1]}{first}{skips}"

    def forward(self, n: int, start: int = 0) -> Float[Tensor, "n d_model"]:
        self.check(start, start + n - 1)
        return self.table[self.first + start : self.first + start + n]

    def at(self, positions: Tensor) -> Float[Tensor, "*batch n d_model"]:
        if positions.numel() and has_numbers(positions) and not is_captured(positions):
            lowest = int(positions.min())
            self.check(0 if lowest == -1 and self.skips is not None else lowest, int(positions.max()))
        return self.table[positions + self.first if self.first else positions]

    @property
    def length(self) -> int:
        return self.table.shape[0] - self.first

    def check(self, first: int, last: int) -> None:
        if first < 0 or last >= self.length:
            raise ShapeError(
                f"learned positions: this table has positions 0 to {self.length - 1}, and {first} to {last} "
                "were asked for; shorten the text, or make the model with Learned(length) as long as the longest"
            )
