"""Block masks for flex: which tiles of the score matrix a mask leaves empty, partial or full.

Under most masks a query sees keys that follow each other. Then two numbers a query say all of it: the tiles are found
from them, and flex compares the key with them, whatever the mask is. So one compiled kernel serves all such masks, and
no change of a window, of lengths or of documents compiles anew.

Other masks are evaluated. torch's `create_block_mask` does that on all n_query x n_key cells at once: 268 MB at
n = 16,384, 69 GB at 262,144. Here a band of rows is evaluated at a time; in a compiled graph torch's compiler counts
cells without keeping them. The layers of a model share their masks, so what was found is cached by the mask.

Tiles of the score matrix that a mask leaves empty, partial or full, as lists: what flex visits.

They are made by operators of torch, which a compiled graph holds as they are. Flex reads the lists by the layout that
torch gives a new tensor. Where the compiler itself makes them, it may choose another: flex then reads numbers that are
no tiles, and the process ends in a CUDA error (torch 2.11; "operation not supported on global/shared address space").
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from clearhead.attention import mask_rules, masks
from clearhead.attention.inputs import AttentionInputs, Visibility
from clearhead.attention.kernels.launch import triton_code
from clearhead.attention.mask_numbers import ListedNumbers
from clearhead.attention.modes import can_read, has_numbers, is_captured
from clearhead.attention.score_index import four_axes
from clearhead.attention.similarity import Similarity
from clearhead.compiling import missing_triton
from clearhead.devices import on_device
from clearhead.lru_cache import LRUCache

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


BAND_CELLS = 1 << 24
"""Cells of the mask evaluated at a time."""
CACHED = 16
"""Masks whose tiles are kept."""


@dataclass(frozen=True)
class MaskTiles:
    """Tiles of a mask, and which queries and keys it hides: what flex needs beside the rule itself."""

    block_mask: BlockMask
    sight: Visibility | None
    """Which queries and keys take part; None if all of them do."""
    structure: tuple[object, ...]
    """What flex is compiled for: tiles of one structure differ in their tensors alone."""
    mask: masks.Mask
    """Kept alive, so that no other mask comes to have the identity it is cached by."""


cache = LRUCache[tuple[object, ...], MaskTiles](most=CACHED)


Rule = Callable[..., Tensor]
"""From the indices of batch, head, query and key to whether the query may attend: flex asks it in partial tiles."""


def tiles_of(call: AttentionInputs, rule_of: Callable[[AttentionInputs], Rule]) -> MaskTiles:
    """Return the tiles of a call's mask with their rule, from the cache where the same mask was seen at the same size.

    The rule is kept too: torch's compiler looks at a function that it has seen before in a few microseconds.
    """
    key = None if torch.compiler.is_compiling() else cache_key(call)
    if key is None:
        return find_tiles(call, rule_of)
    return cache.get_or_make(key, lambda: find_tiles(call, rule_of))


def cache_key(call: AttentionInputs) -> tuple[object, ...] | None:
    """Return the cache key of a mask's tiles; None if it has none, as for a mask that calls a user's function.

    A captured CUDA graph computes its tiles anew in each replay, so a capture reads nothing made outside it.
    """
    identity = mask_identity(call.mask)
    if identity is None or call.given_positions is not None or call.share is not None:
        return None
    return (
        identity,
        call.query.shape[0],
        call.n_heads,
        call.n_query,
        call.n_key,
        call.query.device,
        is_captured(call.query),
    )


def mask_identity(mask: object) -> tuple[object, ...] | None:
    """Return a mask's class with its numbers, and its tensors by identity and version."""
    names = compared_fields(type(mask))
    if names is None:
        return None
    identity: list[object] = [type(mask)]
    for name in names:
        value = getattr(mask, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Tensor):
                identity.append(None if item.is_inference() else (id(item), item._version))
            elif isinstance(item, ListedNumbers):
                identity.append(id(item))
            elif isinstance(item, masks.Mask):
                identity.append(mask_identity(item))
            else:
                identity.append(item if isinstance(item, int | bool | str) else None)
            if identity[-1] is None:
                return None
    return tuple(identity)


@functools.cache
def compared_fields(kind: type) -> tuple[str, ...] | None:
    """Return the fields that make up a mask of Clearhead's own, those that follow from others left out."""
    if kind.__module__ != mask_rules.__name__ or kind is mask_rules.Function or not is_dataclass(kind):
        return None
    return tuple(field.name for field in fields(kind) if field.compare)


def find_tiles(call: AttentionInputs, rule_of: Callable[[AttentionInputs], Rule]) -> MaskTiles:
    ranges = key_ranges(call)
    return count_tiles(call, rule_of(call)) if ranges is None else range_tiles(call, ranges)


