"""The greedy choice as one Triton kernel, where torch's log_softmax and max go over the logits three times."""

import importlib

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.compiling import missing_triton
from clearhead.decoding.rules import Rules

BLOCK = 8192
"""Logits of a row that are read at once."""


def serves(rules: Rules, device: torch.device) -> bool:
    """Check whether the kernel can choose: where no rule forbids a token, on a device that has Triton."""
    return rules.forbids_nothing and missing_triton(device.type) is None


def likeliest(logits: Float[Tensor, "row vocabulary"]) -> tuple[Float[Tensor, "row"], Int[Tensor, "row"]]:
    """Return the log-probability of each row's likeliest token, in float32 or better, and the token."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, vocabulary = logits.shape
    values = logits.new_empty(rows, dtype=torch.promote_types(logits.dtype, torch.float32))
    tokens = torch.empty(rows, dtype=torch.long, device=logits.device)
    kernel = importlib.import_module("clearhead.decoding.greedy_triton").likeliest
    block = min(BLOCK, max(16, 1 << (vocabulary - 1).bit_length()))
    sizes = {"VOCABULARY": vocabulary, "BLOCK": block, "num_warps": max(1, min(16, block // 512))}
    kernel[(rows,)](logits, values, tokens, logits.stride(0), **sizes)
    return values, tokens
