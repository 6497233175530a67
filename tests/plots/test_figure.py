"""What every plot shares: labels stay apart and in order."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.plots.figure import draw_grades, figure_of, spread


@given(st.lists(st.floats(0, 1), max_size=6).map(sorted), st.floats(0, 0.3))
def test_labels_keep_their_order_and_their_distance(heights, gap):
    moved = spread(heights, gap)
    assert all(above - below >= gap - 1e-12 for below, above in pairwise(moved))
    assert sum(moved) == pytest.approx(sum(heights), abs=1e-9)
    if all(above - below >= gap for below, above in pairwise(heights)):
        assert moved == pytest.approx(heights)


def means():
    return [
        {
            "axis": axis,
            "method": method,
            "programs": 3,
            "average_precision_size": {"mean": mean, "low": mean - 0.1, "high": mean + 0.1},
        }
        for axis in ("argmax", "rotated")
        for method, mean in (("random", 0.4), ("exact", 0.9))
    ]


def test_a_panel_for_each_axis_and_the_best_method_on_top():
    panels = [panel for panel in figure_of(means()).axes if panel.get_visible()]
    assert [panel.get_title(loc="left") for panel in panels] == ["argmax: 3 programs", "rotated: 3 programs"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["random", "exact"]
    assert [line.get_xdata()[0] for line in panels[0].lines if len(line.get_xdata()) == 1] == [0.4, 0.9]


def test_the_same_grades_give_the_same_bytes(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_grades(means(), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
