"""Context parallelism: one sequence over several processes, for every attention, with the arithmetic of one process.

`SequenceSplit` says which blocks of a sequence a process holds. Positions are explicit everywhere in `attention`, so
masks, rotary positions and biases follow from the positions of what it holds.

There are two ways, chosen by the parts of a call:

- **gather**: keys and values of all processes are gathered, and each block of queries is an ordinary call on the keys
  that it may see, by any kernel. It serves every similarity, weighting, bias and mask, ties of argmax included.
- **state**: in kernelized attention a process sends only the sum of φ(k) vᵀ over each of its blocks, and every query
  reads the sum of the blocks before its own. What is sent does not grow with the length. It serves no mask, causal,
  padding, and packed documents under a causal mask; a window must forget keys, which a sum cannot.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention import masks, reference
from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.kernels import run
from clearhead.attention.kernels.base import Context
from clearhead.attention.kernels.chunked import Chunks, Sums, chunk_sums, in_chunks, read_sums, state_after
from clearhead.attention.kernels.linear import hide, in_order, kernelized, logarithmic, map_features
from clearhead.attention.mask_numbers import numbers_at, numbers_on
from clearhead.attention.mask_rules import Document, Mask, Padding, Window
from clearhead.attention.modes import BLOCK_DROPOUT, BlockDropout
from clearhead.attention.score_index import Positions
from clearhead.attention.sequence_split import Held, SequenceSplit
from clearhead.errors import ShapeError

RELATIVE = frozenset({"causal", "window"})
"""Masks that depend on the distance between query and key alone."""


def attend_split(kernel: str, call: AttentionInputs, split: SequenceSplit) -> Context:
    """Return the context of this process's queries on the keys of all processes of the split.

    `call` has this process's queries, keys and values, and positions only where they were given; `kernel` is for the
    ordinary calls of the gathering way.
    """
    if call.n_query != 2 * split.block or call.n_key != 2 * split.block:
        raise ShapeError(
            f"of {split.n} places over {split.count} processes each holds {2 * split.block}, those of split.indices(); "
            f"came {call.n_query} queries and {call.n_key} keys"
        )
    return by_state(call, split) if passes_state(call) else by_gathering(kernel, call, split)


def passes_state(call: AttentionInputs) -> bool:
    """Check whether the blocks before a query's own come to it as one sum."""
    if call.weighting.form != "kernelized" or call.dropout or call.given_positions is not None:
        return False
    kinds = call.mask.kinds
    return kinds <= {"none", "padding"} or ("causal" in kinds and kinds <= {"causal", "padding", "document"})


@dataclass(frozen=True, eq=False)
class WholeKeys:
    """Keys, values and given positions of the whole sequence, and the call of this process that asks them."""

    call: AttentionInputs
    split: SequenceSplit
    key: Tensor
    value: Tensor
    positions: Tensor | None
    """None: the places themselves."""

    @staticmethod
    def of(call: AttentionInputs, split: SequenceSplit) -> "WholeKeys":
        both = split.gather(torch.cat([call.key, call.value], -1), 2)
        key, value = both.split([call.key.shape[-1], call.value.shape[-1]], -1)
        given = call.given_positions
        return WholeKeys(call, split, key, value, None if given is None else split.gather(given.key, -1))

    def asked_by(self, held: Held) -> tuple[AttentionInputs, int]:
        """Return an ordinary call of a block's queries on the keys that it may see, and the first of these keys.

        Under a causal mask the last key is that of the last query, which is where queries stand by default: then every
        kernel serves the call that serves the whole.
        """
        call, (start, stop) = self.call, (held.whole.start, held.whole.stop)
        plain, kinds = self.positions is None, call.mask.kinds
        lefts = [term.left for term in call.mask.terms if isinstance(term, Window)]
        first = max(0, start - min(lefts)) if lefts and plain and kinds <= RELATIVE else 0
        last = stop if plain and "causal" in kinds else self.split.n
        positions = None
        if not plain or last != stop:
            every = torch.arange(self.split.n, device=call.query.device) if self.positions is None else self.positions
            positions = Positions(every[..., start:stop], every[..., first:last])
        asked = call.replace(
            query=call.query[:, :, held.own],
            key=self.key[:, :, first:last],
            value=self.value[:, :, first:last],
            mask=call.mask.part(slice(start, stop), slice(first, last)),
            given_positions=positions,
        )
        return asked, first


