"""Curves against the number of GPUs: what is drawn is what was given, and the same each time."""

import pytest

from estimator.plots import STYLES, Panel, draw_panels, figure_of

PANEL = Panel(
    title="memory", y="GiB", curves={"ddp": {8: 100.0, 64: 100.0}, "fsdp": {8: 20.0, 64: 4.0}}, limit=(135.0, "H200")
)


@pytest.mark.slow
def test_curves_and_the_limit_are_drawn():
    (axes,) = figure_of([PANEL]).axes
    assert [line.get_label() for line in axes.lines[:2]] == ["ddp", "fsdp"]
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[100.0, 100.0], [20.0, 4.0]]
    assert list(axes.lines[2].get_ydata()) == [135.0, 135.0]
    assert [text.get_text() for text in axes.texts] == ["H200"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert len({style for style, _ in STYLES}) == len({role for _, role in STYLES}) == len(STYLES)


@pytest.mark.slow
def test_the_same_curves_give_the_same_bytes(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_panels([PANEL, PANEL], tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
