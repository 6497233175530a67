"""Edits on every view: what is changed is said, undone and set aside everywhere, and decoding takes it too."""

import copy
import json
import math
import re

import pytest
import torch
from playwright.sync_api import expect

import clearhead as ch
from clearhead.tracing.names import Names
from tests.browser.watching import SITE, SOURCE, VIEWS, comes_to, rests, says, shown, state
from tests.covering import share_of

pytestmark = pytest.mark.slow

HEAD_OFF = {"at": "encoder.0.attention", "step": "context", "head": 1, "times": 0.0}
OTHER_OFF = {"at": SITE, "step": "context", "head": 2, "times": 0.0}
ALL_OFF = {"at": "encoder.0.attention", "step": "context", "times": 0.0}
PHONE = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}


def says_first(page, candidate):
    """Waits until the model view gives this probability to its first answer."""
    told = re.compile(rf"^{re.escape(candidate.text)} {round(100 * math.exp(candidate.log_prob))} %")
    expect(page.get_by_test_id("output-0")).to_have_attribute("aria-label", told)


def chance_of(demo, *edits):
    return ch.trace(demo, SOURCE, edits=[ch.Edit(**edit) for edit in edits]).candidates[0][0]


UNREACHED = ("context", "positions", "tokens")
FEW = ("head", "intervene", "design", *UNREACHED)
"""Views that `make test` looks at: one of those that show the change, both that always do, all that do not."""


def test_every_view_says_what_is_changed(tabs):
    page = tabs.open("model", edits=json.dumps([HEAD_OFF]))
    banner = page.get_by_test_id("edit-banner")
    for view in VIEWS if share_of(4) == 4 else FEW:
        page.get_by_test_id(f"nav-{view}").click()
        shown(page, view)
        expect(banner).to_contain_text("Encoder 0 · self-attention")
        expect(banner).to_contain_text("head 1 off")
        reached = view not in UNREACHED
        expect(page.get_by_test_id("edit-says")).to_contain_text(
            "The model is changed" if reached else "This view shows the unchanged model"
        )
        expect(page.get_by_test_id("undo")).to_be_enabled()
        expect(page.get_by_test_id("show-unchanged")).to_have_count(
            1 if reached and view not in ("intervene", "design") else 0
        )


def test_no_banner_where_nothing_is_changed(tabs):
    page = tabs.open("head")
    expect(page.get_by_test_id("edit-banner")).to_have_count(0)


def test_the_unchanged_model_is_shown_for_a_while(tabs, demo):
    page = tabs.open("model", edits=json.dumps([ALL_OFF]))
    plain, changed = chance_of(demo), chance_of(demo, ALL_OFF)
    shown_as = [round(100 * math.exp(candidate.log_prob)) for candidate in (plain, changed)]
    assert shown_as[0] != shown_as[1], "the two read the same on the page"
    says_first(page, changed)
    page.get_by_test_id("show-unchanged").click()
    expect(page.get_by_test_id("edit-says")).to_contain_text("The unchanged model is shown")
    comes_to(page, unchanged="1")
    says_first(page, plain)
    assert json.loads(state(page)["edits"]) == [ALL_OFF]
    again = tabs.reopen(page)
    shown(again, "model")
    says_first(again, plain)
    again.get_by_test_id("show-unchanged").click()
    says_first(again, changed)


def test_edits_are_undone_one_or_all_on_any_view(tabs):
    page = tabs.open("steps", site=SITE, head=0, edits=json.dumps([HEAD_OFF, OTHER_OFF]))
    edits = page.get_by_test_id("edit-list").get_by_role("listitem")
    expect(edits).to_have_count(2)
    page.get_by_role("button", name="Remove: Encoder 0 · self-attention, head 1 off").click()
    expect(edits).to_have_count(1)
    page.get_by_test_id("undo").click()
    expect(edits).to_have_count(2)
    page.get_by_test_id("clear-edits").click()
    expect(page.get_by_test_id("edit-banner")).to_have_count(0)
    page.keyboard.press("Control+z")
    expect(edits).to_have_count(2)


def test_decoding_is_that_of_the_changed_model(tabs, demo):
    page = tabs.open("decoding", beam=3, edits=json.dumps([HEAD_OFF]))
    model = copy.deepcopy(demo.model)
    layer = Names(model).sites[HEAD_OFF["at"]]
    d_value = layer.output.weight.shape[1] // layer.shape.n_heads
    with torch.no_grad():
        layer.output.weight[:, d_value : 2 * d_value] = 0
    rows = page.get_by_role("list", name="Outputs, the best first").get_by_role("listitem")
    reads, writes = demo.task.tokenizers["source"], demo.task.tokenizers["target"]
    method = ch.Beam(width=3, n_best=3)
    scores = {}
    for name, one in (("changed", model), ("unchanged", demo.model)):
        [found] = demo.task.search(one, [reads.encode(SOURCE)], method)
        scores[name] = found[0].score
        expect(rows.first.locator(".number")).to_have_text(re.compile(re.escape(f"{-found[0].score:.4f}"[:5])))
        rests(page)
        for row, hypothesis in zip(rows.all(), found, strict=True):
            assert row.locator(".words").inner_text() == writes.decode(hypothesis.tokens)
            assert says(row.locator(".number").inner_text(), hypothesis.score)
        if name == "changed":
            page.get_by_test_id("show-unchanged").click()
    assert abs(scores["changed"] - scores["unchanged"]) > 1e-3


def test_the_banner_fits_a_phone(tabs):
    page = tabs.open("head", window=PHONE, edits=json.dumps([HEAD_OFF, OTHER_OFF]))
    expect(page.get_by_test_id("edit-banner")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
