"""The arithmetic of one cell, in full: products, scale, mask, weight, and what the value adds to the context."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.reference import Steps
from clearhead.attention.weighting import Argmax, Weighting

TIED = Argmax().tolerance
WeightingKind = Literal["softmax", "kernelized", "argmax", "rows"]
KINDS: dict[str, WeightingKind] = {"exponential": "softmax", "score": "kernelized"}
"""How a weight that is a share of a sum is worked out."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The rotation of one query and one key by their positions, between W_Q or W_K and the score.

    Pair p of entries (i, j) turns by its angle: i' = i cos - j sin, j' = i sin + j cos.
    """

    query: list[float]
    """W_Q x, before it was turned."""
    key: list[float]
    """W_K x, before it was turned."""
    query_position: int
    key_position: int
    pairs: list[tuple[int, int]]
    """Entries that turn together; none if the position does not say."""
    query_angles: list[float]
    """The angle of each pair, in radians."""
    key_angles: list[float]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Every number between one query and one key.

    `query` and `key` are as they are compared: with cosine of length 1, with kernelized attention their features.
    `weight` is `exponential / total`: exp of the score over temperature, less the row's highest, in softmax; the
    product of features in kernelized attention. Random features are logarithms, their score is the logarithm of the
    product, and the weights are softmax's. In other weightings there is no such share (None), and the weight is
    what the row got.
    """

    kind: WeightingKind
    query: list[float]
    key: list[float]
    products: list[float]
    """The products whose sum is the score; empty if the similarity is no sum of products."""
    score: float
    scale: float
    scaled: float
    bias: float
    allowed: bool
    masked: float
    highest: float
    """The largest masked score of the row."""
    temperature: float
    exponential: float | None
    total: float | None
    weight: float
    ties: list[int]
    value: list[float]
    share: list[float]
    """weight × value: what this key adds to the context."""
    context: list[float]
    """The sum over all keys, as it went on."""
    turn: Turn | None = None
    """The rotation of query and key by their positions; None if there was none."""


def cell_of(
    call: AttentionInputs,
    meeting: tuple[Tensor, Tensor],
    row: Steps,
    *,
    key: int,
    scale: float,
    allowed: Tensor,
    turn: Turn | None = None,
) -> Cell:
    """Return the arithmetic of a cell, from its query and key as they are compared and the steps of the query's row."""
    query_vector, key_vector = meeting
    masked, is_allowed = row.masked[0], bool(allowed[key])
    exponential, total = shares(call, masked)
    weight, value = row.weight[0, key].item(), row.value[key]
    scaled, masked_score = row.scaled[0, key].item(), masked[key].item()
    highest = masked.max()
    products = query_vector * key_vector if call.similarity.form in ("dot", "features") else query_vector[:0]
    return Cell(
        kind=weighting_kind(call.weighting),
        query=query_vector.tolist(),
        key=key_vector.tolist(),
        products=products.tolist(),
        score=row.score[0, key].item(),
        scale=scale,
        scaled=scaled,
        bias=masked_score - scaled if is_allowed and math.isfinite(masked_score) else 0.0,
        allowed=is_allowed,
        masked=masked_score,
        highest=highest.item(),
        temperature=call.weighting.temperature,
        exponential=None if exponential is None else exponential[key].item(),
        total=None if total is None else total.item(),
        weight=weight,
        ties=tie_mask(masked, allowed).nonzero().flatten().tolist(),
        value=value.tolist(),
        share=(weight * value).tolist(),
        context=row.context[0].tolist(),
        turn=turn,
    )


def weighting_kind(weighting: Weighting) -> WeightingKind:
    """Return how a weight is worked out: a share of a sum, all on the best key, or `rows`, any function of the row.

    It is what the part declares. A user's own weighting is `rows`, whatever its class is called; the explorer
    shows its `summary`, its row of scores and its row of weights.
    """
    if weighting.amounts in KINDS and weighting.sums_to_one:
        return KINDS[weighting.amounts]
    return "argmax" if weighting.form == "argmax" else "rows"


def turn_of(call: AttentionInputs, projected: tuple[Tensor, Tensor], indices: tuple[int, int]) -> Turn:
    """Return the rotation of a query and a key, given as W_Q and W_K made them, by their places in the text."""
    query, key = projected
    positions = [side.flatten()[index] for side, index in zip(call.positions.sides, indices, strict=True)]
    pairs = call.position.pairs(query.shape[-1])
    angles = [angles_of(call, position.reshape(1), query.shape[-1]).flatten().tolist() for position in positions]
    return Turn(
        query=query.tolist(),
        key=key.tolist(),
        query_position=int(positions[0]),
        key_position=int(positions[1]),
        pairs=pairs,
        query_angles=angles[0],
        key_angles=angles[1],
    )


def angles_of(call: AttentionInputs, positions: Tensor, d_head: int) -> Float[Tensor, "n pair"]:
    """Return the angles by which each pair turns at these positions, in radians; no columns if there are no
    pairs.
    """
    if not call.position.pairs(d_head):
        return torch.empty(len(positions), 0)
    cos, sin = call.position.angles(positions, d_head)
    return torch.atan2(sin, cos).reshape(len(positions), -1)


def tie_mask(masked: Tensor, allowed: Tensor) -> Tensor:
    """Return which keys of a row have its highest score, within argmax's tolerance for ties."""
    best = masked.masked_fill(~allowed, float("-inf")).max()
    return (masked >= best - TIED * best.abs().clamp(min=1)) & allowed


def shares(call: AttentionInputs, masked: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the amounts that are divided by their total, and the total; None for weightings that are no share."""
    kind = weighting_kind(call.weighting)
    if kind == "softmax":
        highest = masked.max()
        if not highest.isfinite():
            return masked.new_zeros(masked.shape), masked.new_zeros(())
        amounts = ((masked - highest) / call.weighting.temperature).exp()
        return amounts, amounts.sum()
    if kind == "kernelized":
        return masked, masked.sum()
    return None, None
