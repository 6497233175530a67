"""The picture of a circuits bench: a panel for each axis, and the same bytes for the same grades."""

from clearhead.plots.method_grades import draw_grades, figure_of


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
