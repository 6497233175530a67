"""The text that is looked at: its line breaks stay, and Back and Forward go from one text to another."""

import pytest
from playwright.sync_api import expect

from tests.browser.watching import SITE, SOURCE, ask, comes_to, rests, shown

pytestmark = pytest.mark.slow

LINES = "vierund\nzwanzig\n\ndrei"


def test_line_breaks_reach_the_model_and_come_back(tabs):
    page = tabs.open("model")
    field = page.get_by_test_id("source")
    field.fill(LINES)
    with page.expect_response(lambda reply: reply.url.endswith("/api/trace")) as told:
        page.get_by_test_id("look").click()
    assert told.value.request.post_data_json["source"] == LINES
    assert told.value.json()["source"] == LINES
    comes_to(page, source=LINES)
    expect(field).to_have_value(LINES)
    again = tabs.reopen(page)
    shown(again, "model")
    expect(again.get_by_test_id("source")).to_have_value(LINES)
    assert again.get_by_test_id("source").bounding_box()["height"] > 60
    assert "\\n" in again.get_by_test_id("view-model").text_content()


def test_enter_looks_and_shift_enter_breaks_the_line(tabs):
    page = tabs.open("head")
    page.get_by_test_id("source").fill("eins")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("zwei")
    page.keyboard.press("Enter")
    comes_to(page, source="eins\nzwei")


def test_what_is_typed_stays_whatever_else_arrives(tabs):
    page = tabs.open("intervene", site=SITE, head=0)
    page.get_by_test_id("source").fill("vierundzwanzig")
    for button, said in ((f"head-toggle-{SITE}-1", "head 1 off"), ("undo", "Nothing is changed yet")):
        page.get_by_test_id(button).click()
        expect(page.get_by_test_id("edit-list")).to_contain_text(said)
        rests(page)
        expect(page.get_by_test_id("source")).to_have_value("vierundzwanzig")


def test_back_goes_to_the_text_before(tabs):
    page = tabs.open("model")
    page.get_by_test_id("source").press_sequentially("x")  # a text that is typed and not looked at is no step
    first = page.get_by_test_id("answer").inner_text()
    ask(page, "vierundzwanzig")
    second = page.get_by_test_id("answer")
    expect(second).not_to_have_text(first)
    rests(page)
    said = second.inner_text()
    ask(page, "hundertelf", "one")
    comes_to(page, target="one")
    page.go_back()
    comes_to(page, source="vierundzwanzig")
    expect(page.get_by_test_id("source")).to_have_value("vierundzwanzig")
    expect(page.get_by_test_id("target")).to_have_value("")
    expect(page.get_by_test_id("answer")).to_have_text(said)
    page.go_back()
    expect(page.get_by_test_id("source")).to_have_value(SOURCE)
    expect(page.get_by_test_id("answer")).to_have_text(first)
    page.go_forward()
    comes_to(page, source="vierundzwanzig")
    page.go_forward()
    expect(page.get_by_test_id("source")).to_have_value("hundertelf")
    expect(page.get_by_test_id("target")).to_have_value("one")


def test_back_goes_through_texts_and_views_in_their_order(tabs):
    page = tabs.open("model")
    ask(page, "vierundzwanzig")
    page.get_by_test_id("nav-head").click()
    shown(page, "head")
    ask(page, "elf")
    page.go_back()
    shown(page, "head")
    expect(page.get_by_test_id("source")).to_have_value("vierundzwanzig")
    page.go_back()
    shown(page, "model")
    page.go_back()
    expect(page.get_by_test_id("source")).to_have_value(SOURCE)
    comes_to(page, source=SOURCE)


def test_a_click_on_a_lane_opens_the_box_beneath(tabs):
    page = tabs.open("model")
    box = page.get_by_test_id("box-encoder.0.feed_forward").locator("rect").first.bounding_box()
    lane = page.locator("[data-token='1']").first.locator("rect").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, lane["y"] + lane["height"] / 2)
    page.wait_for_function("() => location.hash.includes('box=encoder.')")
