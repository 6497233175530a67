"""Shared by the Triton kernels of this folder: their tensors, padding, memory layout and device."""

import importlib
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.attention.inputs import AttentionInputs, KernelFacts
from clearhead.attention.mask_numbers import numbers_on
from clearhead.attention.mask_rules import Padding
from clearhead.compiling import missing_triton


class LaunchInputs(NamedTuple):
    """The tensors of a call, `(batch, head, n, d)`, and how many keys each batch row has; None: all of them."""

    query: Tensor
    key: Tensor
    value: Tensor
    lengths: Tensor | None

    @property
    def needs_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(side.requires_grad for side in self[:3])


def key_lengths(call: AttentionInputs) -> Tensor | None:
    """Return how many keys each batch row has, `(batch,)` or `(1,)`; None without padding."""
    lengths = [numbers_on(term.lengths, call.query.device) for term in call.mask.terms if isinstance(term, Padding)]
    if call.share is not None:
        lengths = [call.share.of_batch(row_lengths) for row_lengths in lengths]
    return reduce(torch.minimum, lengths) if lengths else None


@dataclass(frozen=True)
class PaddingArguments:
    lengths: Tensor
    stride: int
    padded: bool


def padding_arguments(inputs: LaunchInputs) -> PaddingArguments:
    lengths = inputs.lengths
    if lengths is None:
        return PaddingArguments(inputs.query, 0, False)
    return PaddingArguments(lengths, lengths.stride(0) if lengths.shape[0] > 1 else 0, True)


def triton_code(name: str) -> Any:
    """Import a file of Triton code of this folder, when it is first needed: Triton may not be installed."""
    return importlib.import_module(f"clearhead.attention.kernels.{name}")


def block_width(width: int) -> int:
    """Return the power of two, 16 or more, that holds this many columns: what a matrix product in Triton needs."""
    return max(16, 1 << (width - 1).bit_length())


def refuse_launch(facts: KernelFacts) -> str | None:
    """Say which of the things that no kernel here does a call asks for; None if there is none."""
    if others := facts.masks - {"none", "causal", "padding"}:
        return f"it serves causal and padding, and no mask of this kind: {', '.join(sorted(others))}"
    if facts.masks != {"none"} and not facts.aligned:
        return f"{', '.join(sorted(facts.masks))}: it needs the keys in order, and positions were given"
    if facts.dtype == torch.float64:
        return "its matrix products are in float32 at most: it has no float64"
    return missing_triton(facts.device)


def strides_of(*tensors: Tensor) -> tuple[int, ...]:
    """Return the strides of batch, head and position of each tensor: the last axis is dense."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


def dense_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with its last axis dense in memory; the others may have any strides."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def empty_like_rows(like: Tensor, n_heads: int, n: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return an empty `(batch, head, n, width)`, laid out as `like` is: heads inside or outside the positions."""
    if like.stride(1) < like.stride(2):
        return like.new_empty(like.shape[0], n, n_heads, width, dtype=dtype).transpose(1, 2)
    return like.new_empty(like.shape[0], n_heads, n, width, dtype=dtype)
