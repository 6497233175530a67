"""What every plot shares: labels stay apart and in order."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.plots.figure import spread


@given(st.lists(st.floats(0, 1), max_size=6).map(sorted), st.floats(0, 0.3))
def test_labels_keep_their_order_and_their_distance(heights, gap):
    moved = spread(heights, gap)
    assert all(above - below >= gap - 1e-12 for below, above in pairwise(moved))
    assert sum(moved) == pytest.approx(sum(heights), abs=1e-9)
    if all(above - below >= gap for below, above in pairwise(heights)):
        assert moved == pytest.approx(heights)
