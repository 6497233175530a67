"""Chunked: kernelized attention in time and memory linear in n.

Positions are cut into chunks. In a query's own chunk, and where a window ends, scores are formed as in the reference, a
block of chunk x chunk at a time. A chunk seen whole comes as one matrix, the sum of φ(k) vᵀ over its keys; these add
up along the sequence, and each query is multiplied with the sum that reaches its chunk.

Features given as logarithms are divided by the exponential of their peak before they are summed, each feature by its
own; sums of different peaks are brought to the greater one as they are added. A peak is taken over keys that are seen
and no others, so nothing of a later key reaches an earlier query.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention.inputs import AttentionInputs, KernelFacts
from clearhead.attention.kernels.base import Context, Kernel
from clearhead.attention.kernels.linear import (
    ORDERED,
    State,
    features,
    in_order,
    kernelized,
    lift_to_peak,
    logarithmic,
    may_see,
    nothing,
)
from clearhead.attention.mask_rules import Mask, Window
from clearhead.attention.weighting.features import finite, log_products

CHUNK = 64
"""Positions in a chunk: n x CHUNK scores are held, and n / CHUNK sums of features x d_value."""

NUMBERS = 1 << 22
"""Most scores held at a time, if a head has no more: 16 MB in float32."""

BEFORE, AFTER = -1, 1
"""On which side of a query's chunk others lie."""

Parts = Float[Tensor, "batch head chunk row column"]
Borders = Int[Tensor, "1 1 chunk 1 1"]
Carry = Callable[["Sums", Tensor, Tensor], "Sums"]
"""Function that hides sums from the second borders where the first borders may not see them."""


class Chunked(Kernel):
    name: ClassVar[str] = "chunked"
    summary: ClassVar[str] = "kernelized attention with keys and values summed first: time and memory linear in n"

    def refusal(self, facts: KernelFacts) -> str | None:
        if facts.weighting != "kernelized":
            return "keys and values can be summed before a query comes only in kernelized attention"
        if facts.dropout:
            return "dropout leaves out weights, and here they are never formed"
        if others := facts.masks - ORDERED - {"none", "padding"}:
            return f"it has no sums for a mask of this kind: {', '.join(sorted(others))}"
        if (ordered := facts.masks & ORDERED) and not facts.aligned:
            return f"{', '.join(sorted(ordered))}: it needs the keys in order, and positions were given"
        return None

    def run(self, call: AttentionInputs) -> Context:
        dtype = call.query.dtype
        call = features(call.to_float32().with_every_head())
        if not in_order(call):
            context = State.before(call).add(call.key, call.value).read(call.query, kernelized(call))
            return context.to(dtype)
        return attend_mapped(call).to(dtype)


def attend_mapped(call: AttentionInputs) -> Context:
    """Return the context of a mapped call whose keys are in order, a few heads at a time on a CPU."""
    return torch.cat([in_chunks(part) for part in by_heads(call)], 1)


