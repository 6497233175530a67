"""`Kernel`, the base class of kernels: a name, what it refuses and why, and the arithmetic."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.inputs import AttentionInputs, KernelFacts
from clearhead.errors import UnsupportedError

Context = Float[Tensor, "batch head query d_value"]


class Kernel(ABC):
    """A way to compute attention. It does all of a call, exactly, or refuses it."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """Reason that `auto` gives for choosing it, in a few words."""

    @abstractmethod
    def refusal(self, facts: KernelFacts) -> str | None:
        """Say why it cannot compute this; None if it can."""

    def yields_to(self, facts: KernelFacts) -> str | None:
        """Name the kernel that `auto` prefers over this one here, if that one can do it; None if there is none."""
        return None

    def notes(self, facts: KernelFacts) -> tuple[str, ...]:
        """Return the costs that a user would not expect."""
        return ()

    @abstractmethod
    def run(self, call: AttentionInputs) -> Context:
        """Return the context of every query."""


def differentiable_once(context: Tensor, kernel: str, operation: str = "") -> Tensor:
    """Return the context, made so that its second derivative raises an error that names a kernel which has one.

    The gradients of the operation that made it are passed through `Refused`, but only where a graph of the backward
    pass is kept (`create_graph=True`), and only if the operation has this word in its name. Compiled code is left
    alone: there torch refuses by itself.
    """
    if torch.compiler.is_compiling() or context.grad_fn is None or operation not in context.grad_fn.name():
        return context

    def refuse(grad_inputs: tuple[Tensor | None, ...], grad_outputs: object) -> tuple[Tensor | None, ...]:
        return tuple(
            Refused.apply(kernel, grad) if grad is not None and grad.requires_grad else grad for grad in grad_inputs
        )

    context.grad_fn.register_hook(refuse)
    return context


class Refused(torch.autograd.Function):
    """A gradient that cannot be differentiated again; `inputs` are what it depends on, if its own graph is cut off."""

    @staticmethod
    def forward(ctx: Any, kernel: str, grad: Tensor, *inputs: Tensor) -> Tensor:
        ctx.kernel = kernel
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        raise UnsupportedError(
            f'kernel {ctx.kernel!r} has no second derivative. Choose one that has: kernel="reference" in attend or '
            'Attention, or layer.kernel = "reference" on a built layer. Under torch.func every kernel has one'
        )
