"""Shared by the linear forms of kernelized attention: features with hidden keys taken out, and the running state."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import cast

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.attention.inputs import AttentionInputs, Visibility
from clearhead.attention.kernels.base import Context
from clearhead.attention.mask_numbers import numbers_on
from clearhead.attention.mask_rules import Mask, Padding
from clearhead.attention.score_index import ScoreIndex
from clearhead.attention.weighting import Kernelized
from clearhead.attention.weighting.features import finite

ORDERED = frozenset({"causal", "document", "prefix", "window"})
"""The masks that ask where a key stands from the query. Each shows a query one unbroken range of positions, which holds
the query's own (a negative document id shows none)."""

Keys = Float[Tensor, "batch head key feature"]
Values = Float[Tensor, "batch head key d_value"]


@dataclass(frozen=True)
class State:
    """The keys and values so far, in a size that does not grow with their number; float32 or better."""

    total: Float[Tensor, "batch head feature d_value"]
    """The sum of φ(k) vᵀ."""
    normaliser: Float[Tensor, "batch head feature"]
    """The sum of φ(k)."""
    peak: Float[Tensor, "batch head feature"] | None = None
    """Of features given as logarithms: the greatest so far of each, which both sums are divided by the exponential of.

    It is a constant to the gradient, since it cancels when the state is read. -inf before the first key.
    """

    @staticmethod
    def empty(key: Keys, value: Values, *, logarithms: bool = False) -> "State":
        """Return the state before any key, for features of keys and values such as these."""
        dtype = torch.promote_types(key.dtype, torch.float32)
        total = torch.zeros(*key.shape[:2], key.shape[-1], value.shape[-1], dtype=dtype, device=key.device)
        normaliser = total.new_zeros(total.shape[:3])
        return State(total, normaliser, torch.full_like(normaliser, -math.inf) if logarithms else None)

    @staticmethod
    def before(call: AttentionInputs) -> "State":
        """Return the state before any key of a mapped call."""
        return State.empty(call.key, call.value, logarithms=logarithmic(call))

    def add(self, key: Keys, value: Values) -> "State":
        """Return the state with more keys, as features, and their values."""
        key, value = key.to(self.total.dtype), value.to(self.total.dtype)
        if self.peak is None:
            return State(self.total + key.mT @ value, self.normaliser + key.sum(2))
        peak = torch.maximum(self.peak, key.detach().amax(2))
        before, key = torch.exp(self.peak - finite(peak)), torch.exp(key - finite(peak).unsqueeze(2))
        total = self.total * before.unsqueeze(-1) + key.mT @ value
        return State(total, self.normaliser * before + key.sum(2), peak)

    def keep_rows(self, keep: Bool[Tensor, "batch_or_1"]) -> "State":
        """Empty the state in the batch rows where it is not kept: a new document begins there."""
        dropped = ~rearrange(keep, "batch -> batch 1 1 1")
        peak = None if self.peak is None else self.peak.masked_fill(dropped[..., 0], -math.inf)
        return State(self.total.masked_fill(dropped, 0), self.normaliser.masked_fill(dropped[..., 0], 0), peak)

    def select(self, rows: Int[Tensor, "row"]) -> "State":
        """Return the state of these batch rows, some perhaps several times."""
        return State(*(tensor[rows] for tensor in self.tensors()))

    def tensors(self) -> list[Tensor]:
        return [tensor for tensor in (self.total, self.normaliser, self.peak) if tensor is not None]

    def read(self, query: Float[Tensor, "batch head query feature"], weighting: Kernelized) -> Context:
        """Return the context of queries, as features, that see everything in it; in the dtype of the state."""
        query = query.to(self.total.dtype)
        if self.peak is not None:
            query, _ = lift_to_peak(query, self.peak.unsqueeze(2))
        row_sum = einsum(query, self.normaliser, "batch head query feature, batch head feature -> batch head query")
        return weighting.divide(query @ self.total, row_sum.unsqueeze(-1))


