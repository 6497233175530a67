"""Tiles of the score matrix that a mask leaves empty, partial or full, as lists: what flex visits.

They are made by operators of torch, which a compiled graph holds as they are. Flex reads the lists by the layout that
torch gives a new tensor. Where the compiler itself makes them, it may choose another: flex then reads numbers that are
no tiles, and the process ends in a CUDA error (torch 2.11; "operation not supported on global/shared address space").
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention.kernels.launch import on_device, triton_code
from clearhead.compiling import missing_triton

TILE = 128
"""Queries and keys of a tile."""
LAUNCH = {"ROWS": 16, "LISTED": 128, "num_warps": 4}

EightTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
TenTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class TileLists(NamedTuple):
    """Tiles of each row of tiles and of each column: how many, `(b, h, line)`, and which, `(b, h, line, place)`."""

    row_counts: Tensor
    row_tiles: Tensor
    full_row_counts: Tensor
    full_row_tiles: Tensor
    column_counts: Tensor
    column_tiles: Tensor
    full_column_counts: Tensor
    full_column_tiles: Tensor


@torch.library.custom_op("clearhead::list_counted_tiles", mutates_args=())
def list_counted_tiles(counts: Tensor) -> EightTensors:
    """Return the lists of tiles in which so many cells may be attended to, `(b, h, row, column)`."""
    full = counts == TILE * TILE
    partial = (counts > 0) & ~full
    return *in_order(partial), *in_order(full), *in_order(partial.mT), *in_order(full.mT)


@list_counted_tiles.register_fake
def _(counts: Tensor) -> EightTensors:
    batch, heads, n_rows, n_columns = counts.shape
    return empty_lists(counts, batch, heads, n_rows, n_columns)


@torch.library.custom_op("clearhead::list_range_tiles", mutates_args=())
def list_range_tiles(first: Tensor, stop: Tensor, n_key: int) -> TenTensors:
    """Return the ranges of keys that queries see, cut to the keys there are, and the lists of their tiles.

    `first` and `stop` are `(batch, query)`. Ranges come back as int32; where a query sees nothing, 0 and 0.
    """
    if missing_triton(first.device.type) is not None:
        first, stop = first.clamp(min=0), stop.clamp(max=n_key)
        sees = first < stop
        first, stop = torch.where(sees, first, 0), torch.where(sees, stop, 0)
        counts = count_range_cells(first, stop, n_key).unsqueeze(1)
        return first.int(), stop.int(), *list_counted_tiles(counts)
    batch, n_query = first.shape
    n_rows, n_columns = -(-n_query // TILE), -(-n_key // TILE)
    first_made, stop_made = (first.new_empty(batch, n_query, dtype=torch.int32) for _ in range(2))
    lists = empty_lists(first, batch, 1, n_rows, n_columns)
    with on_device(first):
        triton_code("tiles_triton").list_tiles[(n_rows + n_columns, batch)](
            first,
            stop,
            first_made,
            stop_made,
            *lists,
            n_query,
            n_key,
            n_rows,
            n_columns,
            *first.stride(),
            *stop.stride(),
            TILE=TILE,
            **LAUNCH,
        )
    return first_made, stop_made, *lists


@list_range_tiles.register_fake
def _(first: Tensor, stop: Tensor, n_key: int) -> TenTensors:
    batch, n_query = first.shape
    made = first.new_empty(batch, n_query, dtype=torch.int32)
    return made, torch.empty_like(made), *empty_lists(first, batch, 1, -(-n_query // TILE), -(-n_key // TILE))


def empty_lists(like: Tensor, batch: int, heads: int, n_rows: int, n_columns: int) -> EightTensors:
    rows, columns = (batch, heads, n_rows), (batch, heads, n_columns)
    shapes = (rows, (*rows, n_columns)) * 2 + (columns, (*columns, n_rows)) * 2
    return tuple(like.new_empty(shape, dtype=torch.int32) for shape in shapes)  # pyright: ignore[reportReturnType]


def in_order(
    tiles: Bool[Tensor, "b h line place"],
) -> tuple[Int[Tensor, "b h line"], Int[Tensor, "b h line place"]]:
    """Return how many tiles each line has, and their places, those it has first; both laid out as new tensors are."""
    tiles = tiles.contiguous()  # an argsort has the layout of what it sorts
    indices = torch.argsort(tiles.to(torch.int8), dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32), indices.to(torch.int32)


def count_range_cells(
    first: Int[Tensor, "b query"], stop: Int[Tensor, "b query"], n_key: int
) -> Int[Tensor, "b row column"]:
    """Return how many cells of each tile the ranges hold."""
    begin = torch.arange(0, n_key, TILE, device=first.device)
    inside = torch.minimum(stop.unsqueeze(-1), begin + TILE) - torch.maximum(first.unsqueeze(-1), begin)
    return F.pad(inside.clamp(min=0), (0, 0, 0, -first.shape[1] % TILE)).unflatten(1, (-1, TILE)).sum(2)
