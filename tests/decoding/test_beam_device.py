"""Beam search on the host and on a GPU find the same; on a CPU the GPU's work is called and not replayed."""

from itertools import chain

import pytest
import torch

from clearhead.decoding import Beam, Rules, generating, recorded, session
from clearhead.decoding.beam_device import History
from clearhead.decoding.beam_state import BeamState
from clearhead.decoding.generating import decode, search_alone
from clearhead.decoding.request import check_request
from clearhead.model import presets

INPUTS = [[5, 6, 7], [8, 9], [3] * 6, [4, 4], [2, 3, 4, 5, 6, 7, 8]]


@pytest.fixture(params=["translator", "decoder"])
def asked(request):
    torch.manual_seed(1)
    if request.param == "translator":
        return presets.tiny(vocabulary=20).build().eval().double(), [[1]]
    return presets.llama(presets.Size(2, 32, 4, 2, 64), vocabulary=20).build().eval().double(), None


@pytest.mark.parametrize(
    ("method", "rules"),
    [
        (Beam(width=3, n_best=3), Rules(max_new=12)),
        (Beam(width=4, n_best=2, stop="early"), Rules(max_new=14, end=(2, 7))),
        (Beam(width=2, length_penalty=0.0, stop="heuristic"), Rules(max_new=14, end=(2, 7, 9), min_new=4)),
        (Beam(width=5, n_best=5, length_penalty=2.0), Rules(max_new=10, end=(3,), never=(4, 5))),
        (Beam(width=1), Rules(max_new=11, end=(2,))),
    ],
    ids=["all to the last", "early", "heuristic", "long", "narrow"],
)
@pytest.mark.pairs(1)
def test_host_and_device_find_the_same(asked, method, rules, monkeypatch):
    model, prefix = asked
    request = check_request(model, INPUTS, prefix, rules, 0)
    on_host = decode(request, method, rules, 0)
    steps = []
    for part in (session, generating):
        monkeypatch.setattr(part, "can_record_on", lambda device: True)
    monkeypatch.setattr(recorded, "record", lambda work: lambda: steps.append(work()))
    on_device = search_alone(request, method, rules, 0)
    assert on_device is not None
    assert len(steps) > 3
    assert [[made.tokens for made in found] for found in on_device] == [
        [made.tokens for made in found] for found in on_host
    ]
    for mine, wanted in zip(chain(*on_device), chain(*on_host), strict=True):
        assert mine.score == pytest.approx(wanted.score, abs=1e-9)
        assert mine.log_probs == pytest.approx(wanted.log_probs, abs=1e-9)


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
    history.hold(state)
    history.leave(torch.tensor([0]))
    state.select(torch.tensor([0]))
    history.add(torch.tensor([[[-1.25, -3.0]]]).double(), torch.tensor([[[1, 2]]]), torch.tensor([[[1, 1]]]))
    state.scores.copy_(torch.tensor([[-0.625]]))
    state.finished.copy_(torch.tensor([[3]]))
    history.hold(state)
    (first,), (second,) = history.hypotheses(1, RULES.end)
    assert (first.tokens, first.log_probs, first.score, first.ended) == ((5, 1), (-1.0, -0.25), -0.625, True)
    assert (second.tokens, second.log_probs, second.score, second.ended) == ((1,), (-0.5,), -0.5, True)


def test_what_never_finished_is_no_output():
    history = History(BeamState(3, Beam(width=2), RULES, 6, torch.device("cpu")))
    history.add(torch.zeros(1, 3, 4).double(), *(torch.zeros(1, 3, 4, dtype=torch.long) for _ in range(2)))
    assert history.hypotheses(2, RULES.end) == [[], [], []]
