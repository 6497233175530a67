"""Block-wise: the reference on a block of queries at a time, so that n x n numbers are never held.

Serves every similarity and every weighting that looks at one row at a time. Each block is computed again in the
backward pass instead of being kept.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from operator import is_
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from clearhead.attention import reference
from clearhead.attention.inputs import AttentionInputs, KernelFacts, Visibility
from clearhead.attention.kernels.base import Context, Kernel, Refused
from clearhead.attention.modes import BLOCK_DROPOUT, BlockDropout, under_torch_func
from clearhead.devices import random_state, set_random_state

BLOCK_NUMBERS = 1 << 21
"""Most scores (times what the similarity holds for each) of a block: 8 MB in float32."""


class Blockwise(Kernel):
    name: ClassVar[str] = "blockwise"
    summary: ClassVar[str] = "any similarity and weighting, a block of queries at a time, never n x n"

    def refusal(self, facts: KernelFacts) -> str | None:
        return None

    def notes(self, facts: KernelFacts) -> tuple[str, ...]:
        quadratic = "the quadratic form, a block at a time: time grows with n_query x n_key"
        return (quadratic,) if facts.weighting == "kernelized" else ()

    def run(self, call: AttentionInputs) -> Context:
        dtype = call.query.dtype
        call = call.to_float32().with_every_head()
        rows = block_rows(call, BLOCK_NUMBERS)
        if not call.unmasked:
            call = call.zero_hidden(sight(call, rows))
        query, key = call.similarity.prepare(call.query, call.key)
        tensors = (query, key, call.value)
        make_dropout = BLOCK_DROPOUT.get() if call.dropout else None
        drop = None if make_dropout is None else make_dropout(call.dropout)
        if rows >= call.n_query or draws_once(call):
            return context(call, tensors, slice(0, call.n_query), drop).to(dtype)
        if under_torch_func():  # which computes any derivative, and keeps what it needs for it
            return torch.cat([context(call, tensors, block) for block in blocks_of(call, rows)], 2).to(dtype)
        if torch.compiler.is_compiling():
            contexts = [
                checkpoint(context, call, tensors, block, use_reentrant=False) for block in blocks_of(call, rows)
            ]
            return torch.cat(contexts, 2).to(dtype)
        return Blocks.apply(call, rows, drop, query, key, call.value, *call.parameters()).to(dtype)


class Blocks(torch.autograd.Function):
    """Computes one block after another, and each of them again in the backward pass.

    torch's own checkpointing holds as little, but leaves small objects between the blocks, and the heap then finds no
    room for the next block where the last one was: 4 GB instead of 0.2 for additive attention at n = 4,096.
    """

    @staticmethod
    def forward(ctx: Any, call: AttentionInputs, rows: int, drop: BlockDropout | None, *tensors: Tensor) -> Tensor:
        query, key, value, *_ = tensors
        ctx.call, ctx.rows, ctx.drop = call, rows, drop
        ctx.random = random_state(query.device) if call.dropout and drop is None else None
        ctx.parameters = call.parameters()
        ctx.save_for_backward(*tensors)
        output = value.new_empty(*query.shape[:3], value.shape[-1])
        for block in blocks_of(call, rows):
            output[:, :, block] = context(call, (query, key, value), block, drop)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = grads
        replaced = not all(map(is_, ctx.parameters, ctx.call.parameters()))
        inputs = [
            tensor.detach().requires_grad_(needed) if index < 3 or replaced else tensor
            for index, (tensor, needed) in enumerate(zip(ctx.saved_tensors, ctx.needs_input_grad[3:], strict=True))
        ]
        differentiated = [tensor for tensor in inputs if tensor.requires_grad]
        totals = [torch.zeros_like(tensor) for tensor in differentiated]
        again = with_parameters(ctx.call, inputs[3:]) if replaced else functools.partial(context, ctx.call)
        with restore_random_state(ctx.random, grad.device), torch.enable_grad():
            for block in blocks_of(ctx.call, ctx.rows):
                output = again((inputs[0], inputs[1], inputs[2]), block, ctx.drop)
                parts = torch.autograd.grad(output, differentiated, grad[:, :, block], allow_unused=True)
                for total, part in zip(totals, parts, strict=True):
                    if part is not None:
                        total.add_(part)
        if torch.is_grad_enabled():  # someone means to differentiate these again
            totals = [Refused.apply(Blockwise.name, total, grad, *ctx.saved_tensors) for total in totals]
        gradients = iter(totals)
        return None, None, None, *(next(gradients) if tensor.requires_grad else None for tensor in inputs)


class BuiltParts(nn.Module):
    """The built parts of a call as one module, which torch.func's `functional_call` can give other parameters."""

    def __init__(self, call: AttentionInputs) -> None:
        super().__init__()
        self.call, self.parts = call, nn.ModuleList(call.built_parts())

    def forward(self, tensors: tuple[Tensor, Tensor, Tensor], block: slice, drop: BlockDropout | None) -> Context:
        return context(self.call, tensors, block, drop)


def with_parameters(call: AttentionInputs, parameters: list[Tensor]) -> Callable[..., Context]:
    """Return `context` of a call whose parts have these parameters, in the order of `call.parameters()`.

    A layer that ran under `functional_call` has its own parameters back by the time of the backward pass.
    """
    parts = BuiltParts(call)
    names = [f"parts.{at}.{name}" for at, part in enumerate(parts.parts) for name, _ in part.named_parameters()]
    by_name = dict(zip(names, parameters, strict=True))
    return lambda *arguments: functional_call(parts, by_name, arguments)


def draws_once(call: AttentionInputs) -> bool:
    """Check whether dropout cannot be drawn again in the backward pass: a capture reads no random state."""
    if call.dropout == 0 or not call.query.is_cuda or torch.compiler.is_compiling():
        return False
    return torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def restore_random_state(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Use the random state of the forward pass within, for the same dropout; put the present one back afterwards."""
    if state is None:
        yield
        return
    present = random_state(device)
    set_random_state(state, device)
    try:
        yield
    finally:
        set_random_state(present, device)


def blocks_of(call: AttentionInputs, rows: int) -> list[slice]:
    return [slice(start, min(start + rows, call.n_query)) for start in range(0, call.n_query, rows)]


def context(
    call: AttentionInputs, tensors: tuple[Tensor, Tensor, Tensor], block: slice, drop: BlockDropout | None = None
) -> Context:
    """Return the context of a block of rows, from prepared queries and keys; `drop` instead of torch's dropout."""
    query, key, value = tensors
    weight = reference.weigh(call, query[:, :, block], key, block).weight
    if drop is None:
        return reference.mix(call, weight, value)
    dropped = drop(weight, block, slice(0, call.n_key), (call.n_query, call.n_key))
    return reference.mix(call.replace(dropout=0.0), dropped, value)


def block_rows(call: AttentionInputs, block_numbers: int) -> int:
    row = call.query.shape[0] * call.n_heads * call.n_key * call.similarity.cost(call.query.shape[-1])
    return max(1, block_numbers // max(1, row))


def sight(call: AttentionInputs, rows: int) -> Visibility:
    """Return which queries see a key and which keys are seen, evaluating a block of queries at a time."""
    blocks = blocks_of(call, rows)
    keys, every_row = None, []
    for block in blocks:
        sight = Visibility.of(call.mask.allowed(call.cells(block)))
        assert sight.rows is not None
        keys = sight.keys if keys is None else keys | sight.keys
        every_row.append(sight.rows.expand(-1, -1, block.stop - block.start))
    assert keys is not None
    return Visibility(rows=torch.cat(every_row, -1), keys=keys)
