"""The laws of decoding for every model of `tests.decoding.models`, beams held to all outputs there can be, and streams.

Here because the check of shapes makes it three times slower; tests/decoding/test_laws.py has some of them with it on.
It also hides from torch that a stream is a generator, whose consumer must not find inference mode switched on.
"""

from itertools import zip_longest

import pytest
import torch

from clearhead import weighting
from clearhead.attention.kernels import chunked
from clearhead.decoding import Beam, Greedy, Rules, caches
from tests.covering import covering, few
from tests.decoding.laws import broken_laws, case_of
from tests.decoding.models import PLAIN, allowed_pairs, build, models, on_axes
from tests.decoding.plain import all_unlike, every_output

RUN = []
ONCE = covering([choices.chosen for choices in models()], 1)
EVERY_VALUE = [
    pytest.param(one, marks=() if place in ONCE else pytest.mark.thorough) for place, one in enumerate(models())
]
"""Every value of every axis is in a model that `make test` runs; every pair in one of `make test-all`."""


@pytest.mark.slow
@pytest.mark.parametrize("choices", EVERY_VALUE, ids=str)
def test_the_laws_hold(choices, monkeypatch):
    monkeypatch.setattr(caches, "FIRST_COLUMNS", 4)  # so that these short texts outgrow it
    monkeypatch.setattr(caches, "ALIGNED", 4)
    monkeypatch.setattr(chunked, "CHUNK", 2)
    RUN.append(choices)
    assert broken_laws(case_of(build(choices))) == {}


LARGE = {
    "clearhead.attention.cpu_matmul.WIDE": 1,
    "clearhead.attention.cpu_matmul.LARGE": 1,
    "clearhead.attention.cpu_matmul.FEWEST": 1,
    "clearhead.decoding.session.MUCH": 1,
    "clearhead.decoding.session.FEW": 1,
    "clearhead.decoding.topk.SMALL": 1,
}
"""Sizes from which on a step goes ways of its own, set so that these small models go them too."""


@pytest.mark.parametrize("choices", few(models()[:25], 2), ids=str)
@pytest.mark.slow
def test_the_laws_hold_on_the_ways_of_large_models(choices, monkeypatch):
    for name, size in LARGE.items():
        monkeypatch.setattr(name, size)
    assert broken_laws(case_of(build(choices))) == {}


def test_every_allowed_pair_was_run_and_says_so(capsys):
    if not RUN:
        pytest.skip("the models did not run in this session")
    shown, allowed = {pair for choices in RUN for pair in choices.pairs()}, set(allowed_pairs())
    with capsys.disabled():
        print(f"\n{len(RUN)} models, {len(shown & allowed):,} of {len(allowed):,} allowed pairs")
    if len(RUN) == len(models()):
        assert len(RUN) >= 200
        assert shown == allowed


FIVE = 5
END = Rules(max_new=5, end=(4,))
PENALTIES = (-0.5, 0.0, 0.7, 1.0, 2.5)
FEW = [
    choices
    for name in weighting.TABLE
    for choices in [choices for choices in models() if choices.chosen["weighting"] == name][:2]
]
"""Two models with every weighting."""


@pytest.mark.slow
@pytest.mark.parametrize("choices", few(FEW, 2), ids=str)
def test_a_wide_beam_finds_the_best_of_all_outputs(choices):
    """320 beams leave nothing out before length 5, where all that are compared have one length."""
    case = case_of(build(choices, FIVE), (2, 4), vocabulary=FIVE)
    for penalty in PENALTIES:
        method = Beam(width=320, n_best=12, length_penalty=penalty, stop="exact")
        for row, mine in enumerate(case.generate(method, END)):
            wanted = every_output(case, row, method, END, FIVE)
            assert len(wanted) == 1365
            assert all_unlike(f"row {row}, penalty {penalty}", mine, wanted[:12]) == []


@pytest.mark.parametrize("choices", FEW[::6], ids=str)
@pytest.mark.slow
def test_the_widest_beam_ranks_all_outputs(choices):
    case = case_of(build(choices, FIVE), (3,), vocabulary=FIVE)
    method = Beam(width=1365, n_best=1365, length_penalty=1.0)
    (mine,) = case.generate(method, END)
    assert all_unlike("all", mine, every_output(case, 0, method, END, FIVE)) == []
    assert sum(hypothesis.ended for hypothesis in mine) == 1 + 4 + 16 + 64 + 256


@pytest.mark.parametrize("kind", ["decoder", "same cross"])
def test_a_stream_may_be_left(kind):
    """Between its tokens the model is in eval mode, and all else as it was; once it is left, the model too."""
    case = case_of(build(on_axes(PLAIN | {"kind": kind})))
    case.model.train()
    tokens = case.stream(Greedy(), Rules(max_new=4))
    for _ in range(4):
        next(tokens)
        assert not any(module.training for module in case.model.modules())
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    tokens.close()
    assert all(module.training for module in case.model.modules())
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_two_streams_may_run_side_by_side():
    """Of two models, and of one: each goes on from where it stands."""
    one, other = (case_of(build(on_axes(PLAIN, seed))) for seed in (0, 1))
    rules = Rules(max_new=4, end=(2,))
    for pair in ((one, other), (one, one.only([2, 0]))):
        seen = list(zip_longest(*(case.stream(Greedy(), rules) for case in pair)))
        for place, case in enumerate(pair):
            mine = [tokens[place] for tokens in seen if tokens[place] is not None]
            for row, (whole,) in enumerate(case.generate(Greedy(), rules)):
                assert tuple(token.token for token in mine if token.sequence == row) == whole.tokens
