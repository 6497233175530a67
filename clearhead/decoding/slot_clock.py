"""The clock of slots: where each of them stands, and what it may attend to."""

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.attention.masks import Table
from clearhead.attention.parts import HeadShape
from clearhead.decoding.clock import Clock

MOST_HEADS = 1024


@final
class SlotClock(Clock):
    """Where every slot stands: `at[slot]` is the position of its next token. `rows` slots are in use."""

    def __init__(
        self, slots: int, device: torch.device, limit: int, source_limit: int, *, same_bits: bool = False
    ) -> None:
        super().__init__(None, device, limit)
        self.same_bits = same_bits
        self.source_limit, self.slots_there, self.rows, self.new = source_limit, slots, slots, 1
        self.columns = self.source_columns = 1
        self.sources = SourceMask(slots, device)
        self.at = torch.zeros(slots, dtype=torch.long, device=device)
        self.every = torch.arange(max(slots, limit, MOST_HEADS), device=device)

    def by_products(self, heads: HeadShape) -> bool:
        """Check whether attention is computed by plain products: on a CPU, each head with keys of its own."""
        return self.device.type == "cpu" and not self.same_bits and heads.n_heads == heads.n_kv_heads <= MOST_HEADS

    def advance(self, new: int) -> None:
        """Begin a step; the positions were set already."""
        self.cached = {}

    @property
    def total(self) -> int:
        return self.columns

    @property
    def bounds(self) -> tuple[None, Tensor, int]:
        return None, self.at, 1

    @property
    def positions(self) -> Int[Tensor, "row 1"]:
        return self.at[: self.rows].unsqueeze(1)

    @property
    def keys(self) -> Int[Tensor, "row column"]:
        """Return the positions of all columns; those not yet written stand at the last one, and `real` hides them."""
        return self.once("keys", lambda: torch.minimum(self.every[: self.columns], self.positions))

    @property
    def real(self) -> Table:
        return self.once(
            "real", lambda: Table((self.every[: self.columns] <= self.positions)[:, None, None, :].contiguous())
        )

    def sdpa_mask(self, dtype: torch.dtype) -> Tensor:
        """Return the bias to add to scores, made once for all layers."""
        return self.once(("added", dtype), lambda: self.real.table.to(dtype).log_())

    def places(self, heads: int, columns: int) -> Int[Tensor, "place"]:
        """Return the index at which each row and head writes, in flat memory of `(slot, head, column)`."""

        def make() -> Tensor:
            first = torch.add(self.at[: self.rows], self.every[: self.rows], alpha=heads * columns)
            return torch.add(first.unsqueeze(1), self.every[:heads], alpha=columns).flatten()

        return self.once(("places", heads, columns), make)

    def own_bias(self, heads: int, dtype: torch.dtype) -> Float[Tensor, "row_head 1 column"]:
        """Return the bias to add to the scores of self-attention, for each head."""
        return self.once(("own bias", heads, dtype), lambda: for_each_head(self.sdpa_mask(dtype), heads))

    def source_bias(self, heads: int) -> Float[Tensor, "row_head 1 column"]:
        """Return the bias to add to the scores of cross-attention, for each head."""
        return self.once(
            ("source bias", heads),
            lambda: for_each_head(self.sources.added[: self.rows, ..., : self.source_columns], heads),
        )


def for_each_head(bias: Tensor, heads: int) -> Tensor:
    return bias.expand(-1, heads, -1, -1).reshape(-1, 1, bias.shape[3])


@final
class SourceMask:
    """Which columns of its source each slot has; the same for all layers, so it is changed once for all of them."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.real = torch.zeros(slots, 1, 1, 0, dtype=torch.bool, device=device)
        self.added = torch.empty(0)
        """What is added to scores."""

    def grow(self, columns: int, dtype: torch.dtype) -> None:
        columns_before = self.real.shape[3]
        if columns_before >= columns:
            return
        real = self.real.new_zeros(len(self.real), 1, 1, columns)
        if columns_before:
            real[..., :columns_before] = self.real
        else:
            real[..., :1] = True  # a slot without a source attends to zeros: nothing to attend to would be NaN
        self.real, self.added = real, real.to(dtype).log_()

    def join(
        self, lengths: Bool[Tensor, "row 1 1 column"], rows: Int[Tensor, "guest"], slots: Int[Tensor, "guest"]
    ) -> None:
        """Take over which columns some rows' sources have."""
        joined = self.real.new_zeros(len(slots), 1, 1, self.real.shape[3])
        joined[..., : lengths.shape[3]] = lengths.index_select(0, rows)
        self.real.index_copy_(0, slots, joined)
        self.added.index_copy_(0, slots, joined.to(self.added.dtype).log_())

    def copy(self, origins: Tensor, slots: Tensor) -> None:
        for tensor in (self.real, self.added):
            tensor.index_copy_(0, slots, tensor.index_select(0, origins))
