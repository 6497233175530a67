"""The step slider and A | B: two steps, two texts and two runs in one page, linked, with their difference."""

import math
import re

import pytest
from playwright.sync_api import expect

import clearhead as ch
from clearhead.training.run import load
from tests.browser.looking import looking, missing, serving
from tests.browser.test_every_view import AXE, LEAST, RUNS_OFF, SIZES, TOO_SMALL
from tests.browser.watching import SITE, SOURCE, Tabs, comes_to, eventually, number_in, rests, says, shown
from tests.training import small_runs

pytestmark = pytest.mark.slow

FRAMES = [0, 1, 2, 4, 8, 16, 32, 64]
STEPS = sorted({*FRAMES, 30, 60, 90})


def slide(page, place, nth=0):
    page.get_by_test_id("step-slider").nth(nth).fill(str(place))


def traced(folder, step, target):
    return ch.trace(load(folder, device="cpu", step=step), SOURCE, target)


def test_the_slider_shows_every_step_that_was_kept(tabs, demo, demo_folder):
    tabs.provoked.append("410 (Gone)")  # as below: played through eleven steps, the server lets go of the first
    page = tabs.open("head", site=SITE, head=1)
    slider = page.get_by_test_id("step-slider")
    assert slider.get_attribute("max") == str(len(STEPS) - 1)
    own = list(ch.trace(demo, SOURCE).sides["decoder"].ids[1:])
    for place in (0, STEPS.index(32)):
        slide(page, place)
        comes_to(page, step=STEPS[place], target_ids=",".join(map(str, own)))
        expect(page.get_by_test_id("run")).to_contain_text(f"step {STEPS[place]} ")
    page.get_by_test_id("nav-steps").click()
    shown(page, "steps")
    comes_to(page, step=32)
    page.locator("body").press(".")
    comes_to(page, step=60)
    page.locator("body").press(",")
    comes_to(page, step=32)
    page.get_by_test_id("step-own").click()
    expect(page.get_by_test_id("step-own")).to_have_attribute("aria-pressed", "true")
    page.wait_for_function("() => !location.hash.includes('target_ids')")
    page.get_by_test_id("step-own").click()
    comes_to(page, target_ids=",".join(map(str, own)))
    page.get_by_test_id("step-play").click()
    expect(page.get_by_test_id("step-shown")).to_have_text("step 90")
    page.wait_for_function("() => !location.hash.includes('step=')")  # the run's own step needs no word


def test_training_shows_the_film(tabs):
    tabs.provoked.append("410 (Gone)")  # the server keeps a few traces, and the page asks again for one it dropped
    page = tabs.open("training", site=SITE, head=1)
    film = page.get_by_role("group", name="The head at each step that was kept")
    expect(film.get_by_role("button")).to_have_count(len(STEPS))
    film.get_by_role("button", name="Step 4", exact=True).click()
    comes_to(page, checkpoint=4)
    expect(page.locator("figure").nth(1)).to_contain_text("at step 4")
    slide(page, 0)
    expect(page.locator("figure").nth(1)).to_contain_text("at step 0")


def test_two_steps_side_by_side_and_their_difference(tabs, demo, demo_folder):
    page = tabs.open("head", site=SITE, head=1, query=2, key=1)
    page.get_by_test_id("compare").click()
    for column in ("column-a", "column-b"):
        expect(page.get_by_test_id(column).get_by_test_id("view-head")).to_be_visible()
    # What is chosen is chosen in both.
    page.get_by_test_id("head-picker").get_by_role("button", name="Head 3", exact=True).click()
    comes_to(page, head=3)
    for column in ("column-a", "column-b"):
        expect(page.get_by_test_id(column).get_by_role("heading", name="head 3")).to_be_visible()
    page.get_by_test_id("nav-steps").click()
    expect(page.get_by_test_id("column-b").get_by_test_id("view-steps")).to_be_visible()
    page.go_back()
    expect(page.get_by_test_id("column-b").get_by_test_id("view-head")).to_be_visible()
    slide(page, STEPS.index(16), nth=1)
    page.get_by_test_id("pane-difference").click()
    expect(page.get_by_test_id("step-shown").nth(1)).to_have_text("step 16")
    rests(page)
    check_difference(page, demo, demo_folder, step=16, head=3)
    # The link restores all of it.
    again = tabs.reopen(page)
    expect(again.get_by_test_id("largest")).to_have_text(page.get_by_test_id("largest").text_content() or "")
    expect(again.get_by_test_id("step-shown").nth(1)).to_have_text("step 16")
    again.get_by_test_id("compare-close").click()
    shown(again, "head")
    again.wait_for_function("() => !location.hash.includes('beside')")


