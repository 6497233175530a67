"""Outputs read back from their last nodes, beside sentences that have left and what was shown."""

import torch

from clearhead.decoding import Beam, Rules
from clearhead.decoding.beam_state import BeamState
from clearhead.decoding.history import History

RULES = Rules(max_new=3, end=(1,))


def test_outputs_are_read_from_their_last_node_to_the_first():
    """Width 1, so two continuations are found at a time: nodes 1 and 2, then 3 and 4."""
    state = BeamState(2, Beam(width=1), RULES, 6, torch.device("cpu"))
    history = History(state)
    history.add(
        torch.tensor([[[-1.0, -2.0], [-0.5, -4.0]]]).double(),
        torch.tensor([[[5, 4], [1, 3]]]),
        torch.zeros(1, 2, 2, dtype=torch.long),
    )
    state.scores.copy_(torch.tensor([[float("-inf")], [-0.5]]))
    state.finished.copy_(torch.tensor([[0], [1]]))
    history.show(state.nodes * 0, [((5, -1.0),), ((1, -0.5),)])
    history.hold(state)
    history.leave(torch.tensor([0]))
    state.select(torch.tensor([0]))
    history.show(state.nodes * 0 + 1, [((1, -0.25),)])
    history.add(torch.tensor([[[-1.25, -3.0]]]).double(), torch.tensor([[[1, 2]]]), torch.tensor([[[1, 1]]]))
    state.scores.copy_(torch.tensor([[-0.625]]))
    state.finished.copy_(torch.tensor([[3]]))
    history.hold(state)
    (first,), (second,) = history.hypotheses(1, RULES.end)
    assert (first.tokens, first.log_probs, first.score, first.ended) == ((5, 1), (-1.0, -0.25), -0.625, True)
    assert first.candidates == (((5, -1.0),), ((1, -0.25),))
    assert (second.tokens, second.log_probs, second.score, second.ended) == ((1,), (-0.5,), -0.5, True)
    assert second.candidates == (((1, -0.5),),)


def test_what_never_finished_is_no_output():
    history = History(BeamState(3, Beam(width=2), RULES, 6, torch.device("cpu")))
    history.add(torch.zeros(1, 3, 4).double(), *(torch.zeros(1, 3, 4, dtype=torch.long) for _ in range(2)))
    assert history.hypotheses(2, RULES.end) == [[], [], []]
