"""What a notebook shows of a trace: the text, the answers with probabilities, and weights that are the trace's."""

import html
import math
import re

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.model.outputs import Classes
from clearhead.tracing import display, site
from clearhead.tracing.trace import trace_model
from tests.model.small import both_spec, built, decoder_spec, words
from tests.rounding import assert_equal_but_rounding


def translated():
    return trace_model(built(both_spec()), words(1, 7), words(1, 5))


def cells(figure):
    """Return what the tooltips of a map say: (row, column) and the weight, None where it is masked."""
    found = re.findall(r"<title>(.*?) → (.*?): ([\d.]+%|masked)</title>", figure)
    return [(row, column, None if told == "masked" else float(told[:-1]) / 100) for row, column, told in found]


def check_map(figure, head):
    allowed, weight = head.allowed(0, head.site.n_query), head.weight
    told = [share for _, _, share in cells(figure)]
    assert [share is None for share in told] == (~allowed).flatten().tolist()
    assert [share or 0.0 for share in told] == pytest.approx(weight.flatten().tolist(), abs=1e-6)


def test_a_trace_shows_its_text_its_answers_and_one_map():
    trace = translated()
    shown = trace._repr_html_()
    for side in trace.sides.values():
        assert all(f">{token}</bdi>" in shown for token in side.tokens)
    for answers in trace.candidates:
        assert f"{answers[0].text} {math.exp(answers[0].log_prob):.1%}" in shown
    [figure] = re.findall(r"<figure>.*?</figure>", shown)
    index = int(re.search(r"decoder\.1\.cross, head (\d) of 3", figure)[1])
    check_map(figure, trace["decoder.1.cross"].head[index])
    sharpest = torch.stack([head.weight.amax(-1).mean() for head in trace["decoder.1.cross"].head]).argmax()
    assert index == sharpest


def test_print_says_what_was_read_and_answered():
    trace = translated()
    first, *lines = str(trace).splitlines()
    assert first == repr(trace)
    assert lines[0] == "  source  " + " ".join(trace.sides["encoder"].tokens)
    assert lines[1] == "  target  " + " ".join(trace.sides["decoder"].tokens)
    best = [answers[0] for answers in trace.candidates]
    assert lines[2] == "  answers " + " ".join(f"{one.text} {math.exp(one.log_prob):.0%}" for one in best)
    long = str(trace_model(built(decoder_spec()), words(1, 100))).splitlines()
    assert long[1].startswith("  text    … ")
    assert max(map(len, long)) < 300


def test_a_classifier_has_one_answer():
    spec = both_spec().encoder
    trace = trace_model(built(spec.__class__(**{**vars(spec), "output": Classes(3)})), words(1, 6))
    assert str(trace).splitlines()[-1].count("%") == 1
    assert "The likeliest answers</p>" in trace._repr_html_()
    assert ">answer</text>" in trace._repr_html_()


def test_every_weight_of_every_head_is_in_show():
    trace = translated()
    shown = trace.show()._repr_html_()
    sections = re.findall(r"<details.*?<summary>(.*?)</summary>(.*?)</details>", shown)
    assert [name for name, _ in sections] == list(trace.sites)
    for name, section in sections:
        for figure, head in zip(re.findall(r"<figure>.*?</figure>", section), trace[name].head, strict=True):
            check_map(figure, head)
    assert shown.count("<details open") == 1


def test_a_site_shows_its_heads_and_a_head_itself():
    shown = translated().decoder[0].attention
    assert len(re.findall("<figure>", shown._repr_html_())) == 3
    [figure] = re.findall(r"<figure>.*?</figure>", shown.head[2]._repr_html_())
    check_map(figure, shown.head[2])
    assert shown.head[2].show().title == "decoder.0.attention, head 2: 5 queries x 5 keys"


def test_nothing_in_it_runs_or_is_loaded():
    shown = translated().show()._repr_html_()
    assert not re.search(r"<script|<iframe|@import|url\(|src=|on\w+=", shown)
    assert set(re.findall(r"https?://[\w./]+", shown)) == {"http://www.w3.org/2000/svg"}


def test_tokens_are_escaped():
    evil = ['</script><script>alert("x")</script>', "\"'>&amp;", "ثلاثة", "", "東京"]
    trace = trace_model(built(decoder_spec()), words(1, 5), pieces={"decoder": evil})
    shown = trace.show()._repr_html_()
    assert "<script" not in shown
    assert html.escape(evil[0]) in shown
    assert "∅" in shown


def test_a_long_text_is_pooled_and_says_so(monkeypatch):
    trace = trace_model(built(decoder_spec()), words(1, 100))
    monkeypatch.setattr(site, "SIDE", 50)
    matrix = trace.decoder[0].attention.head[0].matrix("head 0", 50)
    blocks = trace.decoder[0].attention.head[0].weight.unflatten(0, (50, 2)).unflatten(2, (50, 2)).amax((1, 3))
    seen = ~matrix.values.isnan()
    assert_equal_but_rounding(matrix.values[seen], blocks[seen])
    assert "each cell the largest of 2 × 2" in trace.decoder[0].attention.head[0]._repr_html_()
    assert "at the last 24 of 100 places" in trace._repr_html_()


def test_what_is_not_quick_is_left_out_and_named(monkeypatch):
    trace = trace_model(built(decoder_spec()), words(1, 100))
    monkeypatch.setattr(display, "WEIGHTS", 3 * 100 * 100)
    shown = trace.show()._repr_html_()
    assert re.findall(r"<summary>(.*?)</summary>", shown) == ["decoder.1.attention"]
    assert "1 more of its 2 attentions are left out: trace.show(site=NAME) shows one" in shown


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"site": "decoder.9.cross"}, "there is no attention called 'decoder.9.cross'"),
        ({"site": "decoder.1.cross", "head": 3}, "there is no head 3; there are 3"),
        ({"head": 1}, r"show\(head=1\) needs a site: one of encoder.0.attention"),
    ],
)
def test_what_is_not_there_is_refused(asked, reason):
    with pytest.raises(OptionError, match=reason):
        translated().show(**asked)