def by_gathering(kernel: str, call: AttentionInputs, split: SequenceSplit) -> Context:
    """Return the context by ordinary calls on gathered keys and values, one for each block of queries."""
    keys = WholeKeys.of(call, split)
    make_dropout = BLOCK_DROPOUT.get() if call.dropout else None
    drop = None if make_dropout is None else make_dropout(call.dropout)
    contexts = []
    for held in split.held:
        if held.length:
            asked, first = keys.asked_by(held)
            with dropping_in_whole(drop, split.n, held.whole.start, first):
                context = run(kernel if drop is None else "blockwise", asked)
        else:
            context = no_queries(keys.value, call)
        contexts.append(context)
    return join_blocks(contexts, split)


def join_blocks(contexts: list[Tensor], split: SequenceSplit) -> Context:
    """Return the contexts of both blocks, with zeros where they reach beyond the sequence."""
    return torch.cat([F.pad(context, (0, 0, 0, split.block - context.shape[2])) for context in contexts], 2)


def no_queries(gathered: Tensor, call: AttentionInputs) -> Context:
    """Return the context of no query. It depends on what was gathered and on learned parts: other processes wait for
    the gradients.
    """
    tensors = (gathered, *call.parameters())
    nothing = torch.cat([tensor.flatten()[:0].to(call.value.dtype) for tensor in tensors])
    return nothing.reshape(*call.query.shape[:2], 0, call.value.shape[-1])


@contextlib.contextmanager
def dropping_in_whole(drop: BlockDropout | None, n: int, start: int, first: int) -> Iterator[None]:
    """Let the calls within drop what `drop` drops of the weights of the whole sequence.

    Their first query is number `start` of the sequence, and their first key number `first`.
    """
    if drop is None:
        yield
        return

    def drop_part(weight: Tensor, queries: slice, keys: slice, size: tuple[int, int]) -> Tensor:
        return drop(weight, moved(queries, start), moved(keys, first), (n, n))

    before = BLOCK_DROPOUT.set(lambda share: drop_part)
    try:
        yield
    finally:
        BLOCK_DROPOUT.reset(before)


def moved(places: slice, by: int) -> slice:
    return slice(places.start + by, places.stop + by)


def by_state(call: AttentionInputs, split: SequenceSplit) -> Context:
    """Return the context of kernelized attention: each block by itself, and the sums of other blocks added.

    Under a causal mask a block needs the sums before it, else those of all.
    """
    dtype, ordered = call.query.dtype, in_order(call)
    call = call.to_float32().with_every_head()
    blocks = [block_features(call, split, held) for held in split.held]
    own = torch.cat([pack(block_state(call, block, ordered=ordered)) for block in blocks], 2)
    states = split.gather_blocks(own, 2)
    contexts = []
    for held, block in zip(split.held, blocks, strict=True):
        if block is None:
            contexts.append(no_queries(states, call))
            continue
        numbers = range(held.number if ordered else 2 * split.count)
        seen = [unpack(call, states[:, :, i : i + 1], reaches(call, split, i, held)) for i in numbers]
        if ordered:
            contexts.append(in_chunks(block, reduce(Sums.__add__, seen) if seen else None))
        else:
            read = read_sums(Chunks.whole(block), reduce(Sums.__add__, seen)).amount.squeeze(2)
            contexts.append(kernelized(call).divide(*read.split([call.value.shape[-1], 1], -1)))
    return join_blocks(contexts, split).to(dtype)


