"""Exercises in the page: a puzzle programmed by menus, and a slip pointed at and repaired, graded as `learn` grades."""

import pytest
from playwright.sync_api import expect

from clearhead.exercises import EXERCISES
from clearhead.exercises.slips import SlipModel
from tests.browser.watching import rests

pytestmark = pytest.mark.slow


def verdict_is(page, state):
    expect(page.locator("[data-testid=verdict] [data-state]")).to_have_attribute("data-state", state)


def test_a_puzzle_is_solved_by_menus(tabs):
    page = tabs.open("exercises", exercise="length")
    page.get_by_test_id("add-select").click()
    expect(page.get_by_text("A selector is none yet")).to_be_visible()
    page.get_by_test_id("add-width").click()
    verdict_is(page, "right")
    page.get_by_label("line 1: predicate").select_option("key == query")
    verdict_is(page, "not yet")
    expect(page.get_by_test_id("verdict")).to_contain_text("For ab: expected 2 2, came 1 1.")
    expect(page.get_by_test_id("puzzle-lines").locator("output")).to_have_text(["[0] [1]", "1 1"])
    page.get_by_role("button", name="Remove line 1").click()
    expect(page.get_by_test_id("puzzle-lines").locator("li")).to_have_count(0)
    expect(page.get_by_test_id("exercises-solved")).to_contain_text("1 of 37")


def test_a_program_of_the_address_is_graded_in_german(tabs):
    page = tabs.open("exercises", exercise="reverse", lines="\n".join(EXERCISES["reverse"].menus), lang="de")
    verdict_is(page, "right")
    expect(page.get_by_test_id("verdict")).to_contain_text("Daraus werden 4 Schichten, 2 Köpfe, 5 Operationen")


def test_a_slip_is_pointed_at_and_repaired(tabs):
    page = tabs.open("exercises", exercise="slip-3")
    at, step = SlipModel(exercise=EXERCISES["slip-3"]).place
    page.locator(f"[data-step='{at} context']").click()
    page.get_by_test_id("slip-formula").select_option("weight @ value")
    expect(page.get_by_test_id("verdict")).to_contain_text("the slip is not there")
    page.locator(f"[data-step='{at} {step}']").click()
    page.get_by_test_id("slip-formula").select_option("softmax(masked, -1)")
    verdict_is(page, "right")
    rests(page)
