"""Packed documents, attended to one by one: no matrix of truth values, and no score of two documents is computed.

A query sees keys of its own document alone, so attention to each document by itself is the definition. Documents of one
length that follow each other are a batch of sequences: of eight documents of 2,048 tokens one call is made.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.kernels.base import Context
from clearhead.attention.mask_numbers import Run
from clearhead.attention.masks import Causal, Everything

__all__ = ["attend_documents"]

Attend = Callable[[AttentionInputs], Context]


def attend_documents(call: AttentionInputs, rows: Sequence[Sequence[Run]], attend: Attend) -> Context:
    """Return the context of every query, by `attend`, which computes whole sequences with no mask or a causal one.

    `rows` are the runs of each batch row, or one row of runs for all of them.
    """
    causal = any(isinstance(term, Causal) for term in call.mask.terms)
    call = call.replace(mask=Causal() if causal else Everything())
    if len(rows) == 1:
        return attend_runs(call, rows[0], attend)
    # The gradient of `split` is one cat; that of a slice would be a tensor of zeros as large as the whole.
    each = zip(call.query.split(1), call.key.split(1), call.value.split(1), rows, strict=True)
    return join([attend_runs(call.replace(query=q, key=k, value=v), runs, attend) for q, k, v, runs in each], 0)


def attend_runs(call: AttentionInputs, runs: Sequence[Run], attend: Attend) -> Context:
    """Return the context of sequences that are all packed in the same way."""
    if len(runs) == 1:
        return attend_run(call, runs[0], attend)
    sizes = [run.repeats * run.length for run in runs]
    each = zip(call.query.split(sizes, 2), call.key.split(sizes, 2), call.value.split(sizes, 2), runs, strict=True)
    return join([attend_run(call.replace(query=q, key=k, value=v), run, attend) for q, k, v, run in each], 2)


def attend_run(call: AttentionInputs, run: Run, attend: Attend) -> Context:
    """Return the context of documents of one length; zeros, without a gradient, where there is no document."""
    if not run.document:
        return call.value.new_zeros(*call.query.shape[:3], call.value.shape[-1])
    if run.repeats == 1:
        return attend(call)
    query, key, value = (
        one.unflatten(2, (run.repeats, -1)).transpose(1, 2) for one in (call.query, call.key, call.value)
    )
    context = attend(call.replace(query=query.flatten(0, 1), key=key.flatten(0, 1), value=value.flatten(0, 1)))
    return context.unflatten(0, (-1, run.repeats)).transpose(1, 2).flatten(2, 3)


def join(parts: list[Tensor], axis: int) -> Tensor:
    """Concatenate along the batch or the positions; in memory, heads are within positions, as torch's kernels leave
    them and a layer's output map wants them.
    """
    return torch.cat([part.transpose(1, 2) for part in parts], min(axis, 1)).transpose(1, 2)
