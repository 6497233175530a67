"""A step of beam search as one Triton kernel, for a search on a GPU: in tensors it is some 90 small ones.

A sentence has a few dozen candidates, so one warp holds all of them in registers: a program takes a sentence, sorts its
candidates, lets them go on or finish, and decides whether it is over, and only then writes. What it does, and the order
among equals, is defined by `BeamState.advance`. Lists are as long as the next power of two, with -inf in what is left,
and a permutation is a matrix of truth values that is summed over (`at`): in registers there is no indexing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.compiling import jit, missing_triton
from clearhead.decoding.beam_state import BeamState, Step
from clearhead.decoding.topk import top

if TYPE_CHECKING:
    import triton.language as tl

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
    exact = state.method.stop == "exact" and state.method.length_penalty > 0
    totals = state.totals.new_empty(count, keep)
    of_ranks = [state.nodes.new_empty(count, keep) for _ in range(2)]
    of_beams = [torch.empty_like(state.nodes) for _ in range(2)]
    inputs = (values, tokens, *state.tensors(), state.norms, state.is_end, length)
    advance_kernel[(count,)](
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


@jit
def take_best(values, COUNT: tl.constexpr, SLOTS: tl.constexpr):
    """Return the COUNT largest of some values, the largest first, and their places; of equal ones the first."""
    places, slots = tl.arange(0, values.shape[0]), tl.arange(0, SLOTS)
    best, where = tl.full((SLOTS,), float("-inf"), values.dtype), tl.zeros((SLOTS,), tl.int32)
    for slot in range(COUNT):
        largest, place = tl.max(values, axis=0, return_indices=True, return_indices_tie_break_left=True)
        best, where = tl.where(slots == slot, largest, best), tl.where(slots == slot, place, where)
        values = tl.where(places == place, float("-inf"), values)
    return best, where


@jit
def at(which, values):
    """Return for each column of `which`, true once at most, the value of that row; 0 where it is true nowhere."""
    return tl.sum(tl.where(which, values[:, None], 0), axis=0)


@jit
def advance_kernel(
    values,
    tokens,
    totals,
    nodes,
    scores,
    finished,
    done,
    norms,
    is_end,
    length,
    found_totals,
    found_tokens,
    found_parents,
    origins,
    chosen,
    LAST: tl.constexpr,
    WIDTH: tl.constexpr,
    BEAMS: tl.constexpr,
    FOUND: tl.constexpr,
    KEEP: tl.constexpr,
    CANDIDATES: tl.constexpr,
    RANKS: tl.constexpr,
    SLOTS: tl.constexpr,
    STOP: tl.constexpr,
):
    """Take one more token in a sentence. LAST is the largest length; CANDIDATES, RANKS and SLOTS are powers of two."""
    sentence = tl.program_id(0)
    own = sentence * WIDTH
    n = tl.load(length)
    # The best continuations of all beams.
    candidate = tl.arange(0, CANDIDATES)
    inside = candidate < BEAMS * FOUND
    first = sentence * BEAMS * FOUND
    before = tl.load(totals + own + candidate // FOUND, mask=inside, other=float("-inf"))
    after = before + tl.load(values + first + candidate, mask=inside, other=float("-inf")).to(before.dtype)
    best, place = take_best(after, KEEP, RANKS)
    rank = tl.arange(0, RANKS)
    kept = rank < KEEP
    token, beam = tl.load(tokens + first + place), place // FOUND
    parent = tl.load(nodes + own + beam)
    number = rank.to(tl.int64) + ((n - 1) * KEEP + 1)
    allowed = best != float("-inf")
    goes = allowed & ~(tl.load(is_end + token) != 0)
    # Those that go on come first, and each part in its own order.
    earlier = tl.cumsum(goes.to(tl.int32), 0) - goes.to(tl.int32)
    position = tl.where(goes, earlier, tl.sum(goes.to(tl.int32), 0) + rank - earlier)
    slot = tl.arange(0, SLOTS)
    live = (position[:, None] == slot[None, :]) & kept[:, None]
    going = at(live, tl.where(goes, best, float("-inf")))
    # What has finished, before and now.
    fresh = rank[:, None] == slot[None, :] - WIDTH
    ends = at(fresh, (allowed & (~goes | (n == LAST)) & (rank < WIDTH)).to(tl.int32)) != 0
    new_score = tl.where(ends, at(fresh, tl.where(allowed, best, 0)) / tl.load(norms + n), float("-inf"))
    old_score = tl.load(scores + own + slot, mask=slot < WIDTH, other=float("-inf"))
    old_node = tl.load(finished + own + slot, mask=slot < WIDTH, other=0)
    score, which = take_best(tl.where(slot < WIDTH, old_score, new_score), WIDTH, SLOTS)
    node = at(slot[:, None] == which[None, :], tl.where(slot < WIDTH, old_node, at(fresh, number)))
    # Whether a live beam can still change it.
    worst = tl.max(tl.where(slot == WIDTH - 1, score, float("-inf")), 0)
    leader = tl.max(tl.where(slot == 0, going, float("-inf")), 0)
    if STOP == "early":
        over = (worst != float("-inf")) | (leader == float("-inf"))
    elif STOP == "exact":
        over = leader / tl.load(norms + LAST) <= worst
    else:
        over = leader / tl.load(norms + n) <= worst
    over = over | (n == LAST) | (tl.load(done + sentence) != 0)
    tl.debug_barrier()  # everything is read that is overwritten now
    row = sentence * KEEP + rank
    tl.store(found_totals + row, best, mask=kept)
    tl.store(found_tokens + row, token, mask=kept)
    tl.store(found_parents + row, parent, mask=kept)
    mine = slot < WIDTH
    tl.store(totals + own + slot, tl.where(over, float("-inf"), going), mask=mine)
    tl.store(nodes + own + slot, at(live, number), mask=mine)
    tl.store(scores + own + slot, score, mask=mine)
    tl.store(finished + own + slot, node, mask=mine)
    tl.store(done + sentence, over)
    tl.store(origins + own + slot, at(live, beam.to(tl.int64)), mask=mine)
    tl.store(chosen + own + slot, at(live, token), mask=mine)