def by_heads(call: AttentionInputs) -> list[AttentionInputs]:
    """Split the call, on a CPU, into a few heads at a time: what each step holds stays small and in cache."""
    if call.query.device.type != "cpu" or torch.compiler.is_compiling():
        return [call]
    numbers = call.query.shape[0] * max(call.n_query, call.n_key) * max(CHUNK, call.query.shape[-1])
    count = max(1, NUMBERS // max(1, numbers))
    tensors = zip(*(side.split(count, 1) for side in (call.query, call.key, call.value)), strict=True)
    return [call.replace(query=query, key=key, value=value) for query, key, value in tensors]


def in_chunks(call: AttentionInputs, before: "Sums | None" = None) -> Context:
    """Return the context of a mapped call; `before` is the sum over keys before its first, as `state_after` gives it.

    With documents it is the sum over that one which the first key belongs to.
    """
    chunks = Chunks.of(call)
    mixed = block(chunks, 0)
    if before is not None:
        read, documents = read_sums(chunks, before), chunks.terms("document")
        if documents:
            positions = chunks.positions(chunks.query)
            read = read.where(may_see(call, documents, positions, torch.zeros_like(positions[:, :, :1, :1])))
        mixed = mixed + read
    for side, reach in ((BEFORE, reach_back(call)), (AFTER, reach_ahead(call))):
        furthest = chunks.furthest(side)
        n_whole = min(max((reach + 1) // chunks.length - 1, 0), furthest)
        touched = min((reach + chunks.length - 1) // chunks.length, furthest)
        for distance in range(n_whole + 1, touched + 1):
            mixed = mixed + block(chunks, side * distance)
        if n_whole:
            mixed = mixed + from_sums(chunks, side, n_whole)
    rows = rearrange(mixed.amount, "batch head chunk row column -> batch head (chunk row) column")
    amount, total = rows[:, :, rows.shape[2] - call.n_query :].split([call.value.shape[-1], 1], -1)
    return kernelized(call).divide(amount, total)


def reach_back(call: AttentionInputs) -> int:
    """Return how many positions back a query sees at most."""
    return nearest([term.left for term in call.mask.terms if isinstance(term, Window)], call)


def reach_ahead(call: AttentionInputs) -> int:
    """Return how many positions ahead a query sees at most."""
    if "causal" in call.mask.kinds:
        return 0
    return nearest([term.right for term in call.mask.terms if isinstance(term, Window)], call)


def nearest(limits: list[int], call: AttentionInputs) -> int:
    """Return the least of the limits and of all there is to see (by hand: `min` of a list breaks a traced graph)."""
    reach = call.n_query + call.n_key
    for limit in limits:
        reach = min(reach, limit)
    return reach


@dataclass(frozen=True)
class Sums:
    """Sums in every chunk: over its keys (a row for each feature), or of what its queries get (a row for each)."""

    amount: Parts
    peak: Float[Tensor, "batch head chunk row 1"] | None = None
    """The logarithm of what each row of `amount` was divided by; None where features are not logarithms."""

    def __add__(self, other: "Sums") -> "Sums":
        if self.peak is None or other.peak is None:
            return Sums(self.amount + other.amount)
        peak = torch.maximum(self.peak, other.peak)
        ours, theirs = (torch.exp(own_peak - finite(peak)) for own_peak in (self.peak, other.peak))
        return Sums(self.amount * ours + other.amount * theirs, peak)

    def where(self, keep: Bool[Tensor, "..."]) -> "Sums":
        peak = None if self.peak is None else self.peak.masked_fill(~keep, -math.inf)
        return Sums(self.amount.masked_fill(~keep, 0), peak)

    def shift_chunks(self, shift: int, count: int) -> "Sums":
        peak = None if self.peak is None else shift_chunks(self.peak, shift, count, -math.inf)
        return Sums(shift_chunks(self.amount, shift, count), peak)


def map_sums(change: Callable[..., Tensor], *sums: Sums) -> Sums:
    """Apply the function to the amounts and to the peaks."""
    peaks = [part.peak for part in sums]
    return Sums(change(*(part.amount for part in sums)), None if peaks[0] is None else change(*peaks))


@dataclass(frozen=True)
class Chunks:
    """A call cut into chunks from its end, where the last query meets the last key; zeros fill up the front."""

    call: AttentionInputs
    query: Float[Tensor, "batch head query_chunk row feature"]
    key: Float[Tensor, "batch head chunk row feature"]
    value: Float[Tensor, "batch head chunk row column"]
    """With a last column of ones, which adds up to the normaliser."""

    @staticmethod
    def of(call: AttentionInputs) -> "Chunks":
        length = min(CHUNK, max(call.n_query, call.n_key))
        for_queries, for_both = -(-call.n_query // length), -(-max(call.n_query, call.n_key) // length)
        return Chunks(
            call=call,
            query=cut(call.query, for_queries, length),
            key=cut(call.key, for_both, length, nothing(call)),
            value=cut(F.pad(call.value, (0, 1), value=1.0), for_both, length),
        )

    @staticmethod
    def whole(call: AttentionInputs) -> "Chunks":
        """Return all queries and keys as one chunk."""
        query, key, value = (side.unsqueeze(2) for side in (call.query, call.key, F.pad(call.value, (0, 1), value=1.0)))
        return Chunks(call=call, query=query, key=key, value=value)

    @property
    def length(self) -> int:
        return self.key.shape[3]

    def furthest(self, side: int) -> int:
        """Return how many chunks from a query's own there can be on this side."""
        return (self.key if side == BEFORE else self.query).shape[2] - 1

    def positions(self, chunks: Parts) -> Int[Tensor, "1 1 chunk row 1"]:
        """Return the positions in the chunks of the queries, or in those of the keys."""
        first = self.call.n_key - chunks.shape[2] * self.length
        every = torch.arange(first, self.call.n_key, device=chunks.device)
        return rearrange(every, "(chunk row) -> 1 1 chunk row 1", row=self.length)

    def terms(self, *kinds: str) -> list[Mask]:
        return [term for term in self.call.mask.terms if term.kind in kinds]


def cut(vectors: Float[Tensor, "batch head n column"], n_chunks: int, length: int, fill: float = 0.0) -> Parts:
    missing = n_chunks * length - vectors.shape[2]
    padded = F.pad(vectors, (0, 0, missing, 0), value=fill) if missing else vectors
    return rearrange(padded, "batch head (chunk row) column -> batch head chunk row column", row=length)


def block(chunks: Chunks, shift: int) -> Sums:
    """Return what the queries get from the keys `shift` chunks after their own, scored one by one."""
    count = chunks.query.shape[2]
    key, value = shift_chunks(chunks.key, shift, count, nothing(chunks.call)), shift_chunks(chunks.value, shift, count)
    visible = block_seen(chunks, shift)
    if not logarithmic(chunks.call):
        return Sums(torch.where(visible, chunks.query @ key.mT, 0) @ value)
    score = torch.where(visible, log_products(chunks.query, key), -math.inf)
    peak = score.detach().amax(-1, keepdim=True)
    return Sums(torch.exp(score - finite(peak)) @ value, peak)


def block_seen(chunks: Chunks, shift: int) -> Bool[Tensor, "batch_or_1 1 chunk_or_1 row key_row"]:
    """Return the mask in these blocks. Padding is left out: such keys are zeros already."""
    query = chunks.positions(chunks.query)
    key = rearrange(query, "b h chunk row 1 -> b h chunk 1 row") + shift * chunks.length
    parts = []
    if alike := chunks.terms("causal", "window"):  # the same in every chunk, so one will do
        parts.append(may_see(chunks.call, alike, query[:, :, :1], key[:, :, :1]))
    if differing := chunks.terms("document", "prefix"):
        parts.append(may_see(chunks.call, differing, query, key))
    return parts[0] & parts[-1]


def from_sums(chunks: Chunks, side: int, count: int) -> Sums:
    """Return what the queries get from the `count` chunks next to their own on this side, which they see whole."""
    read = read_sums(chunks, sums_behind(chunks, side, count).shift_chunks(side, chunks.query.shape[2]))
    documents = chunks.terms("document")
    if not documents:
        return read
    positions = chunks.positions(chunks.query)
    return read.where(may_see(chunks.call, documents, positions, border(positions, side)))


def read_sums(chunks: Chunks, sums: Sums) -> Sums:
    """Return what the queries of each chunk get from sums over keys: one for each chunk, or one for all."""
    if sums.peak is None:
        return Sums(chunks.query @ sums.amount)
    query, peak = lift_to_peak(chunks.query, sums.peak.mT)
    return Sums(query @ sums.amount, peak)


def state_after(chunks: Chunks) -> Sums:
    """Return the sum of φ(k) vᵀ over all keys; with documents, over that of the place after the last key."""
    sums = sums_behind(chunks, BEFORE, chunks.key.shape[2])
    return map_sums(lambda part: part[:, :, -1:], sums)


def sums_behind(chunks: Chunks, side: int, count: int) -> Sums:
    """Return for each chunk the sum of φ(k) vᵀ over it and those behind it, `count` in all, at the next one's border.

    With documents that is the sum over the one document which runs on into the next chunk.
    """
    positions = chunks.positions(chunks.key)
    edge = border(positions, side) - side * chunks.length
    documents = chunks.terms("document")
    key = chunks.key
    if limits := documents if side == BEFORE else chunks.terms("document", "prefix"):
        key = key.masked_fill(~may_see(chunks.call, limits, edge, positions), nothing(chunks.call))
    sums = chunk_sums(chunks, key)
    if side == AFTER:
        sums, edge = map_sums(lambda part: part.flip(2), sums), edge.flip(2)

    def carry(sums: Sums, to: Borders, origin: Borders) -> Sums:
        return sums.where(may_see(chunks.call, documents, to, origin)) if documents else sums

    if count < chunks.furthest(side):
        sums = sum_window(sums, edge, count, carry)
    elif documents or sums.peak is not None:
        sums = prefix_sums(sums, edge, carry)
    else:
        sums = Sums(sums.amount.cumsum(2))
    return map_sums(lambda part: part.flip(2), sums) if side == AFTER else sums


def chunk_sums(chunks: Chunks, key: Parts) -> Sums:
    """Return the sum of φ(k) vᵀ over each chunk by itself."""
    if not logarithmic(chunks.call):
        return Sums(key.mT @ chunks.value)
    peak = key.detach().amax(3, keepdim=True)
    return Sums(torch.exp(key - finite(peak)).mT @ chunks.value, peak.mT)


def border(positions: Int[Tensor, "1 1 chunk row 1"], side: int) -> Borders:
    """Return where sums from this side enter a chunk: its first position, or its last."""
    return positions[:, :, :, :1] if side == BEFORE else positions[:, :, :, -1:]


def sum_window(sums: Sums, edge: Borders, count: int, carry: Carry) -> Sums:
    """Return for each chunk the sum over the last `count` chunks, by doubling: no difference, so nothing cancels."""
    if count == 1:
        return sums

    def with_earlier(later: Sums, earlier: Sums, by: int) -> Sums:
        n_chunks = edge.shape[2]
        return later + carry(earlier.shift_chunks(-by, n_chunks), edge, shift_chunks(edge, -by, n_chunks))

    half = sum_window(sums, edge, count // 2, carry)
    even = with_earlier(half, half, count // 2)
    return with_earlier(sums, even, 1) if count % 2 else even


def prefix_sums(sums: Sums, edge: Borders, carry: Carry) -> Sums:
    """Return for each chunk the sum over all up to it, in linear time: of pairs of chunks, then between the pairs."""
    n_chunks = edge.shape[2]
    if n_chunks == 1:
        return sums
    first, *pairs_and_later = (
        map_sums(lambda part, cut=cut: part[:, :, cut], sums)
        for cut in (slice(0, 1), slice(0, n_chunks - 1, 2), slice(1, None, 2), slice(2, None, 2))
    )
    earlier, odd, later = pairs_and_later
    odd_edge = edge[:, :, 1::2]
    at_odd = prefix_sums(odd + carry(earlier, odd_edge, edge[:, :, :-1:2]), odd_edge, carry)
    n_later = (n_chunks - 1) // 2
    reaching = map_sums(lambda part: part[:, :, :n_later], at_odd)
    later = later + carry(reaching, edge[:, :, 2::2], odd_edge[:, :, :n_later])

    def interleave(first: Tensor, later: Tensor, at_odd: Tensor) -> Tensor:
        at_even, n_pairs = torch.cat([first, later], 2), at_odd.shape[2]
        pairs = rearrange([at_even[:, :, :n_pairs], at_odd], "two b h pair row column -> b h (pair two) row column")
        return torch.cat([pairs, at_even[:, :, n_pairs:]], 2)

    return map_sums(interleave, first, later, at_odd)


def shift_chunks(chunks: Tensor, shift: int, count: int, fill: float = 0.0) -> Tensor:
    """Return the last `count` chunks, each replaced by the one `shift` chunks after it; `fill` if there is none."""
    skipped = chunks.shape[2] - count
    if shift == 0:
        return chunks[:, :, skipped:]
    return F.pad(chunks, (0, 0, 0, 0, -(skipped + shift), shift), value=fill)
