"""Packed documents, attended to one by one: no matrix of truth values, and no score of two documents is computed.

A query sees keys of its own document alone, so attention to each document by itself is the definition. Documents of one
length that follow each other are a batch of sequences: of eight documents of 2,048 tokens one call is made.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead.attention.kernels.base import Context
from clearhead.attention.mask_numbers import EqualDocuments

Attend = Callable[[Tensor, Tensor, Tensor], Context]
Tensors = tuple[Tensor, Tensor, Tensor]
Rows = Sequence[Sequence[EqualDocuments]]


def attend_documents(tensors: Tensors, rows: Rows, attend: Attend) -> Context:
    """Return the context of every query, by `attend`, which computes it for whole documents.

    `rows` are the runs of each batch row, or one row of runs for all of them.
    """
    if len(rows) == 1:
        return attend_runs(tensors, rows[0], attend)
    # The gradient of `split` is one cat; that of a slice would be a tensor of zeros as large as the whole.
    by_row = zip(*(tensor.split(1) for tensor in tensors), strict=True)
    return join([attend_runs(row, runs, attend) for row, runs in zip(by_row, rows, strict=True)], 0)


def attend_runs(tensors: Tensors, runs: Sequence[EqualDocuments], attend: Attend) -> Context:
    """Return the context of sequences that are all packed in the same way."""
    if len(runs) == 1:
        return attend_run(tensors, runs[0], attend)
    sizes = [run.repeats * run.length for run in runs]
    by_run = zip(*(tensor.split(sizes, 2) for tensor in tensors), strict=True)
    return join([attend_run(some, run, attend) for some, run in zip(by_run, runs, strict=True)], 2)


def attend_run(tensors: Tensors, run: EqualDocuments, attend: Attend) -> Context:
    """Return the context of documents of one length; zeros, without a gradient, where there is no document."""
    query, _, value = tensors
    if not run.document:
        return value.new_zeros(*query.shape[:3], value.shape[-1])
    if run.repeats == 1:
        return attend(*tensors)
    query, key, value = (tensor.unflatten(2, (run.repeats, -1)).transpose(1, 2).flatten(0, 1) for tensor in tensors)
    return attend(query, key, value).unflatten(0, (-1, run.repeats)).transpose(1, 2).flatten(2, 3)


def join(parts: list[Tensor], axis: int) -> Tensor:
    """Concatenate along the batch or the positions; in memory, heads are within positions, as torch's kernels leave
    them and a layer's output map wants them.
    """
    return torch.cat([part.transpose(1, 2) for part in parts], min(axis, 1)).transpose(1, 2)