def logarithmic(call: AttentionInputs) -> bool:
    """Check whether the call's queries and keys, once mapped, are logarithms of features."""
    return call.similarity.form == "log features"


def nothing(call: AttentionInputs) -> float:
    """Return the number that represents a feature of 0: 0, or -inf where features are logarithms."""
    return -math.inf if logarithmic(call) else 0.0


def lift_to_peak(query: Tensor, peak: Tensor) -> tuple[Tensor, Tensor]:
    """Return φ(q) times exp(peak), for sums that were divided by it, over its greatest entry; and that one's logarithm.

    So a row's greatest term is 1, whatever the size of queries and keys.
    """
    exponent = query + peak
    top = exponent.detach().amax(-1, keepdim=True)
    return torch.exp(exponent - finite(top)), top


def hide(call: AttentionInputs, hidden: Bool[Tensor, "..."]) -> AttentionInputs:
    """Return a mapped call without the features of some keys, given as `(batch or 1, head or 1, key, 1)`."""
    return call.replace(key=call.key.masked_fill(hidden, nothing(call)))


def kernelized(call: AttentionInputs) -> Kernelized:
    return cast(Kernelized, call.weighting)


def in_order(call: AttentionInputs) -> bool:
    """Check whether the mask depends on the distance between query and key."""
    return bool(call.mask.kinds & ORDERED)


def features(call: AttentionInputs) -> AttentionInputs:
    """Return the call with φ(q) and φ(k); zeros for keys that no query sees and queries that see none."""
    if call.unmasked:
        return map_features(call)
    sight = nearest_sight(call) if in_order(call) else Visibility.of(call.mask.allowed(call.cells(slice(0, 1))))
    # Before the map, so that it and its gradient meet no NaN; and after it, since φ(0) need not be 0.
    return hide(map_features(call.zero_hidden(sight)).set_hidden_to_zero(sight), ~sight.keys.unsqueeze(-1))


def map_features(call: AttentionInputs) -> AttentionInputs:
    query, key = call.similarity.prepare(call.query, call.key)
    scaled = isinstance(call.scale, Tensor) or call.scale != 1
    return call.replace(query=query * call.scale if scaled else query, key=key)


def nearest_sight(call: AttentionInputs) -> Visibility:
    """Return which queries see a key and which keys are seen, from one cell each: the one with the nearest position.

    A query that sees any key sees the nearest one, since it sees an unbroken range that holds its own position (see
    `ORDERED`). With padding, the nearest key is the last one before it.
    """
    query, key = (rearrange(side, "n -> 1 1 n") for side in (call.positions.query, call.positions.key))
    paddings = [term.lengths for term in call.mask.terms if isinstance(term, Padding)]
    lengths = [rearrange(numbers_on(lengths, query.device), "b -> b 1 1") for lengths in paddings]
    nearest_key = reduce(torch.minimum, [length - 1 for length in lengths], query).clamp(min=0)
    nearest_query = key.clamp(min=call.n_key - call.n_query)
    terms = call.mask.terms
    return Visibility(rows=may_see(call, terms, query, nearest_key), keys=may_see(call, terms, nearest_query, key))


def may_see(
    call: AttentionInputs, terms: Sequence[Mask], query: Int[Tensor, "*query_axes"], key: Int[Tensor, "*key_axes"]
) -> Bool[Tensor, "*axes"]:
    """Check whether these terms let a query at one position see a key at another; positions broadcast, batch first."""
    batch = torch.arange(call.query.shape[0], device=query.device).view(-1, *[1] * (query.ndim - 1))
    head, query_index = torch.zeros_like(batch), query - (call.n_key - call.n_query)
    cells = ScoreIndex(
        batch=batch,
        head=head,
        query_index=query_index,
        key_index=key,
        query=query,
        key=key,
        n_heads=call.n_heads,
    )
    return reduce(torch.logical_and, [term.allowed(cells) for term in terms])
