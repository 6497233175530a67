"""Similarities: each gives a score for how well a query and a key fit.

A similarity has two methods: `prepare` does what depends on one vector alone (normalise it, map it), once; `score`
compares pairs. Most are a dot product of prepared vectors (`form = "dot"`), which is what fused kernels can do.

>>> import torch, clearhead as ch
>>> a, b = torch.tensor([[2.0, 3.0]]), torch.tensor([[1.0, 4.0]])
>>> ch.explain(a, b, b, similarity=ch.similarity.Dot()).score.item()
14.0
>>> round(ch.explain(a, b, b).scaled.item(), 2)                    # 14 / sqrt(2)
9.9
>>> round(ch.explain(a, b, b, similarity=ch.similarity.Cosine()).score.item(), 2)
0.94
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention.parts import HeadShape, MadeFor, Part
from clearhead.errors import NotBuiltError, OptionError
from clearhead.registry import Examples, kind, register

__all__ = ["Additive", "CappedDot", "Cosine", "Dot", "ScaledDot", "Similarity"]

Queries = Float[Tensor, "batch head query d_head"]
Keys = Float[Tensor, "batch head key d_head"]
Scores = Float[Tensor, "batch head query key"]


@kind("similarity")
class Similarity(Part, ABC):
    """Base class: scores from prepared queries and keys, which have the same number of heads.

    >>> import clearhead as ch
    >>> issubclass(ch.similarity.Dot, ch.similarity.Similarity)
    True
    """

    form: ClassVar[str] = "pairwise"
    """`dot`: a dot product of what `prepare` returns. `features`: that, and never negative. `log features`: the
    logarithm of such a product, of features that `prepare` returns as logarithms. Else `pairwise`."""
    formula: ClassVar[str] = "a score of the pair"
    """Formula of the score, for a reader."""
    prepared: ClassVar[str] = "prepared {}"
    """Name of a query or key after `prepare`."""
    scale_reason: ClassVar[str] = "the factor of this similarity"
    """Why `scale` is what it is, where it is not 1/√d_head."""

    @property
    def feature_map(self) -> str:
        """Name φ for kernels that compute it themselves (`elu`, `relu`); `plain` if `prepare` alone returns it."""
        return "plain"

    def build(self, shape: HeadShape) -> "Similarity":
        """Return the part with new learned values, for one layer; itself if it has none."""
        return self

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys after what each vector needs once, before any pair is scored."""
        return query, key

    @abstractmethod
    def score(self, query: Tensor, key: Tensor) -> Scores:
        """Return one number for each pair of prepared vectors."""

    def scale(self, d_head: int) -> float | Tensor:
        """Return the factor of the score: `scaled = score * scale`."""
        return 1.0

    def cost(self, d_head: int) -> int:
        """Return the numbers held for each pair while scoring: block-wise kernels size their blocks by it."""
        return 1


class DotForm(Similarity):
    """A similarity that is a dot product of prepared vectors."""

    form: ClassVar[str] = "dot"
    formula: ClassVar[str] = "query · key"

    def score(self, query: Tensor, key: Tensor) -> Scores:
        return einsum(query, key, "batch head query d, batch head key d -> batch head query key")


@final
@dataclass(frozen=True)
class Dot(DotForm):
    """Dot product: q·k.

    >>> import torch, clearhead as ch
    >>> one, other = torch.tensor([[2.0, 3.0]]), torch.tensor([[1.0, 4.0]])
    >>> ch.explain(one, other, other, similarity=ch.similarity.Dot()).score.item()
    14.0
    """

    words: ClassVar[str] = "dot product"


@final
@dataclass(frozen=True)
class ScaledDot(DotForm):
    """Scaled dot product: q·k times a factor.

    Args:
        factor: 1/√d_head if None.

    >>> import clearhead as ch
    >>> layer = ch.Attention(16, heads=4, similarity=ch.similarity.ScaledDot(factor=1.0))
    """

    words: ClassVar[str] = "scaled dot product"
    factor: float | None = None

    def scale(self, d_head: int) -> float:
        return d_head**-0.5 if self.factor is None else self.factor


@final
@dataclass(frozen=True)
class CappedDot(Similarity):
    """Scaled dot product whose size stays below `cap`: cap · tanh(q·k · factor / cap), as in Gemma 2.

    Args:
        cap: Bound on the size of a score.
        factor: 1/√d_head if None.

    Raises:
        OptionError: If the cap is not positive.

    >>> import torch, clearhead as ch
    >>> a, b = torch.tensor([[20.0, 30.0]]), torch.tensor([[10.0, 40.0]])
    >>> round(ch.explain(a, b, b, similarity=CappedDot(cap=50.0)).score.item(), 2)          # 1400 / sqrt(2) = 990
    50.0
    """

    words: ClassVar[str] = "capped dot product"
    formula: ClassVar[str] = "cap · tanh(query · key · factor ÷ cap)"
    cap: float = 50.0
    factor: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.cap < math.inf:
            raise OptionError(f"CappedDot: cap must be above 0 and finite; came {self.cap}")

    def score(self, query: Tensor, key: Tensor) -> Scores:
        factor = query.shape[-1] ** -0.5 if self.factor is None else self.factor
        dots = einsum(query, key, "batch head query d, batch head key d -> batch head query key")
        return torch.tanh(dots * (factor / self.cap)) * self.cap


