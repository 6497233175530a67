"""Sharpness: how far a wanted score stands above the others, and what softmax makes of it.

Say w keys are wanted and m are not, and each wanted score is above each other by at least the margin. At scale β each
of the others has at most exp(-β margin) of what a wanted key has, so the wanted keys together have at least
w / (w + m exp(-β margin)). That is 1 - ε where β = ln(m (1 - ε) / (w ε)) / margin, and all others at the same score
need no less.

>>> round(scale_for(margin=1.0, wanted=1, unwanted=9, epsilon=0.01), 3)                 # ln(9 · 99)
6.792
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.calls import public
from clearhead.errors import OptionError

FINE = 1e-9
"""What is asked for is compared to so many parts of one."""
Rows = Float[Tensor, "query key"]


def check_epsilon(epsilon: float) -> None:
    if not 0 < epsilon < 1:
        raise OptionError(f"epsilon is the weight that may go elsewhere, between 0 and 1; came {epsilon}")


def scale_for(*, margin: float, wanted: int, unwanted: int, epsilon: float) -> float:
    """Return the scale at which softmax puts 1 - ε on the wanted keys, all others `margin` below; inf if none does."""
    check_epsilon(epsilon)
    odds = unwanted * (1 - epsilon) / (wanted * epsilon)
    if odds <= 1:
        return 0.0
    return math.log(odds) / margin if margin > 0 else math.inf


class HardestQuery(NamedTuple):
    """The hardest query with this many target keys and this many others: the one with the smallest margin."""

    margin: float
    wanted: int
    unwanted: int

    def weight(self, scale: float) -> float:
        """Return what softmax leaves at least on the wanted keys."""
        exponent = -scale * self.margin
        if exponent > 700:  # math.exp goes no further
            return 0.0 if self.unwanted else 1.0
        return self.wanted / (self.wanted + self.unwanted * math.exp(exponent))


@final
@public
@dataclass(frozen=True, kw_only=True)
class Sharpness:
    """How sharp a design is at length n, whatever the tokens, over every query that has a target key.

    Attributes:
        n: Length of the text.
        scale: Factor for the scores.
        epsilon: Weight that may go elsewhere.

    >>> from clearhead import craft
    >>> craft.by_position(craft.inputs(["a", "b"], 3), offset=-1, scale=20.0).sharpness(3).n
    3
    """

    n: int
    scale: float
    epsilon: float
    cases: tuple[HardestQuery, ...]
    """One for each number of wanted and other keys."""

    @property
    def margin(self) -> float:
        """Return the least difference of a wanted score and the best of the others, at scale 1; inf without others."""
        return min((case.margin for case in self.cases if case.unwanted), default=math.inf)

    @property
    def needed(self) -> float:
        """Return the scale at which softmax puts 1 - ε on what is wanted; inf if no scale does."""
        scales = [scale_for(**case._asdict(), epsilon=self.epsilon) for case in self.cases]
        return max(scales, default=0.0)

    @property
    def exact(self) -> bool:
        """Return whether argmax finds what is wanted, every time; False if nothing is wanted."""
        return bool(self.cases) and self.margin > 0

    def weight(self, scale: float | None = None) -> float:
        """Return what softmax leaves at least on the wanted keys, at the design's own scale or another."""
        chosen = self.scale if scale is None else scale
        return min((case.weight(chosen) for case in self.cases), default=1.0)

    def __str__(self) -> str:
        if not self.cases:
            return f"at {self.n} tokens no query wants a key, so there is no margin"
        if math.isinf(self.margin):
            return f"at {self.n} tokens a query that wants a key sees no other: its weight is 1 at any scale"
        lines = [f"at {self.n} tokens the score of a target is at least {self.margin:.4g} above the others"]
        if self.exact:
            share = f"{1 - self.epsilon:.4g}"
            lines.append(f"softmax puts {share} of the weight on the target from scale {self.needed:.4g} on")
        else:
            lines.append("no scale is enough: some other key scores as high, and argmax is wrong too")
        fractions = sorted({self.scale, *(self.needed * part for part in (0.25, 0.5, 1.0) if self.exact)})
        least = ", ".join(f"{self.weight(scale):.3f} at scale {scale:.4g}" for scale in fractions)
        lines.append(f"at least on the target: {least}")
        return "\n".join([*lines, "argmax is exact"] if self.exact else lines)


def hardest(
    asked: Float[Tensor, "query key label"],
    real: Float[Tensor, "query key label"],
    may: Bool[Tensor, "query key label"],
) -> Mapping[tuple[int, int], float]:
    """Return the least margin of every query over all texts, by how many keys are wanted and how many are not.

    A key is a place and the label that stands there; `may` says which can. What is wanted is what is asked for most
    among the keys of a text, if that is above 0.
    """
    asked = torch.round(asked.double() / FINE) * FINE
    margins: dict[tuple[int, int], float] = {}
    for level in asked[may & (asked > 0)].unique().tolist():
        margin, unwanted, n_seen = at_level(asked, real.double(), may, level)
        for query, key in torch.isfinite(margin).nonzero().tolist():
            m = int(unwanted[query, key])
            case = int(n_seen[query]) - m, m
            margins[case] = min(margins.get(case, math.inf), margin[query, key].item())
    return margins


