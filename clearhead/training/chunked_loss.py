"""The loss of a long sequence, a chunk of its places at a time: the logits of all of them never stand in memory.

A million tokens times a vocabulary of 32,000 are 64 GB of logits in bfloat16, and as much of their gradient, while a
model of 110 million parameters keeps 20 GB between its blocks. Here the gradient of a chunk's logits becomes that of
its vectors and of the table at once, in the forward pass: nothing is computed twice.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.model.outputs import ToVocabulary, deferring
from clearhead.model.transformers import Transformer
from clearhead.registry import says
from clearhead.training.losses import Logits, Loss, TargetIds, cross_entropy
from clearhead.training.tasks.learning import Batch, Learning

LOGITS_AT_ONCE = 1 << 31
"""Most logits of a batch that are computed at once: 4 GB in bfloat16. With fewer, one product is as quick."""
CHUNK_LOGITS = 1 << 28
"""Logits of a chunk, about."""


def long_output(model: Transformer, task: Learning, places: int) -> ToVocabulary | None:
    """Return the output of a model if so many places have too many logits for it to be applied at once; else None.

    A task may do more with logits than their loss, and compiled code fuses loss and output.
    """
    output = (model.decoder or model).output
    if type(output) is not ToVocabulary or output.tapped or torch.compiler.is_compiling():
        return None
    too_many = places * len(output.table) > LOGITS_AT_ONCE
    return output if too_many and says(type(task), "plain_logits", beside="logits") else None


def logits_by_chunk(model: Transformer, task: Learning, batch: Batch) -> Iterator[tuple[Logits, TargetIds]]:
    """Yield the logits of a batch and the targets there: all at once, or a chunk of places at a time."""
    wanted = batch["wanted"].flatten()
    output = long_output(model, task, len(wanted))
    if output is None:
        yield task.logits(model, batch).flatten(0, -2), wanted
        return
    with deferring(output):
        x = task.logits(model, batch).flatten(0, -2)
    for chunk in chunks_of(output, len(x)):
        yield output.logits(x[None, chunk])[0], wanted[chunk]


def chunked_cross_entropy(output: ToVocabulary, x: Tensor, wanted: TargetIds, smoothing: float) -> Loss:
    """Return `cross_entropy` of the output's logits for `(place, d_model)` vectors, a chunk at a time."""
    return Loss(*ChunkedCrossEntropy.apply(output, wanted, smoothing, x, output.table, output.bias))


def chunks_of(output: ToVocabulary, places: int) -> list[slice]:
    rows = max(1, CHUNK_LOGITS // len(output.table))
    return [slice(start, min(start + rows, places)) for start in range(0, places, rows)]


class ChunkedCrossEntropy(torch.autograd.Function):
    """The summed objective and the summed negative log-likelihood; only the objective has a gradient."""

    @staticmethod
    def forward(
        ctx: Any, output: ToVocabulary, wanted: Tensor, smoothing: float, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        inputs = [tensor for tensor in tensors if tensor is not None]  # vectors, table, and a bias if there is one
        x = inputs[0]
        needed = [i for i, tensor in enumerate(inputs) if tensor.requires_grad]
        # Sums over chunks are kept in float32 or wider: bfloat16 would lose the later ones.
        wide = torch.promote_types(x.dtype, torch.float32)
        totals = [torch.zeros_like(tensor, dtype=wide if i else x.dtype) for i, tensor in enumerate(inputs)]
        objective, nll = x.new_zeros((), dtype=wide), x.new_zeros((), dtype=wide)
        for chunk in chunks_of(output, len(x)):
            sources = [x[None, chunk].detach().requires_grad_(0 in needed), *inputs[1:]]
            with torch.enable_grad():
                loss = cross_entropy(output.logits(sources[0])[0], wanted[chunk], smoothing)
                grads = torch.autograd.grad(loss.objective, [sources[i] for i in needed])
            objective += loss.objective.detach()
            nll += loss.nll
            for i, grad in zip(needed, grads, strict=True):
                if i == 0:
                    totals[0][chunk] = grad[0]
                else:
                    totals[i] += grad
        ctx.save_for_backward(*(totals[i].to(inputs[i].dtype) if i in needed else None for i in range(len(inputs))))
        ctx.mark_non_differentiable(nll)
        return objective, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        scaled = [None if total is None else total * grads[0].to(total.dtype) for total in ctx.saved_tensors]
        return None, None, None, *scaled, *[None] * (3 - len(scaled))
