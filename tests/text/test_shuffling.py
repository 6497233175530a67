"""The order of an epoch: every index once for every n, a pure function of its key, uniform, in constant memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.text import shuffling
from clearhead.text.shuffling import EpochOrder, KeyedPermutation


def order(n, seed=0):
    return EpochOrder.draw(n, np.random.default_rng([seed]))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(shuffling, "TABLE", 32)
    monkeypatch.setattr(shuffling, "RUN", 4)


@pytest.mark.parametrize("n", [*range(1, 140), 1000, 4097])
def test_every_index_comes_once(n):
    everything = list(range(n))
    assert sorted(KeyedPermutation(n, 3)(np.arange(n)).tolist()) == everything
    assert sorted(order(n).at(0, n).tolist()) == everything


@given(n=st.integers(1, 3000), seed=st.integers(0, 9), data=st.data())
def test_what_stands_at_a_place_depends_on_nothing_before_it(n, seed, data):
    start = data.draw(st.integers(0, n))
    end = data.draw(st.integers(start, n))
    assert order(n, seed).at(start, end).tolist() == order(n, seed).at(0, n)[start:end].tolist()


def test_epochs_and_seeds_have_other_orders():
    orders = {tuple(order(500, seed).at(0, 500)) for seed in range(50)}
    assert len(orders) == 50


@pytest.mark.parametrize("n", [20, 100])
def test_every_place_is_as_likely_for_every_index(n):
    """Pearson's chi-square over keys: expected n - 1 an index, with variance 2 (n - 1). Four standard deviations of the
    mean over all indices, and no index beyond six of its own."""
    keys = 4000
    counts = np.zeros((n, n))
    for key in range(keys):
        counts[np.arange(n), KeyedPermutation(n, key)(np.arange(n))] += 1
    squares = ((counts - keys / n) ** 2 / (keys / n)).sum(1)
    assert abs(squares.mean() - (n - 1)) < 4 * np.sqrt(2 * (n - 1) / n)
    assert squares.max() < n - 1 + 6 * np.sqrt(2 * (n - 1))


def test_neighbours_part(monkeypatch):
    """Of a uniform shuffle, two that come one after the other are a third of n apart on average."""
    n = 20_000
    monkeypatch.setattr(shuffling, "TABLE", 2048)
    monkeypatch.setattr(shuffling, "RUN", 16)
    found = order(n).at(0, n)
    assert np.mean(np.abs(np.diff(found))) == pytest.approx(n / 3, rel=0.03)
    assert np.mean(np.abs(found - np.arange(n))) == pytest.approx(n / 3, rel=0.15)
    assert np.mean(np.abs(np.diff(found)) < 16) < 0.02


def test_a_part_is_read_in_runs():
    """What a part of the order reads are whole runs of neighbours, wherever the epoch lets them begin."""
    one = order(1000)
    runs = np.unique((one.at(0, 32) - one.turn) % 1000 // 4)
    assert len(runs) == 32 // 4


def test_memory_does_not_grow_with_n(monkeypatch):
    monkeypatch.undo()

    def peak(n):
        tracemalloc.start()
        for start in range(0, 1 << 20, 1 << 18):
            order(n).at(start, start + 4096)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1 << 21)
    assert peak(1 << 50) < 1.1 * peak(1 << 21) < 2e6
