"""The curves: the same bytes twice, the numbers of the log on the right panel, and drawings of next to nothing."""

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import RunError
from clearhead.plots.curves import draw_curves, draw_grades, figure_of, grades_figure, smooth_values, spread

STEPS = [{"kind": "step", "step": step, "loss": 9 / step, "lr": 1e-4 * step} for step in range(1, 11)]
TRANSLATION = [{"bleu": 10.0 + at, "chrf": 30.0 + at, "exact_match": 0.01 * at, "bleu_signature": "v"} for at in (1, 2)]
TEXT = [{"loss": 3.0, "perplexity": 20.1, "bits_per_byte": 1.1}, {"loss": 2.0, "perplexity": 7.4, "bits_per_byte": 0.7}]


def evaluations(scores) -> list[dict]:
    return [
        {"kind": "evaluation", "step": 5 * (place + 1), "loss": 2.0 - place, "scores": one, "best": place == 0}
        for place, one in enumerate(scores)
    ]


def panels(lines, title: str = "") -> dict[str, tuple[list[list[float]], list[str]]]:
    """By the name of its axis, each panel's lines as their heights, and its words."""
    return {
        axes.get_ylabel(): (
            [list(line.get_ydata()) for line in axes.get_lines()],
            [text.get_text() for text in axes.texts],
        )
        for axes in figure_of(lines, title).axes
    }


@pytest.mark.slow
def test_the_same_lines_give_the_same_bytes(tmp_path):
    lines = [*STEPS, *evaluations(TRANSLATION)]
    for name in ("one.svg", "two.svg"):
        draw_curves(lines, tmp_path / name, title="a run")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.svg", "two.svg"]
    root = ET.fromstring((tmp_path / "one.svg").read_bytes())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not root.findall(".//{http://purl.org/dc/elements/1.1/}date")


def test_every_number_is_on_its_panel():
    drawn = panels([*STEPS, *evaluations(TRANSLATION)], "a run")
    assert list(drawn) == ["loss (nats)", "score", "learning rate"]
    losses, words = drawn["loss (nats)"]
    assert losses == [[9 / step for step in range(1, 11)]] * 2 + [[2.0, 1.0]]
    assert words == ["training 0.900", "dev 1.000"]
    # The main score is drawn last, on top; then the ring around the best.
    scores, words = drawn["score"]
    assert scores == [[1.0, 2.0], [31.0, 32.0], [11.0, 12.0], [11.0]]
    assert words == ["exact match 2.0 %", "BLEU 12.0", "chrF 32.0", "best"]
    rates, words = drawn["learning rate"]
    assert rates == [[1e-4 * step for step in range(1, 11)]]
    assert words == ["0.001"]


def test_classes_and_texts_have_scores_of_their_own():
    classes = panels(evaluations([{"accuracy": 0.5, "macro_f1": 0.25, "f1": {"red": 1.0}}]))
    assert classes["percent"] == ([[25.0], [50.0], [50.0]], ["macro F1 25.0 %", "accuracy 50.0 %", "best"])
    assert panels(evaluations(TEXT))["bits a byte"] == ([[1.1, 0.7], [1.1]], ["0.700", "best"])


def test_without_scores_the_best_is_marked_on_the_dev_loss():
    losses, words = panels([*STEPS, *evaluations([{}, {}])])["loss (nats)"]
    assert losses[2:] == [[2.0, 1.0], [2.0]]
    assert words[-1] == "best"


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("with_dev", [False, True])
@pytest.mark.slow
def test_next_to_nothing_can_be_drawn(tmp_path, count, with_dev):
    lines = [*STEPS[:count], *(evaluations(TRANSLATION[:count]) if with_dev else [])]
    draw_curves(lines, tmp_path / "curves.svg")
    ET.fromstring((tmp_path / "curves.svg").read_bytes())
    if not count:
        assert panels(lines) == {"loss (nats)": ([[], [], []], ["nothing has been logged yet"])}


@pytest.mark.slow
def test_what_is_not_finite_is_a_gap(tmp_path):
    lost = [line | {"loss": {4: None, 7: math.inf, 10: math.nan}.get(line["step"], line["loss"])} for line in STEPS]
    lines = [*lost, *evaluations([{"bleu": None}])]
    draw_curves(lines, tmp_path / "curves.svg")
    drawn = panels(lines)
    values, words = drawn["loss (nats)"]
    assert [math.isnan(value) for value in values[0]] == [step in (4, 7, 10) for step in range(1, 11)]
    assert words == ["training 1.000", "dev 2.000"]
    assert drawn["score"][1] == []


@pytest.mark.slow
def test_a_title_is_no_formula(tmp_path):
    draw_curves(STEPS, tmp_path / "curves.svg", title="from $5_{ to $6")
    assert figure_of(STEPS, "from $5_{ to $6").axes[0].get_title(loc="left") == "from $5_{ to $6"


def test_a_place_that_cannot_be_written_is_an_error_of_the_run(tmp_path):
    with pytest.raises(RunError, match=r"none/curves\.svg: the curves cannot be written there: No such file"):
        draw_curves(STEPS, tmp_path / "none" / "curves.svg")


def test_smoothing_is_the_mean_around_a_value():
    values = [float((7 * place) % 83) for place in range(80)]
    means = smooth_values(values)
    assert means[40] == pytest.approx(sum(values[38:43]) / 5)
    assert means[:2] == [values[0], pytest.approx(sum(values[:3]) / 3)]
    assert means[-1] == pytest.approx(sum(values[-3:]) / 3)
    values[40] = math.nan
    assert math.isnan(smooth_values(values)[40])
    assert smooth_values(values)[41] == pytest.approx(sum(values[39:40] + values[41:44]) / 4)


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
    panels = [panel for panel in grades_figure(means()).axes if panel.get_visible()]
    assert [panel.get_title(loc="left") for panel in panels] == ["argmax: 3 programs", "rotated: 3 programs"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["random", "exact"]
    assert [line.get_xdata()[0] for line in panels[0].lines if len(line.get_xdata()) == 1] == [0.4, 0.9]


def test_the_same_grades_give_the_same_bytes(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_grades(means(), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
