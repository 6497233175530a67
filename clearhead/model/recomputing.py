"""Activation checkpointing: a module's activations are computed again in the backward pass instead of being kept.

Buffers that the module updates in its forward pass, such as the running mean of a user's own part, are updated once:
the second pass sees them as the first one did, and its own updates are dropped.
"""

import contextlib
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@final
class BufferBefore(NamedTuple):
    """A buffer of a module, its version, and a copy of its values before a forward pass."""

    owner: nn.Module
    name: str
    tensor: Tensor
    version: int
    values: Tensor

    def has_changed(self) -> bool:
        """Return whether another tensor has its place, or it was written to."""
        tensor = self.owner._buffers[self.name]  # pyright: ignore[reportPrivateUsage]
        return tensor is not self.tensor or self.tensor._version != self.version


def checkpoint_module(module: nn.Module, *inputs: Any) -> Any:
    """Return what the module computes of its inputs, keeping for the backward pass only those."""
    if torch.compiler.is_compiling() and next(module.buffers(), None) is not None:
        # Compiled, the second pass would see the updates of the first: other activations, and wrong gradients. Contexts
        # cannot be compiled, so nothing is computed twice.
        return module(*inputs)
    before = copy_buffers(module)
    if not before:
        return checkpoint(module, *inputs, use_reentrant=False)
    contexts = contextlib.nullcontext(), BuffersAsBefore(before)
    output = checkpoint(module, *inputs, use_reentrant=False, context_fn=lambda: contexts)
    # Tables that nothing writes to need no copy for the second pass.
    before[:] = [one for one in before if one.has_changed()]
    return output


def copy_buffers(module: nn.Module) -> list[BufferBefore]:
    return [
        BufferBefore(owner, name, tensor, tensor._version, tensor.clone())
        for owner in module.modules()
        for name, tensor in owner.named_buffers(recurse=False)
    ]


@final
class BuffersAsBefore:
    """A context, to be entered any number of times, in which buffers are copies with the values of then."""

    def __init__(self, before: list[BufferBefore]) -> None:
        self.before = before
        self.now: list[Tensor | None] = []

    def __enter__(self) -> None:
        self.now = [one.owner._buffers[one.name] for one in self.before]  # pyright: ignore[reportPrivateUsage]
        for one in self.before:
            one.owner._buffers[one.name] = one.values.clone()  # pyright: ignore[reportPrivateUsage]

    def __exit__(self, *failed: object) -> None:
        for one, tensor in zip(self.before, self.now, strict=True):
            one.owner._buffers[one.name] = tensor  # pyright: ignore[reportPrivateUsage]
