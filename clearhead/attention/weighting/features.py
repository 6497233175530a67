"""Feature maps φ for kernelized attention: the score is φ(q)·φ(k), never negative."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.modes import outside_modes
from clearhead.attention.parts import HeadShape, MadeFor, Part
from clearhead.attention.similarity import DotForm, Scores, Similarity
from clearhead.devices import widest_float
from clearhead.errors import OptionError
from clearhead.registry import Examples, kind, register

MOST_FEATURES = 1 << 16
"""More than these for a stated accuracy are refused: softmax itself is cheaper for any length that fits in memory."""


@kind("feature map")
class Features(Part, ABC):
    """Base class of feature maps φ: from vectors of d_head numbers to vectors of features that are 0 or more.

    >>> import clearhead as ch
    >>> issubclass(ch.weighting.Relu, ch.weighting.Features)
    True
    """

    kind: ClassVar[str] = "plain"
    """`elu` or `relu`, which kernels may compute themselves; else `plain`."""

    def build(self, shape: HeadShape) -> "Features":
        """Return the map with new learned values, for one layer; itself if it has none."""
        return self

    @abstractmethod
    def map(self, vectors: Tensor) -> Tensor:
        """Return φ of each vector."""


class LogFeatures(Features):
    """Base class of feature maps that return log φ, because their features may be too large for a float.

    Normalised attention with it works on the logarithms throughout, and no row is lost to overflow or underflow.

    >>> import clearhead as ch
    >>> issubclass(ch.weighting.RandomFeatures, ch.weighting.LogFeatures)
    True
    """

    @abstractmethod
    def log_map(self, vectors: Tensor) -> Tensor:
        """Return log φ of each vector."""

    def map(self, vectors: Tensor) -> Tensor:
        return torch.exp(self.log_map(vectors))


@final
@dataclass(frozen=True)
class Elu(Features):
    """elu(x) + 1 (Katharopoulos et al., 2020).

    >>> import clearhead as ch
    >>> weighting = ch.weighting.Kernelized(ch.weighting.Elu())
    """

    kind: ClassVar[str] = "elu"

    def map(self, vectors: Tensor) -> Tensor:
        # Not F.elu: torch 2.13 takes its gradient to have the strides of the input, where it has those of the gradient
        # that comes in, and torch.compile(backend="aot_eager") then fails on a view of it.
        return F.relu(vectors) + torch.exp(vectors.clamp(max=0))


@final
@dataclass(frozen=True)
class Relu(Features):
    """relu(x). A query that shares no positive feature with any key gets zeros.

    >>> import clearhead as ch
    >>> weighting = ch.weighting.Kernelized(ch.weighting.Relu())
    """

    kind: ClassVar[str] = "relu"

    def map(self, vectors: Tensor) -> Tensor:
        return F.relu(vectors)


@final
@dataclass(frozen=True)
class SoftmaxFeatures(Features):
    """softmax over the vector's own entries.

    >>> import clearhead as ch
    >>> weighting = ch.weighting.Kernelized(ch.weighting.SoftmaxFeatures())
    """

    def map(self, vectors: Tensor) -> Tensor:
        return torch.softmax(vectors, -1)


def log_positive_random(vectors: Tensor, projection: Tensor, factor: float | None) -> Tensor:
    """Return w·x - |x|²/2 - log √m for each row w: on average over w, φ(q)·φ(k) = exp(factor · q·k)."""
    scale = vectors.shape[-1] ** -0.5 if factor is None else factor
    x = vectors * scale**0.5
    exponent = x @ projection.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
    return exponent - math.log(projection.shape[0]) / 2


def orthogonal_rows(count: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """Return Gaussian rows, orthogonal within each block of `width`: the same average, less variance."""
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
class RandomFeatures(LogFeatures):
    """FAVOR+ (Choromanski et al., 2021): φ(q)·φ(k) is exp(factor · q·k) on average.

    A layer draws its own projection and saves it with its parameters. How many features are enough depends on the size
    of the vectors; `for_accuracy` computes it.

    Args:
        count: Number of features.
        factor: 1/√d_head if None.
        seed: Seed of the projection of a bare spec, outside a layer.

    Raises:
        OptionError: If a number is out of range.

    >>> import clearhead as ch
    >>> layer = ch.Attention(16, heads=4, weighting=ch.weighting.Kernelized(ch.weighting.RandomFeatures(64)))
    """

    count: int = 128
    factor: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise OptionError(f"RandomFeatures: count must be 1 or more; came {self.count}")
        if self.factor is not None and not self.factor > 0:
            raise OptionError(f"RandomFeatures: factor must be above 0; came {self.factor}")

    @staticmethod
    def for_accuracy(
        error: float, *, d_head: int, std: float = 1.0, factor: float | None = None, seed: int = 0
    ) -> "RandomFeatures":
        """Return as many features as give each φ(q)·φ(k) this relative error, as a root mean square over projections.

        For independent rows w the variance of φ(q)·φ(k), relative to its square, is (exp(factor · |q + k|²) - 1) / m.
        Queries and keys with entries of standard deviation `std` have |q + k|² = 2 · d_head · std², about. Orthogonal
        rows, which are drawn here, do not do worse.

        >>> RandomFeatures.for_accuracy(0.1, d_head=64, std=0.25).count
        172
        """
        if not 0 < error < float("inf") or not 0 < std < float("inf") or d_head < 1:
            raise OptionError(
                "RandomFeatures.for_accuracy: error and std must be above 0 and finite, d_head 1 or more; "
                f"came error={error}, std={std}, d_head={d_head}"
            )
        size = 2 * d_head * std**2 * (d_head**-0.5 if factor is None else factor)
        count = math.inf if size > 700 else math.ceil(math.expm1(size) / error**2)  # exp goes no further
        if count > MOST_FEATURES:
            enough = math.sqrt(std**2 * math.log1p(MOST_FEATURES * error**2) / size)
            raise OptionError(
                f"RandomFeatures.for_accuracy: a relative error of {error} at d_head={d_head}, std={std} takes "
                f"{'more than 1e300' if count == math.inf else f'{count:.2g}'} features, and the most is "
                f"{MOST_FEATURES:,}, which are enough up to std={enough:.2g}. Make queries and keys smaller "
                "(normalise them, or lower the factor), allow more error, or use Softmax()"
            )
        return RandomFeatures(max(1, int(count)), factor=factor, seed=seed)

    def log_map(self, vectors: Tensor) -> Tensor:
        projection = seeded_projection(self.count, vectors.shape[-1], self.seed).to(vectors.device)
        return log_positive_random(vectors, projection, self.factor)

    def build(self, shape: HeadShape) -> Features:
        return DrawnFeatures(orthogonal_rows(self.count, shape.d_head), self.factor)


class DrawnFeatures(nn.Module, LogFeatures):
    """Random features with the projection a layer drew, saved with the model."""

    projection: Tensor

    def __init__(self, projection: Tensor, factor: float | None) -> None:
        super().__init__()
        self.register_buffer("projection", projection)
        self.made_for = MadeFor(d_head=projection.shape[1])
        self.factor = factor

    def extra_repr(self) -> str:
        count, d_head = self.projection.shape
        return f"count={count}, d_head={d_head}" + ("" if self.factor is None else f", factor={self.factor}")

    def log_map(self, vectors: Tensor) -> Tensor:
        return log_positive_random(vectors, self.projection, self.factor)


class FeatureDot(nn.Module, DotForm):
    """φ(q)·φ(k): the similarity that kernelized attention brings with it."""

    form: ClassVar[str] = "features"
    words: ClassVar[str] = "product of features φ(q)·φ(k)"
    formula: ClassVar[str] = "φ(query) · φ(key)"
    prepared: ClassVar[str] = "φ({})"

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.features = features
        self.made_for = features.made_for

    def extra_repr(self) -> str:
        return "" if isinstance(self.features, nn.Module) else f"features={self.features!r}"

    @property
    def feature_map(self) -> str:
        return self.features.kind

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.features.map(query), self.features.map(key)

    def build(self, shape: HeadShape) -> "FeatureDot":
        built = self.features.build(shape)
        return self if built is self.features else FeatureDot(built)


class LogFeatureDot(nn.Module, Similarity):
    """log φ(q)·φ(k), for features that are given by their logarithm; random features make it an estimate of q·k/√d."""

    form: ClassVar[str] = "log features"

    def __init__(self, features: LogFeatures) -> None:
        super().__init__()
        self.features = features
        self.made_for = features.made_for

    def extra_repr(self) -> str:
        return "" if isinstance(self.features, nn.Module) else f"features={self.features!r}"

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.features.log_map(query), self.features.log_map(key)

    def score(self, query: Tensor, key: Tensor) -> Scores:
        return log_products(query, key)

    def build(self, shape: HeadShape) -> "LogFeatureDot":
        built = self.features.build(shape)
        return LogFeatureDot(built) if isinstance(built, LogFeatures) and built is not self.features else self


def log_products(query: Tensor, key: Tensor) -> Tensor:
    """Return log φ(q)·φ(k) for every pair, from log φ of each; -inf for a key whose features are all 0.

    Each vector's greatest feature is taken out before the product. What is left spans far more than float32 holds where
    a query and a key point apart, so the product is in float64: a pair is exact down to e^-700 of that. The greatest
    features are constants to the gradient, which is whole without them.
    """
    of_query, of_key = (side.detach().amax(-1, keepdim=True) for side in (query, key))
    wide = widest_float(query.device)
    products = torch.exp((query - finite(of_query)).to(wide)) @ torch.exp((key - finite(of_key)).to(wide)).mT
    logs = products.clamp(min=torch.finfo(wide).tiny).log().to(query.dtype)
    return logs + of_query + rearrange(of_key, "... key 1 -> ... 1 key")


def finite(exponents: Tensor) -> Tensor:
    """Return the exponents with 0 for -inf, where there is nothing: what is subtracted must be a number."""
    return exponents.masked_fill(exponents == -math.inf, 0)


register(Elu, examples={"elu": Elu()})
register(Relu, examples={"relu": Relu()})
register(SoftmaxFeatures, examples={"softmax": SoftmaxFeatures()})
register(RandomFeatures, examples={"random": RandomFeatures()})

FEATURES: Mapping[str, Features] = dict(Examples("feature map"))
"""The feature maps that `Kernelized` takes by name."""