def check_difference(page, demo, folder, *, step, head):
    """The largest change and the outputs are those of the traces themselves."""
    one = ch.trace(demo, SOURCE)
    target = list(one.sides["decoder"].ids[1:])
    before = traced(folder, demo.step, target)[SITE].head[head].weight
    other = traced(folder, step, target)
    after = other[SITE].head[head].weight
    query, key = divmod(int((after - before).abs().argmax()), before.shape[1])
    first = page.get_by_test_id("largest").locator("button").first
    words = [one.sides["decoder"].tokens[query], one.sides["encoder"].tokens[key]]
    expect(first).to_contain_text(re.sub("^[ ▁]", "·", words[0]))
    expect(first).to_contain_text(words[1])
    rests(page)
    shares = (first.locator(".numbers").text_content() or "").split("→")
    assert says(shares[0], float(before[query, key]))
    assert says(shares[1], float(after[query, key]))
    first.click()
    comes_to(page, query=query, key=key)
    heading = page.get_by_role("heading", name="Candidates at place").text_content() or ""
    place = int(number_in(heading)[0])
    best = [found.candidates[place][0] for found in (one, other)]
    bars = page.get_by_test_id("run-b").locator("[data-candidate]")
    was = bars.and_(page.locator(f'[data-candidate="{best[0].id}"]')).get_attribute("data-before")
    assert float(was) == pytest.approx(math.exp(best[0].log_prob), rel=1e-3)
    told = bars.and_(page.locator(f'[data-candidate="{best[1].id}"]')).locator("title").text_content() or ""
    assert says(told.split(":")[1].split(",")[0], math.exp(best[1].log_prob))


def test_other_texts_are_said_to_have_no_cells_in_common(tabs):
    page = tabs.open("head", site=SITE, head=1)
    page.get_by_test_id("compare").click()
    expect(page.get_by_test_id("column-b").get_by_test_id("view-head")).to_be_visible()
    page.get_by_test_id("source").nth(1).fill("vierundzwanzig")
    page.get_by_test_id("look").nth(1).click()
    page.get_by_test_id("pane-difference").click()
    expect(page.get_by_test_id("caveats")).to_contain_text("read other tokens")
    expect(page.get_by_test_id("largest")).to_have_count(0)
    expect(page.get_by_test_id("answer-b")).not_to_have_text(page.get_by_test_id("answer-a").text_content() or "")


def is_readable(page, pane, size):
    """Check that no text is too small. What is drawn again in another size may take a frame or two."""
    assert page.evaluate(TOO_SMALL, LEAST) == [], (pane, size)
    return True


def test_it_can_be_read_and_used_by_anyone(tabs):
    if not AXE.is_file():
        missing("axe-core is not there; run `make web`")
    page = tabs.open("head", site=SITE, head=1, window=SIZES["phone"])
    page.get_by_test_id("options").click()
    page.get_by_test_id("compare").click()
    expect(page.get_by_test_id("column-b").get_by_test_id("view-head")).to_be_visible()
    for pane in ("difference", "both"):
        page.get_by_test_id(f"pane-{pane}").click()
        for size in SIZES.values():
            page.set_viewport_size(size)
            rests(page)
            eventually(page, is_readable, page, pane, size)
            assert page.evaluate(RUNS_OFF) == [], (pane, size)
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate(
            "axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa'], resultTypes: ['violations'] })"
        )
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]] == [], pane
    page.get_by_test_id("nav-similarity").click()
    expect(page.get_by_test_id("column-b").get_by_test_id("view-similarity")).to_be_visible()
    rests(page)
    eventually(page, is_readable, page, "similarity", "half of a desk")


@pytest.mark.parametrize("served", [serving, pytest.param(looking, marks=pytest.mark.thorough)])
def test_two_runs(served, chromium, demo_folder, tmp_path_factory):
    """Another task, another tokeniser, one layer: what cannot be compared is said, and nothing fails.

    By the command itself in `make test-all`; tests/cli/test_look.py has its process, and that it takes two runs.
    """
    other = small_runs.trained(small_runs.translating, tmp_path_factory)
    with served(demo_folder, other.folder.path) as home:
        tabs = Tabs(chromium, home)
        page = tabs.context().new_page()
        page.goto(f"{home}#/head?source=zwei&site={SITE}&head=3")
        expect(page.get_by_test_id("column-b").get_by_test_id("view-head")).to_be_visible()
        expect(page.get_by_test_id("missing")).to_contain_text("has no decoder.1.cross")
        page.get_by_test_id("pane-difference").click()
        expect(page.get_by_test_id("caveats")).to_contain_text("two trainings")
        expect(page.get_by_test_id("caveats")).to_contain_text("other vocabularies")
        page.get_by_test_id("compare-close").click()
        shown(page, "head")
        page.reload()
        shown(page, "head")
        expect(page.get_by_test_id("comparison")).to_have_count(0)
        tabs.check()
        tabs.close()
