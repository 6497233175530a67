"""Cached is uncached, batched is single, padded is not, and so on: a few models of every kind, with shapes checked.

tests/plain/test_decoding.py has all of them; where shapes are not checked, these repeat it.
"""

import pytest
import torch

from clearhead.attention.kernels import chunked
from clearhead.decoding import caches
from clearhead.errors import OptionError
from tests.covering import few
from tests.decoding.laws import broken_laws, case_of
from tests.decoding.models import allowed_pairs, beside_plain, build, models, on_axes, refused_pairs, spec_of

QUICK = 25


@pytest.fixture
def small_memory(monkeypatch):
    """So little allocated at a time, and chunks so short, that these short texts have several."""
    monkeypatch.setattr(caches, "FIRST_COLUMNS", 4)
    monkeypatch.setattr(caches, "ALIGNED", 4)
    monkeypatch.setattr(chunked, "CHUNK", 2)


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("choices", few(models()[:QUICK], 2), ids=str)
@pytest.mark.slow
def test_the_laws_hold(choices):
    assert broken_laws(case_of(build(choices))) == {}


@pytest.mark.slow
def test_the_few_have_every_cache():
    sessions = [case_of(build(choices)).session() for choices in models()[:QUICK]]
    kept = {type(cache) for session in sessions for cache in session.caches}
    assert kept == {
        caches.FullCache,
        caches.WindowCache,
        caches.StateCache,
        caches.SourceCache,
        caches.SourceStateCache,
    }


def test_every_allowed_pair_is_in_a_model():
    assert len(models()) >= 200
    assert {pair for choices in models() for pair in choices.pairs()} == set(allowed_pairs())


@pytest.mark.parametrize("pair", refused_pairs(), ids=str)
def test_a_pair_that_is_left_out_is_refused(pair):
    with pytest.raises(OptionError, match=r"Kernelized attention|this block has no feed-forward"):
        spec_of(on_axes(beside_plain(pair))).build()


def test_models_are_the_same_each_time():
    one, other = (build(models()[3]) for _ in range(2))
    for mine, wanted in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, wanted)
