"""Steps, printed and drawn: the numbers are those of the steps, and each arrow says what the numbers bear out."""

import re

import pytest
import torch

import clearhead as ch


def explained(n_query=3, n_key=4, **options):
    torch.manual_seed(0)
    return ch.explain(torch.randn(2, 3, n_query, 8), *(torch.randn(2, 3, n_key, 8) for _ in range(2)), **options)


def arrows(steps):
    return re.findall(r'class="ch-arrow"><b>→</b>(.*?)</div>', steps._repr_html_())


def test_print_is_a_line_for_each_step():
    lines = str(explained(mask=ch.masks.causal())).splitlines()
    assert lines[0] == "Steps of attention: 3 queries x 4 keys"
    names = ["query", "key", "value", "score", "scaled", "masked", "weight", "context"]
    assert [line.split()[0] for line in lines[1:]] == names
    assert lines[4].startswith("  score   (2, 3, 3, 4) ")
    assert lines[6].endswith("; 18 of 72 are hidden by the mask")
    assert repr(explained()) == str(explained())


def test_five_maps_with_the_steps_numbers():
    steps = explained(mask=ch.masks.causal())
    shown = steps._repr_html_()
    assert re.findall(r"<figcaption>(\w+)</figcaption>", shown) == ["score", "scaled", "masked", "weight", "context"]
    figures = re.findall(r"<figure>.*?</figure>", shown)
    for figure, name in zip(figures, ("score", "scaled", "masked", "weight", "context"), strict=True):
        values = getattr(steps, name)[0, 0]
        told = [text.split(": ")[1] for text in re.findall(r"<title>(.*?)</title>", figure)]
        wanted = [f"{value:.4g}" if value > -1e9 else "-inf, hidden by the mask" for value in values.flatten().tolist()]
        assert told == wanted
    assert "Shown: batch row 0 of 2, head 0 of 3." in shown
    assert "<script" not in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ["query · key", "× 0.354, the scale", "mask: nothing hidden", "weighting: each row sums to 1"]),
        ({"mask": ch.masks.causal()}, ["query · key", "× 0.354, the scale", "mask: 3 of 12 hidden"]),
        ({"similarity": ch.similarity.Dot()}, ["query · key", "× 1, the scale"]),
        ({"position": ch.positions.ALiBi()}, ["query · key", "× 0.354, the scale", "+ bias; mask: nothing hidden"]),
        ({"weighting": ch.weighting.Sigmoid(0.0)}, ["query · key", "× 0.354, the scale", "mask: nothing hidden",
                                                    "weighting", "weight × value"]),
    ],
)  # fmt: skip
def test_arrows_say_what_happens(options, said):
    assert arrows(explained(**options))[: len(said)] == said


def test_one_head_without_a_batch_and_a_row_that_sees_nothing():
    steps = ch.explain(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 4), mask=~ch.masks.everything())
    assert "Shown:" not in steps._repr_html_()
    assert "mask: 4 of 4 hidden" in arrows(steps)
    assert "no finite number; 4 of 4" in str(steps)


def test_of_many_positions_the_first_are_drawn():
    shown = explained(100, 100)._repr_html_()
    assert "Of each step the first 40 rows and columns are drawn." in shown
    assert len(shown) < 1_000_000


def test_steps_without_numbers_are_printed_too():
    with torch.device("meta"):
        steps = ch.explain(*(torch.randn(2, 3, 4) for _ in range(3)))
    assert "score   (2, 3, 3)" in str(steps)


def test_a_picture_is_saved(tmp_path):
    explained().show().save(tmp_path / "steps.html")
    assert "Attention step by step: 3 queries x 4 keys" in (tmp_path / "steps.html").read_text(encoding="utf-8")
