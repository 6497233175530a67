"""What a notebook shows of a trace: pages with every number of the weights inside them."""

import base64
import html
import json
import re

import numpy as np
import pytest
import torch

from clearhead.errors import OptionError
from clearhead.tracing import notebook
from clearhead.tracing.trace import trace_model
from tests.model.small import both_spec, built, decoder_spec, words
from tests.rounding import assert_equal_but_rounding


def data_of(document):
    """Return the maps in a page, with their numbers as arrays (head, row, column)."""
    data = json.loads(re.search(r'id="data">\s*(.*?)\s*</script>', document, re.DOTALL)[1])
    for one in data["maps"]:
        numbers = np.frombuffer(base64.b64decode(one["numbers"]), "<f4")
        one["numbers"] = numbers.reshape(len(one["heads"]), one["rows"], one["columns"])
    return data


def test_every_weight_is_in_the_page_and_masked_ones_are_no_numbers():
    trace = trace_model(built(both_spec()), words(1, 7), words(1, 5))
    data = data_of(trace.show().document)
    assert [one["name"] for one in data["maps"]] == list(trace.sites)
    assert data["maps"][data["first"]]["name"] == "decoder.1.cross"
    for one in data["maps"]:
        site = trace[one["name"]]
        for head, numbers in zip(site.head, one["numbers"], strict=True):
            allowed = head.allowed(0, site.n_query).numpy()
            assert np.array_equal(np.isnan(numbers), ~allowed)
            weight = torch.from_numpy(np.where(allowed, numbers, np.float32(0)))
            assert_equal_but_rounding(weight, head.weight.float(), one["name"])
    cross = data["maps"][data["first"]]
    assert (cross["queries"], cross["keys"]) == (trace.sides["decoder"].tokens, trace.sides["encoder"].tokens)


def test_a_frame_holds_the_page_and_can_reach_nothing():
    head = trace_model(built(both_spec()), words(1, 7), words(1, 5)).decoder[1].cross.head[2]
    shown = head._repr_html_()
    document = html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])
    assert document == head.show().document
    assert 'sandbox="allow-scripts"' in shown
    assert not re.search(r"https?:|src=|href=|import\(|fetch\(", document)
    [one] = data_of(document)["maps"]
    assert (one["name"], one["heads"]) == ("decoder.1.cross", [2])
    assert len(shown) < 30_000


def test_tokens_cannot_end_the_script_or_the_frame():
    evil = ['</script><script>alert("x")</script>', "\"'>&amp;", "ثلاثة", "", "東京"]
    trace = trace_model(built(decoder_spec()), words(1, 5), pieces={"decoder": evil})
    document = html.unescape(re.search(r'srcdoc="([^"]*)"', trace._repr_html_())[1])
    assert data_of(document)["maps"][0]["keys"] == evil
    assert document.count("</script>") == 2


def test_a_long_text_is_pooled_and_says_so(monkeypatch):
    trace = trace_model(built(decoder_spec()), words(1, 100))
    monkeypatch.setattr(notebook, "NUMBERS", 3 * 2 * 2500)
    [one] = data_of(trace.decoder[0].attention.head[0].show().document)["maps"]
    assert (one["pool"], one["rows"], one["columns"]) == (1, 100, 100)
    data = data_of(trace.show().document)
    pooled = data["maps"][0]
    assert (pooled["pool"], pooled["rows"], pooled["n_query"]) == (2, 50, 100)
    weight = trace.decoder[0].attention.head[0].weight.float()
    blocks = weight.unflatten(0, (50, 2)).unflatten(2, (50, 2)).amax((1, 3))
    there = ~np.isnan(pooled["numbers"][0])
    assert_equal_but_rounding(torch.from_numpy(pooled["numbers"][0][there]), blocks[torch.from_numpy(there)])
    assert len(data["maps"]) == 2
    assert not data["notes"]


def test_what_does_not_fit_is_left_out_and_named(monkeypatch):
    trace = trace_model(built(decoder_spec()), words(1, 100))
    monkeypatch.setattr(notebook, "CELLS", 3 * 100 * 100)
    data = data_of(trace.show().document)
    assert [one["name"] for one in data["maps"]] == ["decoder.1.attention"]
    assert data["notes"] == ["1 more of its 2 attentions are left out: trace.show(site=NAME) shows one"]


def test_a_page_is_saved_as_it_is(tmp_path):
    trace = trace_model(built(both_spec()), words(1, 7), words(1, 5))
    page = trace.show("encoder.0.attention", head=1)
    page.save(tmp_path / "head.html")
    assert (tmp_path / "head.html").read_text(encoding="utf-8") == page.document
    assert re.fullmatch(r"Page\(encoder.0.attention, head 1: 7 queries x 7 keys; [\d,]+ bytes: .*\)", repr(page))


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
        trace_model(built(both_spec()), words(1, 7), words(1, 5)).show(**asked)
