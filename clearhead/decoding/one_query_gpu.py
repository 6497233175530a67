"""Attention of one query a head to cached keys as one Triton kernel, for decoding steps on a GPU.

Torch's kernels work on tiles of 64 queries, read every column that is allocated, and want a bias that hides those not
yet filled. This one reads the filled columns: on an H200, at batch 512 with 36 of 72 columns filled, in 19 instead of
81 µs.
"""

import importlib

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.compiling import missing_triton

BLOCK = 64
"""Keys that a program reads at once."""
WIDEST = 256
"""Numbers of a head that a program holds."""
MOST_KEYS = 256
"""Columns that one program is left to read alone. With 900 of 1,024 filled, torch's kernel is ahead: 5.9 µs instead of
19 for one row, 37 instead of 46 for 64 rows."""


def serves(query: Float[Tensor, "row head n d"], keys: Float[Tensor, "row kv_head column d"]) -> bool:
    """Check for one query a head, not too many keys, and a device that has Triton."""
    return (
        query.shape[2] == 1
        and query.shape[3] <= WIDEST
        and keys.shape[2] <= MOST_KEYS
        and missing_triton(query.device.type) is None
    )


def attend_one(
    query: Float[Tensor, "row head 1 d"],
    keys: Float[Tensor, "row kv_head column d"],
    values: Float[Tensor, "row kv_head column d"],
    *,
    scale: float,
    bias: Float[Tensor, "row 1 1 column"] | None = None,
    column: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "row head 1 d"]:
    """Return softmax attention without gradients; only columns up to `column` are filled (None: all are)."""
    rows, n_heads, _, d = query.shape
    query, keys, values = (one if one.stride(-1) == 1 else one.contiguous() for one in (query, keys, values))
    context = torch.empty(rows, n_heads, 1, d, dtype=values.dtype, device=query.device)
    if bias is not None:
        bias = bias if bias.stride(-1) == 1 else bias.contiguous()
    kernel = importlib.import_module("clearhead.decoding.one_query_triton").attend_one
    kernel[(rows * n_heads,)](
        query,
        keys,
        values,
        query if bias is None else bias,
        query if column is None else column,
        context,
        *query.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        0 if bias is None or len(bias) == 1 else bias.stride(0),
        keys.shape[2],
        SCALE=scale,  # as a constant it keeps its 64 bits
        HEADS=n_heads,
        GROUP=n_heads // keys.shape[1],
        D=d,
        WIDTH=max(16, 1 << (d - 1).bit_length()),
        BLOCK=BLOCK,
        BIASED=bias is not None,
        GROWING=column is not None,
        num_warps=4,
    )
    return context
