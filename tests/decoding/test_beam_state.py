"""A step of beam search in tensors gives what plain Python says."""

import random

import pytest
import torch

from clearhead.decoding import Beam, Rules
from clearhead.decoding.beam_device import History
from clearhead.decoding.beam_state import BeamState
from clearhead.decoding.rules import FORBIDDEN

VOCABULARY = 7


def draw_case(seed: int) -> tuple[Beam, Rules, list[torch.Tensor]]:
    """A search at random, and the log-probabilities of its steps, no two of them equal; some forbidden."""
    draw = random.Random(seed)
    width = draw.choice([1, 2, 3, 5, 9])
    method = Beam(
        width=width,
        n_best=draw.randint(1, width),
        length_penalty=draw.choice([-1.0, 0.0, 0.7, 1.0, 2.0]),
        stop=draw.choice(["exact", "heuristic", "early"]),
    )
    end = tuple(draw.sample(range(VOCABULARY), draw.choice([0, 1, 1, 3])))
    rules = Rules(max_new=draw.choice([1, 3, 8]), end=end, never=(0,) if draw.random() < 0.5 else ())
    torch.manual_seed(seed)
    steps = []
    for n in range(rules.max_new):
        log_probs = -6 * torch.rand(4 * (width if n else 1), VOCABULARY, dtype=torch.float64)
        if rules.never:
            log_probs[torch.rand(log_probs.shape) < draw.choice([0.1, 0.7, 1.0])] = FORBIDDEN
        steps.append(log_probs)
    return method, rules, steps


def search(method: Beam, rules: Rules, steps: list[torch.Tensor]):
    state = BeamState(4, method, rules, VOCABULARY, torch.device("cpu"))
    history = History(state)
    for length, log_probs in enumerate(steps, 1):
        step = state.advance(log_probs, torch.tensor([length]))
        history.add(step.totals[None], step.tokens[None], step.parents[None])
    history.hold(state)
    return history.hypotheses(method.n_best, rules.end), state


def plain_search(
    method: Beam, rules: Rules, steps: list[torch.Tensor], sentence: int
) -> list[tuple[tuple[int, ...], float]]:
    """The same of one sentence with lists: tokens and score of the best outputs."""
    width, live, ended = method.width, [((), 0.0)], []
    for length, log_probs in enumerate(steps, 1):
        beams = len(log_probs) // 4
        rows = log_probs[sentence * beams :][: len(live)].tolist()
        found = [
            ((*tokens, token), total + value)
            for (tokens, total), row in zip(live, rows, strict=True)
            for token, value in enumerate(row)
            if value != FORBIDDEN
        ]
        found.sort(key=lambda pair: -pair[1])
        last = length == rules.max_new
        new = [pair for pair in found[:width] if last or pair[0][-1] in rules.end]
        if not found and not ended:
            new, length = live, length - 1  # noqa: PLW2901
        norm = max(length, 1) ** method.length_penalty
        ended = sorted([*ended, *((tokens, total / norm) for tokens, total in new)], key=lambda pair: -pair[1])[:width]
        live = [pair for pair in found if pair[0][-1] not in rules.end][:width]
        if last or not live:
            break
        reach = rules.max_new if method.stop == "exact" and method.length_penalty > 0 else length
        beaten = method.stop == "early" or live[0][1] / reach**method.length_penalty <= ended[-1][1] if ended else False
        if len(ended) == width and beaten:
            break
    return ended[: method.n_best]


@pytest.mark.parametrize("seed", range(60))
def test_tensors_give_the_same_as_lists(seed):
    method, rules, steps = draw_case(seed)
    found, state = search(method, rules, steps)
    assert state.done.all()
    for sentence, hypotheses in enumerate(found):
        wanted = plain_search(method, rules, steps, sentence)
        assert [made.tokens for made in hypotheses] == [tokens for tokens, _ in wanted]
        assert [made.score for made in hypotheses] == pytest.approx([score for _, score in wanted])
        assert [sum(made.log_probs) / max(len(made.tokens), 1) ** method.length_penalty for made in hypotheses] == (
            pytest.approx([made.score for made in hypotheses])
        )
        assert all(made.ended == (made.tokens[-1:] != () and made.tokens[-1] in rules.end) for made in hypotheses)


def test_a_sentence_that_is_done_stays_as_it_is():
    method, rules = Beam(width=2, stop="early"), Rules(max_new=5, end=(0, 1))
    state = BeamState(1, method, rules, 4, torch.device("cpu"))
    state.advance(torch.tensor([[-0.5, -1.0, -3.0, -4.0]]).double(), torch.tensor([1]))
    assert state.done.tolist() == [True]
    before = [one.clone() for one in state.tensors()]
    state.advance(torch.zeros(2, 4).double(), torch.tensor([2]))
    assert all(
        torch.equal(one, other) for one, other in zip(before, state.tensors(), strict=True) if one is not before[1]
    )
    assert (state.totals == FORBIDDEN).all()
