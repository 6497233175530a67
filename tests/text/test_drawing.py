"""Drawing some of many: one of each part, the same everywhere, and not in step with what repeats."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.text.drawing import is_drawn, pick, spread


@given(n=st.integers(0, 5_000), count=st.integers(0, 300))
def test_one_of_each_part(n, count):
    drawn = spread(n, count)
    assert len(drawn) == min(n, count)
    assert drawn == sorted(set(drawn))
    assert all(0 <= number < n for number in drawn)
    assert all(after - before < 2 * -(-n // len(drawn)) for before, after in pairwise(drawn))


@given(n=st.integers(1, 2_000), every=st.integers(1, 60))
def test_one_of_each_neighbours_is_drawn(n, every):
    drawn = [number for number in range(n) if is_drawn(number, every)]
    blocks = [number // every for number in drawn]
    assert blocks[: n // every] == list(range(n // every))
    assert drawn[0] == 0


@pytest.mark.parametrize("period", [2, 5, 20, 50])
def test_what_repeats_is_seen_at_every_phase(period):
    """A stride of 50 saw a single phase of each of these."""
    drawn = [number for number in range(20_000) if is_drawn(number, 50)]
    for some in (drawn, spread(20_000, 400)):
        phases = Counter(number % period for number in some)
        assert len(phases) == period
        assert max(phases.values()) < 400 / period + 6 * (400 / period) ** 0.5


def test_it_is_the_same_everywhere():
    assert [pick(block, 1000) for block in (0, 1, 2, 10**12)] == [74, 223, 531, 363]
