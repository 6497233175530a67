"""Block masks for flex: which tiles of the score matrix a mask leaves empty, partial or full.

torch's `create_block_mask` evaluates a mask on all n_query x n_key cells at once: 268 MB at n = 16,384, 69 GB at
262,144. Here a band of rows is evaluated at a time, and the same pass finds the queries that see no key and the keys
that no query sees. The layers of a model share their masks, so what was found is cached by the mask.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from clearhead.attention import masks
from clearhead.attention.inputs import AttentionInputs, Visibility
from clearhead.attention.mask_numbers import ListedNumbers
from clearhead.attention.modes import has_numbers, is_captured
from clearhead.attention.score_index import four_axes
from clearhead.lru_cache import LRUCache

__all__ = ["MaskTiles", "tiles_of"]

TILE = 128
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
    mask: masks.Mask
    """Kept alive, so that no other mask comes to have the identity it is cached by."""


cache = LRUCache[tuple[object, ...], MaskTiles](most=CACHED)


Rule = Callable[..., Tensor]
"""From the indices of batch, head, query and key to whether the query may attend: flex asks it in partial tiles."""


def tiles_of(call: AttentionInputs, rule_of: Callable[[AttentionInputs], Rule]) -> MaskTiles:
    """Return the tiles of a call's mask with their rule, from the cache where the same mask was seen at the same size.

    The rule is kept too: torch's compiler looks at a function that it has seen before in a few microseconds.
    """
    key = cache_key(call)
    if key is None:
        return find_tiles(call, rule_of(call))
    return cache.get_or_make(key, lambda: find_tiles(call, rule_of(call)))


def cache_key(call: AttentionInputs) -> tuple[object, ...] | None:
    """Return the cache key of a mask's tiles; None where it has none, as for a mask that calls a user's function.

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
    if kind.__module__ != masks.__name__ or kind is masks.Function or not is_dataclass(kind):
        return None
    return tuple(field.name for field in fields(kind) if field.compare)


def find_tiles(call: AttentionInputs, rule: Rule) -> MaskTiles:
    """Evaluate the mask band by band; count the allowed cells of each tile, and note who sees and who is seen."""
    n_query, n_key = call.n_query, call.n_key
    batch, heads, *_ = four_axes(call.mask.allowed(call.cells(slice(0, 1)))).shape
    band = max(1, BAND_CELLS // (batch * heads * n_key * TILE)) * TILE
    counts, rows = [], []
    keys: Tensor | None = None
    for start in range(0, n_query, band):
        stop = min(start + band, n_query)
        allowed = four_axes(call.mask.allowed(call.cells(slice(start, stop))))
        allowed = allowed.expand(batch, heads, stop - start, n_key)
        rows.append(allowed.any(-1))
        seen_keys = allowed.any(-2)
        keys = seen_keys if keys is None else keys | seen_keys
        counts.append(count_cells(allowed))
    assert keys is not None
    sight = Visibility(rows=torch.cat(rows, -1), keys=keys)
    return MaskTiles(
        block_mask=block_mask_of(torch.cat(counts, 2), rule, n_query, n_key),
        sight=None if sees_all(sight) else sight,
        mask=call.mask,
    )


def count_cells(allowed: Bool[Tensor, "b h row key"]) -> Int[Tensor, "b h row_tile key_tile"]:
    n_row, n_key = allowed.shape[2:]
    padded = F.pad(allowed, (0, -n_key % TILE, 0, -n_row % TILE))
    return padded.unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE)).sum((3, 5))


def sees_all(sight: Visibility) -> bool:
    """Look whether nothing is hidden: once for each mask, and never while a CUDA graph is captured."""
    if not has_numbers(sight.rows) or is_captured(sight.rows):
        return False
    return bool(sight.rows.all() & sight.keys.all())


def block_mask_of(counts: Int[Tensor, "b h row_tile key_tile"], rule: Rule, n_query: int, n_key: int) -> BlockMask:
    full = counts == TILE * TILE
    partial = (counts > 0) & ~full
    return BlockMask.from_kv_blocks(
        *list_tiles(partial), *list_tiles(full), BLOCK_SIZE=TILE, mask_mod=rule, seq_lengths=(n_query, n_key)
    )


def list_tiles(
    tiles: Bool[Tensor, "b h row_tile key_tile"],
) -> tuple[Int[Tensor, "b h row_tile"], Int[Tensor, "b h row_tile key_tile"]]:
    """Return how many tiles each row of tiles has, and their places, those it has first."""
    indices = torch.argsort(tiles.to(torch.int8), dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32), indices.to(torch.int32)
