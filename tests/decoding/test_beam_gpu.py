"""A step of beam search as one Triton kernel; tests/plain/test_triton.py runs it in Triton's interpreter."""

from itertools import chain

import pytest
import torch

from clearhead import compiling
from clearhead.decoding import Beam, Rules, beam_gpu, generate
from clearhead.decoding.beam_state import BeamState
from clearhead.model import presets


def state_for(method: Beam, **rules) -> BeamState:
    return BeamState(2, method, Rules(max_new=5, **rules), 20, torch.device("cpu"))


def test_it_serves_few_beams_where_triton_runs(monkeypatch):
    assert not beam_gpu.serves(state_for(Beam()))
    monkeypatch.setattr(compiling, "TRITON_INSTALLED", True)
    monkeypatch.setattr(compiling, "TRITON_INTERPRETED", True)
    assert beam_gpu.serves(state_for(Beam(width=16), end=(1, 2, 3)))
    assert not beam_gpu.serves(state_for(Beam(width=17)))
    assert not beam_gpu.serves(state_for(Beam(width=16), end=(1, 2, 3, 4)))
    assert not beam_gpu.serves(state_for(Beam(), never=(3,)))
    monkeypatch.setattr(compiling, "TRITON_INSTALLED", False)
    assert not beam_gpu.serves(state_for(Beam()))


@pytest.mark.gpu
@pytest.mark.parametrize("stop", ["exact", "heuristic", "early"])
@pytest.mark.parametrize(("width", "penalty"), [(1, 1.0), (4, 0.0), (5, 0.6), (16, 2.0)])
def test_a_search_on_a_gpu_finds_what_one_on_a_cpu_finds(stop, width, penalty):
    torch.manual_seed(0)
    model = presets.tiny(vocabulary=40).build().eval().double()
    sources = [[5, 6, 7], [8, 9], [3] * 6, [4], [2, 3, 4, 5, 6, 7, 8]]
    method = Beam(width=width, n_best=width, stop=stop, length_penalty=penalty)
    rules = Rules(max_new=50, end=(1, 2))
    wanted = generate(model, sources, method, rules=rules, prefix=[[1]])
    for _ in range(2):  # the first call runs a step as it is, the second records it
        found = generate(model.cuda(), sources, method, rules=rules, prefix=[[1]])
        assert [[one.tokens for one in some] for some in found] == [[one.tokens for one in some] for some in wanted]
        for got, right in zip(chain.from_iterable(found), chain.from_iterable(wanted), strict=True):
            assert got.score == pytest.approx(right.score, abs=1e-9)
