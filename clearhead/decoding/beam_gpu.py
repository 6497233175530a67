"""A step of beam search as one Triton kernel, for a search on a GPU: in tensors it is some 90 small ones."""

import importlib

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.compiling import missing_triton
from clearhead.decoding.beam_state import BeamState, Step
from clearhead.decoding.topk import top

WIDEST = 16
"""Beams for which one warp holds all numbers of a sentence."""


def serves(state: BeamState) -> bool:
    """Check whether the kernel can take the steps of this search: few beams, and rules that leave it some token."""
    few = state.method.width <= WIDEST and state.keep <= 4 * WIDEST
    return few and state.rules.forbids_nothing and missing_triton(state.totals.device.type) is None


def advance(state: BeamState, log_probs: Float[Tensor, "row vocabulary"], length: Int[Tensor, "1"]) -> Step:
    """Take one more token in every sentence, as `BeamState.advance` does."""
    values, tokens = top(log_probs, state.keep)
    values, tokens = values.contiguous(), tokens.contiguous()
    count, width, keep = len(state.totals), state.method.width, state.keep
    beams, per_beam = len(values) // count, values.shape[1]
    kernel = importlib.import_module("clearhead.decoding.beam_triton").advance
    exact = state.method.stop == "exact" and state.method.length_penalty > 0
    totals = state.totals.new_empty(count, keep)
    of_ranks = [state.nodes.new_empty(count, keep) for _ in range(3)]
    of_beams = [torch.empty_like(state.nodes) for _ in range(3)]
    inputs = (values, tokens, *state.tensors(), state.norms, state.is_end, length)
    state.has_finished = True
    kernel[(count,)](
        *inputs,
        totals,
        *of_ranks,
        *of_beams,
        LAST=state.rules.max_new,
        WIDTH=width,
        BEAMS=beams,
        FOUND=per_beam,
        KEEP=keep,
        CANDIDATES=power_of_two(beams * per_beam),
        RANKS=power_of_two(max(keep, 2)),
        SLOTS=power_of_two(2 * width),
        STOP=state.method.stop if exact or state.method.stop == "early" else "heuristic",
        num_warps=1,
    )
    return Step(totals, *of_ranks, *of_beams)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below the number."""
    return 1 << (number - 1).bit_length()
