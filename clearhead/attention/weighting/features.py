"""Feature maps φ for kernelized attention: the score is φ(q)·φ(k), never negative."""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.modes import outside_modes
from clearhead.attention.parts import HeadShape, MadeFor, Part
from clearhead.attention.similarity import DotForm
from clearhead.errors import OptionError

__all__ = ["FEATURES", "Elu", "FeatureDot", "Features", "RandomFeatures", "Relu", "SoftmaxFeatures"]


class Features(Part, ABC):
    """φ: vectors of d_head numbers to vectors of features, none negative."""

    def build(self, shape: HeadShape) -> "Features":
        """The map with values of its own, for one layer; itself if it has none."""
        return self

    @abstractmethod
    def map(self, vectors: Tensor) -> Tensor:
        """φ of each vector."""


@final
@dataclass(frozen=True)
class Elu(Features):
    """elu(x) + 1 (Katharopoulos et al., 2020)."""

    def map(self, vectors: Tensor) -> Tensor:
        # Not F.elu: torch 2.13 takes its gradient to have the strides of the input, where it has those of the gradient
        # that comes in, and torch.compile(backend="aot_eager") then fails on a view of it.
        return F.relu(vectors) + torch.exp(vectors.clamp(max=0))


@final
@dataclass(frozen=True)
class Relu(Features):
    """relu(x); a query whose features meet none of the keys' gets zeros."""

    def map(self, vectors: Tensor) -> Tensor:
        return F.relu(vectors)


@final
@dataclass(frozen=True)
class SoftmaxFeatures(Features):
    """softmax over the vector's own entries."""

    def map(self, vectors: Tensor) -> Tensor:
        return torch.softmax(vectors, -1)


def positive_random(vectors: Tensor, projection: Tensor, factor: float | None) -> Tensor:
    """exp(w·x - |x|²/2) / √m for each row w: on average over w, φ(q)·φ(k) = exp(factor · q·k).

    No maximum is taken over the keys, so nothing of a later key reaches an earlier query.
    """
    scale = vectors.shape[-1] ** -0.5 if factor is None else factor
    x = vectors * scale**0.5
    exponent = x @ projection.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
    return torch.exp(exponent) * projection.shape[0] ** -0.5


def orthogonal_rows(count: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """Gaussian rows, orthogonal within each block of `width` of them: the same average, less variance."""
    blocks = []
    for start in range(0, count, width):
        gaussian = torch.randn(width, width, generator=generator, dtype=torch.float64)
        lengths = torch.randn(width, width, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
        turn, upper = torch.linalg.qr(gaussian)
        turn = turn * upper.diagonal().sign()  # QR fixes the signs otherwise, and a row could not point everywhere
        blocks.append((turn.T * lengths)[: count - start])
    return torch.cat(blocks).float()


@functools.lru_cache(maxsize=32)
def seeded_projection(count: int, width: int, seed: int) -> Tensor:
    with outside_modes():  # it is kept, and must serve training after inference mode
        return orthogonal_rows(count, width, torch.Generator().manual_seed(seed))


@final
@dataclass(frozen=True)
class RandomFeatures(Features):
    """FAVOR+ (Choromanski et al., 2021): φ(q)·φ(k) is exp(factor · q·k) on average, factor 1/√d_head unless given.

    A layer draws its own projection and saves it with its parameters; a bare spec draws from `seed`.
    """

    count: int = 128
    factor: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise OptionError(f"RandomFeatures: count must be 1 or more; came {self.count}")
        if self.factor is not None and not self.factor > 0:
            raise OptionError(f"RandomFeatures: factor must be above 0; came {self.factor}")

    def map(self, vectors: Tensor) -> Tensor:
        projection = seeded_projection(self.count, vectors.shape[-1], self.seed).to(vectors.device)
        return positive_random(vectors, projection, self.factor)

    def build(self, shape: HeadShape) -> Features:
        return DrawnFeatures(orthogonal_rows(self.count, shape.d_head), self.factor)


@final
class DrawnFeatures(nn.Module, Features):
    """Random features with the projection a layer drew, saved with the model."""

    projection: Tensor

    def __init__(self, projection: Tensor, factor: float | None) -> None:
        super().__init__()
        self.register_buffer("projection", projection)
        self.made_for = MadeFor(d_head=projection.shape[1])
        self.factor = factor

    def map(self, vectors: Tensor) -> Tensor:
        return positive_random(vectors, self.projection, self.factor)


@final
class FeatureDot(nn.Module, DotForm):
    """φ(q)·φ(k): the similarity that kernelized attention brings with it."""

    form: ClassVar[str] = "features"

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.features = features
        self.made_for = features.made_for

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.features.map(query), self.features.map(key)

    def build(self, shape: HeadShape) -> "FeatureDot":
        built = self.features.build(shape)
        return self if built is self.features else FeatureDot(built)


FEATURES: dict[str, Features] = {
    "elu": Elu(),
    "relu": Relu(),
    "softmax": SoftmaxFeatures(),
    "random": RandomFeatures(),
}
"""Every feature map by name."""
