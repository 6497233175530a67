"""Beam search on the host and on a GPU find the same; on a CPU the GPU's work is called and not replayed."""

from itertools import chain

import pytest
import torch

from clearhead.decoding import Beam, Rules, generating, recorded, session
from clearhead.decoding.generating import decode, generate_rows
from clearhead.decoding.request import check_request
from clearhead.model import presets

pytestmark = pytest.mark.usefixtures("one_thread")

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
    on_device = generate_rows(request, method, rules, 0)
    assert len(steps) > 3
    assert [[made.tokens for made in found] for found in on_device] == [
        [made.tokens for made in found] for found in on_host
    ]
    for mine, wanted in zip(chain(*on_device), chain(*on_host), strict=True):
        assert mine.score == pytest.approx(wanted.score, abs=1e-9)
        assert mine.log_probs == pytest.approx(wanted.log_probs, abs=1e-9)
