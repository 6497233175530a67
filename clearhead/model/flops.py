"""Operations: how many the matrix products of a block take, by part; `describe` says what is counted and what is not.

Each piece of a block runs on the meta device under torch's own counter, so a user's own part is counted too.
Attention is put together here, since no kernel forms exactly the scores that the mask allows.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from clearhead.attention.layer import Attention
from clearhead.attention.mask_numbers import Extent
from clearhead.attention.masks import Mask, Window
from clearhead.attention.score_index import Positions, box
from clearhead.model.blocks import Block

CELLS = 1 << 24
"""Cells of a mask evaluated at a time."""


class Cost(NamedTuple):
    """A part of a block: where in the block its parameters are, and its operations."""

    name: str
    paths: tuple[str, ...]
    operations: int


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


def count_operations(function: Callable[..., Any], *inputs: Tensor | None) -> tuple[int, Any]:
    """Count the operations of a function's matrix products, with gradients on: without, some take another way."""
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        result = function(*inputs)
    return counter.get_total_flops(), result


def block_costs(block: Block, batch: int, n: int, n_memory: int) -> Iterator[Cost]:
    """Return the parts of a block for n tokens, cross-attending to n_memory vectors if it does."""
    yield from attention_costs("attention", block.attention, batch, n, n)
    if block.cross is not None:
        yield from attention_costs("cross", block.cross, batch, n, n_memory)
    if block.feed_forward is not None:
        operations, _ = count_operations(block.feed_forward, meta(batch, n, block.attention.d_model))
        yield Cost("feed-forward", ("feed_forward",), operations)
    yield Cost("norms", ("around_attention", "around_cross", "around_feed_forward"), 0)


def attention_costs(slot: str, layer: Attention, batch: int, n_query: int, n_key: int) -> Iterator[Cost]:
    query_ops, query = count_operations(layer.query, meta(batch, n_query, layer.d_model))
    key_ops, key = count_operations(layer.key, meta(batch, n_key, layer.d_model))
    value_ops, value = count_operations(layer.value, meta(batch, n_key, layer.d_model))
    yield Cost(f"{slot} query map", (f"{slot}.query",), query_ops)
    yield Cost(f"{slot} key map", (f"{slot}.key",), key_ops)
    yield Cost(f"{slot} value map", (f"{slot}.value",), value_ops)
    count_pairs = count_summed if layer.weighting.form == "kernelized" else count_scored
    name, score_ops, sum_ops = count_pairs(layer, query, key, value)
    yield Cost(f"{slot} {name}", (f"{slot}.similarity", f"{slot}.weighting", f"{slot}.position"), score_ops)
    yield Cost(f"{slot} weighted sum", (), sum_ops)
    output_ops, _ = count_operations(layer.output, meta(batch, n_query, query.shape[1] * value.shape[-1]))
    yield Cost(f"{slot} output map", (f"{slot}.output",), output_ops)


def count_scored(layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> tuple[str, int, int]:
    """Count operations where every pair has its score, and its term in the sum."""
    batch, n_heads, n_query, _ = query.shape
    once, (prepared_query, prepared_key) = count_operations(layer.similarity.prepare, query, every_head(key, n_heads))
    one_in_each_head, _ = count_operations(layer.similarity.score, prepared_query[:1, :, :1], prepared_key[:1, :, :1])
    pairs = allowed_pairs(layer.mask, Extent(batch, n_heads, n_query, key.shape[2], torch.device("cpu")))
    return "scores", once + pairs * one_in_each_head // n_heads, pairs * 2 * value.shape[-1]


def count_summed(layer: Attention, query: Tensor, key: Tensor, value: Tensor) -> tuple[str, int, int]:
    """Count operations where keys and values are summed, and the sums read."""
    batch, n_heads, n_query, _ = query.shape
    once, (_, prepared_key) = count_operations(layer.similarity.prepare, query, every_head(key, n_heads))
    d_value, per_column = value.shape[-1], 2 * batch * n_heads * prepared_key.shape[-1]
    return "features and sums", once + per_column * d_value * key.shape[2], per_column * (d_value + 1) * n_query


def every_head(key: Tensor, n_heads: int) -> Tensor:
    """Repeat shared heads, one for each query head."""
    return key.repeat_interleave(n_heads // key.shape[1], 1)


def allowed_pairs(mask: Mask, extent: Extent) -> int:
    """Count the pairs of a query and a key that the mask allows, over all heads and sequences, both from 0."""
    mask.check(extent)
    query, key = torch.arange(extent.n_query), torch.arange(extent.n_key)
    if mask.kinds <= {"none", "causal", "window"}:
        return spans(mask, query, extent.n_key) * extent.batch * extent.n_heads
    total, step = 0, max(1, CELLS // (extent.batch * extent.n_heads * extent.n_key))
    for start in range(0, extent.n_query, step):
        rows = slice(start, min(start + step, extent.n_query))
        allowed = mask.allowed(box(Positions(query, key), batch=extent.batch, n_heads=extent.n_heads, rows=rows))
        cells = extent.batch * extent.n_heads * (rows.stop - rows.start) * extent.n_key
        total += int(allowed.sum()) * cells // allowed.numel()
    return total


def spans(mask: Mask, query: Tensor, n_key: int) -> int:
    """Count the pairs of one head where each query sees one unbroken range of keys."""
    first, last = torch.zeros_like(query), torch.full_like(query, n_key - 1)
    if "causal" in mask.kinds:
        last = last.minimum(query)
    for window in windows(mask):
        first, last = first.maximum(query - window.left), last.minimum(query + window.right)
    return int((last - first + 1).clamp(min=0).sum())


def windows(mask: Mask) -> list[Window]:
    return [term for term in mask.terms if isinstance(term, Window)]
