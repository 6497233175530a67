"""The mode torch is in around a call: compiled, transformed by torch.func, under autocast, or none of these.

Eager code on a CPU may read a tensor's numbers to take a shorter way or to check them. Under `torch.compile`, under a
transform of `torch.func` (vmap, grad, jacrev) and on fake or meta tensors there are no numbers to read.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

BlockDropout = Callable[[Tensor, slice, slice, tuple[int, int]], Tensor]
"""Function that drops of the weights `(batch, head, query, key)` of a block of queries and keys, of so many of each in
all: the same whenever it is called.
"""
BLOCK_DROPOUT: ContextVar[Callable[[float], BlockDropout] | None] = ContextVar("block dropout", default=None)
"""Makes the dropout, by a share, of a call whose blocks are computed twice; None where torch's generator draws it."""

FINITE: ContextVar[bool] = ContextVar("finite", default=False)

PLAIN = (Tensor, nn.Parameter)
"""A subclass may be a FakeTensor, which has a shape and no numbers."""


def can_read(tensor: Tensor) -> bool:
    """Check whether Python may read the tensor's numbers at no cost: they are there, and on the CPU."""
    return tensor.is_cpu and has_numbers(tensor)


def has_numbers(tensor: Tensor) -> bool:
    """Check whether the tensor has numbers that Python may read, on a GPU by waiting for it."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return type(tensor) in PLAIN and not tensor.is_meta


def is_captured(tensor: Tensor) -> bool:
    """Check whether a CUDA graph is being captured on the tensor's device: then its values cannot be read."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def is_exported() -> bool:
    """Check whether torch.export traces the call, as it does by default: without Dynamo.

    Dynamo of torch 2.11 says of every call that it compiles that it is exported.
    """
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def under_torch_func() -> bool:
    """Check whether a transform of torch.func is active, or forward-mode AD, by dual numbers.

    False while compiling: Dynamo traces transforms itself.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def autocast_enabled(tensor: Tensor) -> bool:
    """Check whether autocast is on for the tensor's device; torch itself raises for `meta`, which has none."""
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


@contextlib.contextmanager
def assuming_finite() -> Iterator[None]:
    """Take queries, keys and values for finite, also where a mask hides them, instead of zeroing them there.

    It is for training a model all of whose parts are Clearhead's: there a hidden place has NaN only if all places have.
    """
    token = FINITE.set(True)
    try:
        yield
    finally:
        FINITE.reset(token)


def assumed_finite() -> bool:
    """Check for `assuming_finite`. False while compiling, where zeroing costs nothing."""
    return not torch.compiler.is_compiling() and FINITE.get()


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """Make tensors that may be kept: on the CPU, outside inference mode and outside every transform of torch.func."""
    with torch.inference_mode(False), torch.device("cpu"), torch._C._DisableFuncTorch():
        yield