def at_level(asked: Tensor, real: Tensor, may: Tensor, level: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return, where a key asked for this much is the best: its margin, how many others are asked less, keys seen.

    Every place but the wanted one holds the label that scores best among those asked for less, where there is such a
    label. A place whose every label is asked for more leaves no text in which this level is the most.
    """
    at_this_level = may & ((asked - level).abs() < FINE / 2)
    less = may & (asked < level - FINE / 2)
    worst = real.masked_fill(~at_this_level, math.inf).amin(-1)
    rival = real.masked_fill(~less, -math.inf).amax(-1)
    least = torch.where(may.any(-1), asked.masked_fill(~may, math.inf).amin(-1), -math.inf)
    possible = at_this_level.any(-1) & (excluding(least) <= level + FINE / 2)
    has_less = less.any(-1)
    margin = torch.where(possible, worst - excluding(rival), math.nan)
    unwanted = has_less.sum(-1, keepdim=True) - has_less.int()
    alone = possible & (unwanted == 0)
    return torch.where(alone, 0.0, margin), unwanted, may.any(-1).sum(-1)


def excluding(values: Rows) -> Rows:
    """Return for each key the highest value among the other keys; -inf if there is no other."""
    if values.shape[1] == 1:
        return torch.full_like(values, -math.inf)
    top, indices = values.topk(2, -1)
    is_best = torch.arange(values.shape[1]) == indices[:, :1]
    return torch.where(is_best, top[:, 1:], top[:, :1])


def weight_on(scores: Rows, wanted: Bool[Tensor, "query key"], scale: float) -> Float[Tensor, "wanting"]:
    """Return the weight that softmax at this scale puts on the wanted keys, of each query that has one."""
    rows = wanted.any(-1)
    return (torch.softmax(scores[rows].double() * scale, -1) * wanted[rows]).sum(-1)


@public
def least_scale(scores: Rows, wanted: Bool[Tensor, "query key"], *, epsilon: float = 0.01) -> float:
    """Return the least scale at which softmax puts 1 - ε on the wanted keys of these rows, found by bisection.

    Args:
        scores: Scores; -inf for blocked keys.
        wanted: True for the wanted keys.
        epsilon: Weight that may go elsewhere.

    Returns:
        The scale; inf if no scale up to 2^40 does.

    >>> import torch
    >>> from clearhead import craft
    >>> round(craft.least_scale(torch.tensor([[1.0, 0.0]]), torch.tensor([[True, False]])), 2)
    4.6
    """
    check_epsilon(epsilon)

    def enough(scale: float) -> bool:
        return bool((weight_on(scores, wanted, scale) >= 1 - epsilon).all())

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, high * 2
        if high > 2**40:
            return math.inf
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@final
@dataclass(frozen=True, kw_only=True)
class Measured:
    """How sharp a head was on texts that went through it, over the queries that have a target key.

    Attributes:
        queries: How many queries have one.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20, length=8).build().eval()
    >>> tokens = torch.randint(20, (4, 8))
    >>> design = ch.craft.fit_position(model, tokens, at="decoder.0.attention", offset=-1)
    >>> installed = ch.craft.install(model, design, at="decoder.0.attention", head=0)
    >>> 0 <= installed.measure(tokens).weight <= 1
    True
    """

    queries: int
    weight: float
    """The mean weight on what was wanted."""
    least: float
    """The least weight on it."""
    right: float
    """The share of queries whose best key was a wanted one: what argmax would have done."""
    margin: float
    """The median of the wanted scores' margins; half of the queries have less."""

    def __str__(self) -> str:
        return (
            f"over {self.queries} queries: {self.weight:.3f} of the weight on the target, {self.least:.3f} "
            f"at least; the best key is a target {self.right:.1%} of the time; median margin {self.margin:.3g}"
        )


def measure_sharpness(texts: Iterable[tuple[Rows, Rows, Bool[Tensor, "query key"]]]) -> Measured:
    """Measure sharpness from the masked scores, the weights and the wanted keys of each text."""
    weights, margins = [], []
    for masked, weight, wanted in texts:
        rows = wanted.any(-1)
        weights.append((weight.double() * wanted).sum(-1)[rows])
        best = masked.double().masked_fill(~wanted, -math.inf).amax(-1)
        margins.append((best - masked.double().masked_fill(wanted, -math.inf).amax(-1))[rows])
    weight, margin = torch.cat(weights), torch.cat(margins)
    if not len(weight):
        raise OptionError("no query of these texts wants a key: give longer ones")
    return Measured(
        queries=len(weight),
        weight=weight.mean().item(),
        least=weight.min().item(),
        right=(margin > 0).double().mean().item(),
        margin=margin.median().item(),
    )