class CosineForm(DotForm):
    """The cosine of the angle between query and key; a zero vector has a cosine of 0 with everything."""

    words: ClassVar[str] = "cosine similarity"
    formula: ClassVar[str] = "query · key ÷ (|query| · |key|)"
    prepared: ClassVar[str] = "unit {}"
    scale_reason: ClassVar[str] = "1 ÷ the temperature of this head"

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return unit(query), unit(key)


@final
@dataclass(frozen=True)
class Cosine(CosineForm):
    """Cosine of query and key, times a factor for each head.

    Args:
        temperature: Divisor of the cosine: `scaled = cosine / temperature`.
        learned: Whether the layer learns the factor, from 1 / temperature on.

    Raises:
        OptionError: If the temperature is not positive.

    >>> import clearhead as ch
    >>> layer = ch.Attention(16, heads=4, similarity=ch.similarity.Cosine())
    """

    temperature: float = 0.1
    learned: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise OptionError(f"Cosine: temperature must be above 0 and finite; came {self.temperature}")

    def scale(self, d_head: int) -> float:
        return 1 / self.temperature

    def build(self, shape: HeadShape) -> Similarity:
        return LearnedCosine(self.temperature, shape.n_heads) if self.learned else self


class LearnedCosine(nn.Module, CosineForm):
    """Cosine with a temperature a head, kept positive by learning its logarithm."""

    def __init__(self, temperature: float, n_heads: int) -> None:
        super().__init__()
        self.made_for = MadeFor(n_heads=n_heads)
        self.log_temperature = nn.Parameter(torch.full((n_heads, 1, 1), temperature).log())

    def extra_repr(self) -> str:
        return f"heads={self.made_for.n_heads}"

    def scale(self, d_head: int) -> Tensor:
        return torch.exp(-self.log_temperature)

    def of_head(self, head: int) -> Similarity:
        return Cosine(self.log_temperature[head].exp().item(), learned=False)


@final
@dataclass(frozen=True)
class Additive(Similarity):
    """Additive attention, wᵀ tanh(W_q q + W_k k): a small network scores each pair.

    Args:
        width: Hidden width of the network; d_head if None.

    Raises:
        OptionError: If the width is not positive.

    >>> import clearhead as ch
    >>> layer = ch.Attention(16, heads=4, similarity=ch.similarity.Additive())
    """

    words: ClassVar[str] = "additive similarity"
    width: int | None = None

    def __post_init__(self) -> None:
        if self.width is not None and self.width < 1:
            raise OptionError(f"Additive: width must be 1 or more; came {self.width}")

    def score(self, query: Tensor, key: Tensor) -> Scores:
        raise NotBuiltError(
            "Additive has learned weights and none to start from: use it in clearhead.Attention(similarity=...), "
            "or build it first: similarity.build(clearhead.HeadShape(n_heads=..., n_kv_heads=..., d_head=...))"
        )

    def build(self, shape: HeadShape) -> Similarity:
        return LearnedAdditive(shape.n_heads, shape.d_head, self.width or shape.d_head)


class LearnedAdditive(nn.Module, Similarity):
    """Additive with its weights, a set for each head."""

    words: ClassVar[str] = Additive.words
    formula: ClassVar[str] = "w · tanh(W_q query + W_k key)"

    def __init__(self, n_heads: int, d_head: int, width: int) -> None:
        super().__init__()
        self.made_for = MadeFor(n_heads=n_heads, d_head=d_head)
        self.query = nn.Parameter(torch.randn(n_heads, d_head, width) * d_head**-0.5)
        self.key = nn.Parameter(torch.randn(n_heads, d_head, width) * d_head**-0.5)
        self.out = nn.Parameter(torch.randn(n_heads, width) * width**-0.5)

    def extra_repr(self) -> str:
        heads, d_head, width = self.query.shape
        return f"heads={heads}, d_head={d_head}, width={width}"

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        pattern = "batch head n d, head d width -> batch head n width"
        return einsum(query, self.query.to(query.dtype), pattern), einsum(key, self.key.to(key.dtype), pattern)

    def score(self, query: Tensor, key: Tensor) -> Scores:
        hidden = torch.tanh(rearrange(query, "b h q w -> b h q 1 w") + rearrange(key, "b h k w -> b h 1 k w"))
        return einsum(hidden, self.out.to(query.dtype), "b h q k w, h w -> b h q k")

    def cost(self, d_head: int) -> int:
        return self.out.shape[-1]

    def of_head(self, head: int) -> Similarity:
        single = LearnedAdditive(1, *self.query.shape[1:])
        for name, parameter in self.named_parameters():
            setattr(single, name, nn.Parameter(parameter[head : head + 1].detach(), requires_grad=False))
        return single


def unit(vectors: Tensor) -> Tensor:
    """Return vectors of length 1, and zero where they were zero (with a finite gradient there).

    Each is divided by its greatest entry first: the squares of a length of 1e19 or 1e-23 are no float32. That entry is
    a constant to the gradient, since the result does not depend on it.
    """
    greatest = torch.linalg.vector_norm(vectors.detach(), math.inf, dim=-1, keepdim=True)
    zero = greatest == 0
    vectors = vectors / greatest.masked_fill(zero, 1)
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / length.masked_fill(zero, 1)


register(Dot, examples={"dot": Dot()})
register(ScaledDot, examples={"scaled dot": ScaledDot()})
register(CappedDot, option="capped", examples={"capped dot": CappedDot(cap=2.0)})
register(Cosine, option="cosine", examples={"cosine": Cosine()})
register(Additive, examples={"additive": Additive()})

TABLE: Mapping[str, Similarity] = Examples("similarity")
"""Every similarity by name, those that users register too: the command line and the test grid read it."""
