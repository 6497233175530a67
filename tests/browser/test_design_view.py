"""The view in which a head is designed: its numbers are craft's, and the model does what was designed."""

import math

import pytest
from playwright.sync_api import expect

from tests.browser.watching import comes_to, number_in, rests, says, state

pytestmark = pytest.mark.slow

WORDS = "the cute blue creature sees the blue creature"
HERE = "encoder.0.attention"


def read(page, name):
    return page.get_by_test_id(f"design-{name}").inner_text()


def test_it_is_as_sharp_as_craft_says(tabs):
    page = tabs.open("design", mine=WORDS, preset="previous", scale=3)
    assert read(page, "margin") == "1"
    assert says(read(page, "needed"), math.log(7 * 0.99 / 0.01))
    assert number_in(read(page, "left"))[0] == pytest.approx(math.e**3 / (math.e**3 + 7), abs=1e-3)
    page.get_by_test_id("design-enough").click()
    comes_to(page, scale=6.6)
    assert number_in(read(page, "left"))[0] >= 0.99
    page.get_by_test_id("design-argmax").click()
    expect(page.get_by_test_id("design-left")).to_have_text("1")


def test_keys_that_lean_on_each_other_leave_less_and_equal_ones_nothing(tabs):
    page = tabs.open("design", mine=WORDS, preset="looks", **{"from": "creature", "to": "blue"})
    field = page.get_by_label("key of cute, number 3")
    field.fill("0.5")
    field.press("Tab")
    expect(page.get_by_test_id("design-margin")).to_have_text("0.5")
    field.fill("1")
    field.press("Tab")
    expect(page.get_by_test_id("design-needed")).to_have_text("none")
    expect(page.get_by_test_id("design-exact")).to_have_text("wrong")
    page.get_by_role("button", name="creature asks for cute").click()
    expect(page.get_by_test_id("design-exact")).to_have_text("exact")


@pytest.mark.parametrize(
    ("site", "more"),
    [(HERE, {"scale": 4}), ("decoder.0.attention", {"weighting": "argmax"})],
    ids=["softmax", "argmax"],
)
def test_the_model_looks_where_it_was_designed_to(tabs, site, more):
    page = tabs.open("design", site=site, head=1, preset="previous", **more)
    page.get_by_test_id("design-send").click()
    told = page.get_by_test_id("design-told")
    expect(told).to_contain_text("looks where you designed it to")
    rests(page)
    assert number_in(told.locator(".number").inner_text())[0] < 1e-5
    expect(page.get_by_test_id("design-why")).to_contain_text("ran the reference")
    assert "edits" in state(page)
    page.get_by_test_id("design-remove").click()
    expect(told).to_contain_text("take the place of the head’s own")
    rests(page)
    assert not {"edits", "target_ids"} & set(state(page))


def test_a_design_is_there_again_after_another_view(tabs):
    page = tabs.open("design", site=HERE, preset="first", scale=2.5)
    left = read(page, "left")
    page.get_by_test_id("nav-head").click()
    page.get_by_test_id("view-head").wait_for()
    page.get_by_test_id("nav-design").click()
    expect(page.get_by_test_id("design-left")).to_have_text(left)
    comes_to(page, preset="first", scale=2.5)


def test_a_goal_is_graded_on_every_sentence_with_partial_credit(tabs):
    page = tabs.open("design")
    page.get_by_test_id("design-goal").select_option("look-at-blue")
    state_of = page.locator("[data-testid=verdict] [data-state]")
    expect(state_of).to_have_attribute("data-state", "not yet")
    expect(page.get_by_test_id("verdict")).to_contain_text("of the weight is right. The worst:")
    for word in ("the", "a", "blue", "green", "old", "creature", "forest", "and", "one"):
        asks = page.get_by_role("button", name=f"{word} asks for blue", exact=True)
        asks.click()
        expect(asks).to_have_attribute("aria-pressed", "true")
    expect(state_of).to_have_attribute("data-state", "right")
    expect(page.get_by_test_id("verdict")).to_contain_text("100% of all weight is where it should be")
    page.get_by_test_id("design-goal").select_option("look-back")
    expect(state_of).to_have_attribute("data-state", "not yet")
    page.get_by_role("button", name="Previous token", exact=True).click()
    expect(state_of).to_have_attribute("data-state", "right")