def block_features(call: AttentionInputs, split: SequenceSplit, held: Held) -> AttentionInputs | None:
    """Return a block as a call of its own, with φ(q) and φ(k) and without the keys that no query sees; None if the
    block lies beyond the sequence.
    """
    if not held.length:
        return None
    start = held.whole.start
    mask: Mask = masks.everything()
    hidden = torch.zeros(1, 1, held.length, 1, dtype=torch.bool, device=call.key.device)
    places = torch.arange(held.length, device=call.key.device)
    for term in call.mask.terms:
        if isinstance(term, Padding):
            lengths = numbers_on(term.lengths, call.key.device) - start
            hidden = hidden | (places >= lengths.view(-1, 1)).view(-1, 1, held.length, 1)
        elif isinstance(term, Document):  # one more id: that of the place after the block
            ids = numbers_on(term.ids, call.key.device)
            hidden = hidden | (ids[:, held.whole] < 0).view(-1, 1, held.length, 1)
            mask = mask & Document(numbers_at(term.ids, slice(start, min(held.whole.stop + 1, split.n))), packed=True)
        else:
            mask = mask & term
    own = call.replace(
        query=call.query[:, :, held.own],
        key=call.key[:, :, held.own].masked_fill(hidden, 0),
        value=call.value[:, :, held.own].masked_fill(hidden, 0),
        mask=mask,
    )
    return hide(map_features(own), hidden)


def block_state(call: AttentionInputs, block: AttentionInputs | None, *, ordered: bool) -> Sums:
    """Return the sum over a block's keys: with documents, over the one that runs on into the next block."""
    if block is None:  # a sum over no keys, which has a gradient as the others have
        features = map_features(call.replace(query=call.query[:, :, :1], key=call.key[:, :, :1])).key[:, :, :0]
        amount = (features.mT @ F.pad(call.value[:, :, :0], (0, 1))).unsqueeze(2)
        return Sums(amount, torch.full_like(amount[..., :1], -math.inf) if logarithmic(call) else None)
    return state_after(Chunks.of(block)) if ordered else chunk_sums(chunks := Chunks.whole(block), chunks.key)


def pack(state: Sums) -> Tensor:
    return state.amount if state.peak is None else torch.cat([state.amount, state.peak], -1)


def unpack(call: AttentionInputs, state: Tensor, keep: Tensor | None) -> Sums:
    """Return a gathered state; an empty one in the batch rows where it is not kept."""
    sums = Sums(state)
    if logarithmic(call):
        amount, peak = state.split([call.value.shape[-1] + 1, 1], -1)
        sums = Sums(amount, peak.detach())
    return sums if keep is None else sums.where(keep)


def reaches(call: AttentionInputs, split: SequenceSplit, number: int, held: Held) -> Tensor | None:
    """Check in which rows the document after block `number` is still that at the start of a later block; None: all."""
    documents = [term for term in call.mask.terms if isinstance(term, Document)]
    if not documents:
        return None
    ids = numbers_on(documents[0].ids, call.key.device)
    return (ids[:, (number + 1) * split.block] == ids[:, held.whole.start]).view(-1, 1, 1, 1, 1)


@torch.no_grad()
def gather_weights(call: AttentionInputs, split: SequenceSplit, *, head: int, queries: slice, keys: slice) -> Tensor:
    """Return a tile of one head's weights `(batch, query, key)` by the reference, in every process: of these queries
    and keys, by their places in the whole sequence. Each process computes the rows of the queries that it holds.
    """
    every = WholeKeys.of(call.replace(dropout=0.0), split)
    tile = call.query.new_zeros(call.query.shape[0], queries.stop - queries.start, keys.stop - keys.start)
    for held in split.held:
        start, stop = max(queries.start, held.whole.start), min(queries.stop, held.whole.stop)
        if start >= stop:
            continue
        rows = Held(held.number, moved(slice(start, stop), held.own.start - held.whole.start), slice(start, stop))
        asked, first = every.asked_by(rows)
        weight = reference.steps(asked.of_head(head) or asked).weight
        weight = weight[:, 0 if weight.shape[1] == 1 else head]
        left, right = max(keys.start, first), min(keys.stop, first + weight.shape[-1])
        if left < right:
            part = weight[..., left - first : right - first].to(tile.dtype)
            tile[:, start - queries.start : stop - queries.start, left - keys.start : right - keys.start] = part
    if split.count > 1:
        dist.all_reduce(tile, group=split.group)
    return tile