def key_ranges(call: AttentionInputs) -> tuple[Tensor, Tensor] | None:
    """Return the keys that each query sees, `(batch or 1, query)`; None if they may not follow each other."""
    if call.given_positions is not None:
        return None
    seen = call.mask.key_range(call.positions.query, call.n_key)
    if seen is None:
        return None
    batch = max(side.shape[0] for side in seen)
    first, stop = (side.expand(batch, call.n_query) for side in seen)
    return (first, stop) if call.share is None else (call.share.of_batch(first), call.share.of_batch(stop))


def range_tiles(call: AttentionInputs, ranges: tuple[Tensor, Tensor]) -> MaskTiles:
    first, stop, *lists = list_range_tiles(*ranges, call.n_key)
    every_row = first.shape[0] == 1

    def may_attend(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = torch.zeros_like(batch) if every_row else batch
        return (key >= first[row, query]) & (key < stop[row, query])

    return MaskTiles(
        block_mask=block_mask_of(TileLists(*lists), may_attend, call),
        sight=range_sight(call, first, stop),
        structure=("ranges", every_row),
        mask=call.mask,
    )


def range_sight(
    call: AttentionInputs, first: Int[Tensor, "b query"], stop: Int[Tensor, "b query"]
) -> Visibility | None:
    """Return which keys are seen, and which queries see any; None if the kind of mask says that all are and do.

    Queries that see no key need no care if no tile of theirs is visited, and if they reach flex as they are.
    """
    if call.n_query == call.n_key and all(term.sees_itself for term in call.mask.terms):
        return None
    edges = first.new_zeros(first.shape[0], call.n_key + 1)
    sees = (first < stop).to(edges.dtype)
    edges = edges.scatter_add(1, first.long(), sees).scatter_add(1, stop.long(), -sees)
    keys = edges.cumsum(1)[:, None, :-1] > 0
    unchanged = type(call.similarity).prepare is Similarity.prepare and not isinstance(call.scale, Tensor)
    alone = unchanged and call.n_query <= call.n_key and all(term.from_first_key for term in call.mask.terms)
    sight = Visibility(rows=None if alone else (first < stop).unsqueeze(1), keys=keys)
    return None if can_read(keys) and sees_all(sight) else sight


def count_tiles(call: AttentionInputs, rule: Rule) -> MaskTiles:
    """Evaluate the mask band by band; count the allowed cells of each tile, and note who sees and who is seen."""
    n_query, n_key = call.n_query, call.n_key
    batch, heads, *_ = four_axes(call.mask.allowed(call.cells(slice(0, 1)))).shape
    band = max(1, BAND_CELLS // (batch * heads * n_key * TILE)) * TILE
    # A compiled graph keeps no cells: it needs no bands, and has one for any length.
    bands = [None] if torch.compiler.is_compiling() else [slice(at, at + band) for at in range(0, n_query, band)]
    counts, rows = [], []
    keys: Tensor | None = None
    for rows_of_band in bands:
        cells = call.cells(rows_of_band)
        allowed = four_axes(call.mask.allowed(cells)).expand(batch, heads, cells.query.shape[2], n_key)
        sight = Visibility.of(allowed)
        rows.append(sight.rows)
        keys = sight.keys if keys is None else keys | sight.keys
        counts.append(count_cells(allowed))
    assert keys is not None
    sight = Visibility(rows=torch.cat(rows, -1), keys=keys)
    positions, readable = call.given_positions, has_numbers(keys) and not is_captured(keys)
    return MaskTiles(
        block_mask=block_mask_of(TileLists(*list_counted_tiles(torch.cat(counts, 2))), rule, call),
        sight=None if readable and sees_all(sight) else sight,
        structure=(call.mask.structure, positions and (positions.query.ndim, positions.key.ndim), n_query == n_key),
        mask=call.mask,
    )


def count_cells(allowed: Bool[Tensor, "b h row key"]) -> Int[Tensor, "b h row_tile key_tile"]:
    n_row, n_key = allowed.shape[2:]
    padded = F.pad(allowed, (0, -n_key % TILE, 0, -n_row % TILE))
    return padded.unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE)).sum((3, 5))


def sees_all(sight: Visibility) -> bool:
    """Look whether nothing is hidden; on a GPU by waiting for it."""
    return bool(sight.keys.all()) and (sight.rows is None or bool(sight.rows.all()))


def block_mask_of(lists: TileLists, rule: Rule, call: AttentionInputs) -> BlockMask:
    return BlockMask(
        seq_lengths=(call.n_query, call.n_key),
        kv_num_blocks=lists.row_counts,
        kv_indices=lists.row_tiles,
        full_kv_num_blocks=lists.full_row_counts,
        full_kv_indices=lists.full_row_tiles,
        q_num_blocks=lists.column_counts,
        q_indices=lists.column_tiles,
        full_q_num_blocks=lists.full_column_counts,
        full_q_indices=lists.full_column_tiles,
        BLOCK_SIZE=(TILE, TILE),
        mask_mod=rule,
    )
