"""Rotary positions (Su et al., 2021): queries and keys are turned, so that their product sees only the distance.

Scaling of rotary frequencies, by which a model trained on short texts reads longer ones. One class a kind.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

import torch
from einops import rearrange
from torch import Tensor

from clearhead.attention.positions.base import Position, angle_dtype
from clearhead.calls import CodeRepr
from clearhead.compiling import Operator
from clearhead.errors import OptionError, ShapeError
from clearhead.registry import kind, register


@kind("rotary scaling")
class RotaryScaling(CodeRepr, ABC):
    """Base class: change how fast the pairs of a rotary position turn.

    >>> import clearhead as ch
    >>> issubclass(ch.positions.YaRNScaling, ch.positions.RotaryScaling)
    True
    """

    @abstractmethod
    def scale(self, frequency: Tensor, base: float) -> Tensor:
        """Return the frequencies, one a pair and highest first; they were base^(-2i/width)."""


@final
@register
@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    """Every frequency divided by `factor` (Chen et al., 2023).

    Args:
        factor: Position p turns as p / factor did.

    >>> import clearhead as ch
    >>> position = ch.positions.Rotary(scaling=ch.positions.LinearScaling(4.0))
    """

    factor: float

    def __post_init__(self) -> None:
        check_positive(self, "factor")

    def scale(self, frequency: Tensor, base: float) -> Tensor:
        return frequency / self.factor


@final
@register
@dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    """Divide only the slow frequencies, as Llama 3.1 does.

    Args:
        factor: Divisor of the slow frequencies.
        low: Pairs that turn fewer times than this within the `original` context are divided.
        high: Pairs that turn more times than this stay; in between the two are mixed.
        original: Context length of the pre-training.

    Raises:
        OptionError: If a number is out of range.

    >>> import clearhead as ch
    >>> scaling = ch.positions.Llama3Scaling(8.0, low=1.0, high=4.0, original=8192)
    """

    factor: float
    low: float
    high: float
    original: int

    def __post_init__(self) -> None:
        check_positive(self, "factor", "low", "high", "original")
        if not self.low < self.high:
            raise OptionError(f"Llama3Scaling: low must be less than high; came {self.low} and {self.high}")

    def scale(self, frequency: Tensor, base: float) -> Tensor:
        turns = self.original * frequency / (2 * math.pi)
        unscaled = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequency * (unscaled + (1 - unscaled) / self.factor)


@final
@register
@dataclass(frozen=True)
class YaRNScaling(RotaryScaling):
    """Divide the slow frequencies, along a straight line over the pairs (Peng et al., 2023).

    YaRN also makes the scores larger: that is the temperature of the weighting, `Softmax(temperature=...)`.

    Args:
        factor: Divisor of the slow frequencies.
        original: Context length of the pre-training.
        fast: The line begins at the pair that turns this often within the original context.
        slow: It ends at the pair that turns this often.
        whole: Round both ends outwards to an integer.

    >>> import clearhead as ch
    >>> scaling = ch.positions.YaRNScaling(4.0, original=2048)
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True

    def __post_init__(self) -> None:
        check_positive(self, "factor", "original", "fast", "slow")

    def scale(self, frequency: Tensor, base: float) -> Tensor:
        if base == 1:
            raise OptionError("YaRNScaling: with base = 1 all pairs turn alike, so none of them turns slowly")
        width = 2 * len(frequency)
        first, last = (
            width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.fast, self.slow)
        )
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        pairs = torch.arange(len(frequency), device=frequency.device, dtype=frequency.dtype)
        divided = ((pairs - first) / (last - first or 0.001)).clamp(0, 1)  # 0.001: a line must have a length
        return frequency * (1 - divided + divided / self.factor)


def check_positive(part: RotaryScaling, *names: str) -> None:
    for name in names:
        number = getattr(part, name)
        if not 0 < number < math.inf:
            raise OptionError(f"{type(part).__name__}: {name} must be above 0; came {number}")


Pairing = Literal["interleaved", "halves"]


def cos_and_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    return angle.cos(), angle.sin()


cos_and_sin_op = Operator(
    "cos_and_sin", cos_and_sin, like=lambda angle: (torch.empty_like(angle), torch.empty_like(angle))
)


@final
@dataclass(frozen=True)
class Rotary(Position):
    """Rotary positions (Su et al., 2021): turn pairs of entries by position x frequency.

    In kernelized attention it turns them before φ.

    Args:
        pairing: `interleaved` pairs (0, 1), (2, 3), … as the paper does; `halves` pairs (0, d/2), (1, d/2 + 1), … as
            Llama does.
        base: Base of the frequencies.
        width: How many entries turn, from the first; all if None.
        scaling: Changes the frequencies for longer texts.

    Raises:
        OptionError: If a value is out of range.

    >>> import clearhead as ch
    >>> layer = ch.Attention(16, heads=4, position=ch.positions.Rotary(pairing="halves"))
    """

    words: ClassVar[str] = "rotary positions"
    pairing: Pairing = "interleaved"
    base: float = 10_000.0
    width: int | None = None
    scaling: RotaryScaling | None = None

    def __post_init__(self) -> None:
        if self.pairing not in get_args(Pairing):
            raise OptionError(f"Rotary: pairing must be interleaved or halves; came {self.pairing!r}")
        if not self.base > 0:
            raise OptionError(f"Rotary: base must be above 0; came {self.base}")
        if self.width is not None and (self.width < 2 or self.width % 2):
            raise OptionError(f"Rotary: width must be even and at least 2, pairs are turned; came {self.width}")

    def angles(self, positions: Tensor, d_head: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of position x frequency, for each pair that is rotated."""
        width = d_head if self.width is None else self.width
        if width > d_head or width % 2:
            raise ShapeError(f"Rotary turns pairs: expected an even width of at most d_head = {d_head}; came {width}")
        exact = angle_dtype(positions.device)
        frequency = self.base ** (-torch.arange(0, width, 2, device=positions.device, dtype=exact) / width)
        if self.scaling is not None:
            frequency = self.scaling.scale(frequency, self.base)
        angle = rearrange(positions, "... n -> ... 1 n 1").to(exact) * frequency
        # Inlined by the compiler, cosines in float64 would be computed again for every entry that turns: on an H200
        # they were a tenth of a Llama's training step.
        if torch.compiler.is_compiling() and angle.is_cuda and cos_and_sin_op.registered:
            return cos_and_sin_op(angle)
        return cos_and_sin(angle)

    def pairs(self, d_head: int) -> list[tuple[int, int]]:
        """Return which entries turn together: pair i by angle i."""
        width = d_head if self.width is None else self.width
        if self.pairing == "interleaved":
            return [(first, first + 1) for first in range(0, width, 2)]
        return [(first, first + width // 2) for first in range(width // 2)]

    def turn_by(self, vectors: Tensor, angles: tuple[Tensor, ...]) -> Tensor:
        wide = torch.promote_types(vectors.dtype, torch.float32)
        cos, sin = (part.to(wide) for part in angles)
        width = 2 * cos.shape[-1]
        turning, staying = vectors[..., :width].to(wide), vectors[..., width:]
        split = "... (pair two) -> two ... pair" if self.pairing == "interleaved" else "... (two pair) -> two ... pair"
        join = "two ... pair -> ... (pair two)" if self.pairing == "interleaved" else "two ... pair -> ... (two pair)"
        a, b = rearrange(turning, split, two=2)
        turned = rearrange([a * cos - b * sin, a * sin + b * cos], join)
        turned = turned.to(vectors.dtype)
        return torch.cat([turned, staying], -1) if staying.shape[-1] else turned
