"""`AttentionInputs`, the checked inputs of every kernel, and `KernelFacts`, by which a kernel is chosen."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn

from clearhead.attention.mask_numbers import EqualDocuments, Extent, cut_runs
from clearhead.attention.mask_rules import Causal, Document, Mask
from clearhead.attention.modes import BLOCK_DROPOUT, can_read, has_numbers, is_captured, is_exported
from clearhead.attention.positions import Position
from clearhead.attention.score_index import Positions, ScoreIndex, Subset, box, four_axes
from clearhead.attention.similarity import Similarity
from clearhead.attention.weighting import Weighting

HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32, torch.float64)
DOCUMENTS = frozenset(["document", "scattered documents"])
LONG = 1 << 21
"""Scores of a head from which on compiling a mask into the kernel pays: about 1,450 queries on as many keys."""
SCORES_SAVED = 1 << 15
"""Scores of a whole mask that take as long on a CPU as one more call: 70 microseconds, with gradients 150."""
SCORES_LAUNCHED = 1 << 28
"""Scores for which one more call pays on a GPU. On an H200 a call takes Python 65 µs, in which flex, at 0.6 of the
speed, loses as much on so many: eight uneven documents of 16,384 tokens took 0.66 ms by themselves, 0.45 by flex."""
ORDINARY = 1e15
"""Products with numbers below it stay finite in float32, for any sensible query."""


class KernelFacts(NamedTuple):
    """Everything that the choice of a kernel may depend on."""

    similarity: str
    weighting: str
    bias: str
    masks: frozenset[str]
    aligned: bool
    """Positions are the default: keys from 0, queries aligned to the last of them."""
    device: str
    dtype: torch.dtype
    gradients: bool
    dropout: bool
    equal_widths: bool
    """d_value = d_head."""
    width: int
    """The larger of d_head and d_value."""
    long: bool
    """True if, on a GPU, an n_query x n_key matrix is worth avoiding: see `LONG`."""
    by_document: bool = False
    """The mask packs documents, each of which can be attended to by itself: see `AttentionInputs.document_runs`."""
    offset: bool = False
    """The call is long, and has more keys than queries, or fewer: the first query is not at the first key."""


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """Queries, keys and values as `(batch, head, n, d)`, already rotated by their positions, and the parts.

    A dataclass and not a NamedTuple: Dynamo of torch 2.11 cannot rebuild a NamedTuple that has methods of its own.
    """

    query: Float[Tensor, "batch n_heads query d_head"]
    key: Float[Tensor, "batch n_kv_heads key d_head"]
    value: Float[Tensor, "batch n_kv_heads key d_value"]
    similarity: Similarity
    weighting: Weighting
    position: Position
    mask: Mask
    given_positions: Positions | None = None
    dropout: float = 0.0
    share: Subset | None = None
    """Rows and heads that the tensors hold, where they are a subset of the whole call."""
    assume_finite: bool = False
    """True if hidden keys and values are known to be finite, as in a KV cache, which wrote all of them."""

    def replace(self, **changes: Any) -> "AttentionInputs":
        """Return the call with some of its fields changed."""
        return AttentionInputs(**({name: getattr(self, name) for name in FIELDS} | changes))

    @property
    def n_heads(self) -> int:
        return self.query.shape[1]

    @property
    def n_query(self) -> int:
        return self.query.shape[2]

    @property
    def n_key(self) -> int:
        return self.key.shape[2]

    @property
    def positions(self) -> Positions:
        return self.given_positions or Positions.aligned(self.n_query, self.n_key, self.query.device)

    @property
    def extent(self) -> Extent:
        return Extent(self.query.shape[0], self.n_heads, self.n_query, self.n_key, self.query.device)

    @property
    def scale(self) -> float | Tensor:
        return self.similarity.scale(self.query.shape[-1])

    @property
    def unmasked(self) -> bool:
        """True if the mask's kind alone says that every query sees a key, and every key is seen."""
        kinds = self.mask.kinds
        return kinds == {"none"} or (
            kinds == {"causal"} and self.given_positions is None and self.n_query <= self.n_key
        )

    def facts(self) -> KernelFacts:
        """Return the facts about this call that a kernel is chosen by; asked for every call, so in few operations."""
        query = self.query
        d_head, d_value = query.shape[-1], self.value.shape[-1]
        kinds = self.mask.kinds
        return KernelFacts(
            self.similarity.form,
            self.weighting.form,
            self.position.bias_kind,
            kinds,
            aligned=self.given_positions is None,
            device=query.device.type,
            dtype=query.dtype,
            gradients=torch.is_grad_enabled() and self.needs_gradient(),
            dropout=self.dropout > 0,
            equal_widths=d_head == d_value,
            width=max(d_head, d_value),
            long=(long := self.is_long()),
            by_document=not kinds.isdisjoint(DOCUMENTS) and self.document_runs() is not None,
            offset=long and self.n_query != self.n_key,
        )

    def is_long(self) -> bool:
        """Check whether compiling the mask into the kernel pays. Code traced for export never asks: lengths stay free.

        Compiled for lengths that may change, a graph serves all long ones, or all others.
        """
        if not self.query.is_cuda or is_exported():
            return False
        return self.n_query * self.n_key >= LONG

    def document_runs(self) -> tuple[tuple[EqualDocuments, ...], ...] | None:
        """Return the runs of each batch row, or of all, if documents can be attended to one by one; else None.

        That is in self-attention at the default positions, without a bias, where the mask holds the lengths of its
        documents and these are not too many to be worth a call each. Keyed dropout needs the whole matrix of weights. A
        captured CUDA graph is replayed after its tensors have changed: there only a list's lengths are known.
        """
        if not has_numbers(self.query) or self.position.bias_kind != "none" or self.query.shape[0] == 0:
            return None
        if self.given_positions is not None or self.share is not None or self.n_query != self.n_key:
            return None
        if self.dropout and BLOCK_DROPOUT.get() is not None:
            return None
        documents = [term for term in self.mask.terms if isinstance(term, Document)]
        if len(documents) != 1 or not all(isinstance(term, Causal | Document) for term in self.mask.terms):
            return None
        lengths = documents[0].lengths
        if lengths is None or (documents[0].can_change and is_captured(self.query)):
            return None
        rows = tuple(cut_runs(row, self.n_key) for row in lengths)
        return rows if self.is_worth_calls(rows) else None

    def is_worth_calls(self, rows: tuple[tuple[EqualDocuments, ...], ...]) -> bool:
        """Check that documents are not too short, or too uneven, to be worth a call for each length."""
        runs = [run for row in rows for run in row if run.document]
        heads = self.query.shape[0] * self.n_heads
        if self.query.is_cpu:
            return 0 < len(runs) <= max(2, heads * self.n_query * self.n_key // SCORES_SAVED)
        scores = heads // len(rows) * sum(run.repeats * run.length**2 for run in runs)
        return 0 < len(runs) <= max(1, min(64, scores // SCORES_LAUNCHED))

    def needs_gradient(self) -> bool:
        if self.query.requires_grad or self.key.requires_grad or self.value.requires_grad:
            return True
        return any(parameter.requires_grad for parameter in self.parameters())

    def parameters(self) -> list[Tensor]:
        """Return the learned values of the parts; under `functional_call` they are any tensors."""
        return [parameter for part in self.built_parts() for parameter in part.parameters()]

    def built_parts(self) -> list[nn.Module]:
        """Return the parts that are modules: those with learned values."""
        return [part for part in (self.similarity, self.weighting, self.position) if isinstance(part, nn.Module)]

    def cells(self, rows: slice | None = None) -> ScoreIndex:
        return box(self.positions, batch=self.query.shape[0], n_heads=self.n_heads, rows=rows, share=self.share)

    def of_row(self, row: int) -> "AttentionInputs":
        """Return the inputs of one sequence of the batch."""
        index = slice(row, row + 1)
        positions = self.given_positions
        if positions is not None:
            positions = Positions(
                *(side[index] if side.ndim == 2 and len(side) > 1 else side for side in positions.sides)
            )
        share = (self.share or Subset(self.n_heads))._replace(batch=row, n_batch=1)
        return self.replace(
            query=self.query[index],
            key=self.key[index],
            value=self.value[index],
            given_positions=positions,
            share=share,
        )

    def of_head(self, head: int) -> "AttentionInputs | None":
        """Return the inputs of one head; None if a part cannot say which of its values are that head's."""
        parts = [part.of_head(head) for part in (self.similarity, self.weighting, self.position)]
        if None in parts:
            return None
        similarity, weighting, position = parts
        shared = head * self.key.shape[1] // self.n_heads
        return self.replace(
            query=self.query[:, head : head + 1],
            key=self.key[:, shared : shared + 1],
            value=self.value[:, shared : shared + 1],
            similarity=similarity,
            weighting=weighting,
            position=position,
            share=(self.share or Subset(self.n_heads))._replace(head=head, n_head=1),
        )

    def to_float32(self) -> "AttentionInputs":
        """Convert half precision to float32, for kernels that compute step by step."""
        if self.query.dtype not in HALF:
            return self
        return self.replace(query=self.query.float(), key=self.key.float(), value=self.value.float())

    def with_every_head(self) -> "AttentionInputs":
        """Repeat shared key and value heads, so that each query head has its own."""
        group = self.n_heads // self.key.shape[1]
        if group == 1:
            return self
        spread = "batch head key d -> batch (head group) key d"
        return self.replace(key=repeat(self.key, spread, group=group), value=repeat(self.value, spread, group=group))

    def zero_hidden(self, sight: "Visibility") -> "AttentionInputs":
        """Zero keys, values and queries that the mask hides, so NaN or Inf there cannot reach outputs or gradients.

        On a CPU the numbers are read first: with ordinary ones a weight of 0 is enough, and nothing is copied.
        """
        if self.assume_finite:
            return self
        readable = can_read(self.query) and (sight.rows is None or bool(sight.rows.all()))
        harmless = readable and ordinary(self.key) and ordinary(self.value)
        return self if harmless else self.set_hidden_to_zero(sight)

    def set_hidden_to_zero(self, sight: "Visibility") -> "AttentionInputs":
        """Zero the keys and values that no query sees, and the queries that see no key."""
        unseen = ~sight.keys.unsqueeze(-1)
        if unseen.shape[1] > 1:
            group = self.n_heads // self.key.shape[1]
            unseen = rearrange(unseen, "b (head group) key 1 -> b head group key 1", group=group).all(2)
        return self.replace(
            query=self.query if sight.rows is None else self.query.masked_fill(~sight.rows.unsqueeze(-1), 0),
            key=self.key.masked_fill(unseen, 0),
            value=self.value.masked_fill(unseen, 0),
        )


FIELDS = tuple(field.name for field in fields(AttentionInputs))


def ordinary(vectors: Tensor) -> bool:
    """Check that all numbers are finite and small enough for products with them to be: one pass, and no copy."""
    if vectors.numel() == 0:
        return True
    low, high = torch.aminmax(vectors.detach() if vectors.requires_grad else vectors)
    return low.item() > -ORDINARY and high.item() < ORDINARY


@dataclass(frozen=True)
class Visibility:
    """Which queries see any key, and which keys are seen by any query; `1` where an axis serves every index."""

    rows: Bool[Tensor, "b h query"] | None
    """None if queries that see no key do no harm."""
    keys: Bool[Tensor, "b h key"]

    @staticmethod
    def of(allowed: Bool[Tensor, "..."]) -> "Visibility":
        mask = four_axes(allowed)
        rows, keys = (
            who_sees(mask) if mask.is_cuda and torch.compiler.is_dynamo_compiling() else (mask.any(-1), mask.any(-2))
        )
        return Visibility(rows, keys)


@torch.library.custom_op("clearhead::who_sees", mutates_args=())
def who_sees(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Return which queries see any key, and which keys any query sees, of a mask `(b, h, query, key)`.

    It is an operator, so that a compiler gives it the mask as a whole and in dense rows: see `fused.in_dense_rows`.
    """
    return allowed.any(-1), allowed.any(-2)


@who_sees.register_fake
def _(allowed: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, n_query, n_key = allowed.shape
    return allowed.new_empty(batch, heads, n_query), allowed.new_empty(batch, heads, n_key)
