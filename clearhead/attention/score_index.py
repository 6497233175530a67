"""Indices of scores in the (batch, head, query, key) box: the one argument of every mask and every bias.

A rule such as "the key is not after the query" is written once, over a `ScoreIndex`, and serves all scores at a time
(the reference), a block of rows (the block-wise kernels), a diagonal, or a single score under `vmap` (flex): the index
tensors broadcast against each other, whatever their shapes are.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Positions:
    """Absolute positions of queries and keys, each `(n,)` or `(batch, n)`."""

    query: Tensor
    key: Tensor

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        return self.query, self.key

    @staticmethod
    def aligned(n_query: int, n_key: int, device: torch.device) -> "Positions":
        """Return keys from 0 and queries aligned to the last of them: right for new queries on a KV cache too."""
        return Positions(
            query=torch.arange(n_key - n_query, n_key, device=device), key=torch.arange(n_key, device=device)
        )


@dataclass(frozen=True)
class ScoreIndex:
    """Index tensors that broadcast to the cells they name, and a way to read a table at those cells.

    `query` and `key` are absolute positions; `query_index` and `key_index` count along the tensors.
    """

    batch: Tensor
    head: Tensor
    query_index: Tensor
    key_index: Tensor
    query: Tensor
    key: Tensor
    n_heads: int

    @property
    def by_index(self) -> bool:
        """Return whether every position is known to be the index along the tensor, and so lies inside it."""
        return self.query is self.query_index and self.key is self.key_index

    def row(self, values: Tensor) -> Tensor:
        """Read one value a batch row, `(batch,)`; a single value `(1,)` serves every row."""
        return read_at(values, self.batch)

    def lookup(self, table: Tensor) -> Tensor:
        """Read a `(batch or 1, head or 1, query or 1, key or 1)` tensor."""
        return read_at(table, self.batch, self.head, self.query_index, self.key_index)


class Subset(NamedTuple):
    """Which rows of a batch and which heads are held, where not all of them are; `None` for a size: all from there."""

    n_heads: int
    """Number of heads in the whole call."""
    batch: int = 0
    n_batch: int | None = None
    head: int = 0
    n_head: int | None = None

    def of_batch(self, values: Tensor) -> Tensor:
        if self.n_batch is None or values.shape[0] == 1:
            return values
        return values[self.batch : self.batch + self.n_batch]

    def of(self, table: Tensor) -> Tensor:
        """Return this subset's part of a `(batch or 1, head or 1, ...)` tensor."""
        table = self.of_batch(table)
        if self.n_head is None or table.shape[1] == 1:
            return table
        return table[:, self.head : self.head + self.n_head]


@dataclass(frozen=True)
class Box(ScoreIndex):
    """A block of whole rows, with `(batch, head, query, key)` axes, which is read by slices."""

    rows: slice | None
    share: Subset

    def row(self, values: Tensor) -> Tensor:
        return self.share.of_batch(values).view(-1, 1, 1, 1)

    def lookup(self, table: Tensor) -> Tensor:
        all_rows = self.rows is None or table.shape[-2] == 1
        return self.share.of(table if all_rows else table[..., self.rows, :])


def box(
    positions: Positions, *, batch: int, n_heads: int, rows: slice | None = None, share: Subset | None = None
) -> Box:
    """Return the cells of the whole box or of a block of its query rows; or of a subset of a larger box.

    All rows are None and not `slice(None)`: torch 2.11 cannot compile a function whose default argument is a slice.
    """
    query = positions.query if rows is None else positions.query[..., rows]
    n_query, n_key = query.shape[-1], positions.key.shape[-1]
    first = 0 if rows is None else rows.start or 0
    device = positions.key.device
    share = share or Subset(n_heads=n_heads)
    return Box(
        batch=torch.arange(share.batch, share.batch + batch, device=device).view(batch, 1, 1, 1),
        head=torch.arange(share.head, share.head + n_heads, device=device).view(1, n_heads, 1, 1),
        query_index=torch.arange(first, first + n_query, device=device).view(1, 1, n_query, 1),
        key_index=torch.arange(n_key, device=device).view(1, 1, 1, n_key),
        query=query.view(-1, 1, n_query, 1),
        key=positions.key.view(-1, 1, 1, n_key),
        n_heads=share.n_heads,
        rows=rows,
        share=share,
    )


def read_at(table: Tensor, *index: Tensor) -> Tensor:
    """Return `table[index]`, where an axis of length 1 serves every index."""
    indices = [i if size > 1 else torch.zeros_like(i) for i, size in zip(index, table.shape, strict=True)]
    return table[tuple(indices)]


def four_axes(tensor: Tensor) -> Tensor:
    """Return the tensor as `(batch, head, query, key or d)`: axes that were left out are 1."""
    return tensor if tensor.ndim == 4 else tensor.view(*[1] * (4 - tensor.ndim), *tensor.shape)
