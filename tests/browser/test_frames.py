"""What is painted many times a second: on a canvas over its drawing, saved with it; a film that is scrubbed."""

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import expect

from clearhead.training.folder import RunFolder
from tests.browser.looking import serving
from tests.browser.watching import SITE, Tabs, comes_to, shown, steady
from tests.covering import few

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"
PAINTED = """canvas => {
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    let sum = 0, seen = 0;
    for (let at = 3; at < data.length; at += 4) {
        if (!data[at]) continue;
        seen++;
        sum = (sum * 31 + data[at - 3] + at) % 1000003;
    }
    return [seen / (width * height), sum];
}"""
"""The share of a canvas that is painted, and a number that another picture does not have."""


def saved_marks(page):
    with page.expect_download() as told:
        page.get_by_test_id("save").first.click()
    root = ElementTree.fromstring(Path(told.value.path()).read_bytes())
    return next(group for group in root.iter(f"{SVG}g") if "data-marks" in group.attrib)


def painted(page):
    return page.get_by_test_id("marks").first.evaluate(PAINTED)


@pytest.mark.parametrize(("view", "least"), [("model", {"path": 60, "image": 8}), ("steps", {"path": 40})])
def test_what_is_painted_is_saved_with_the_drawing(tabs, view, least):
    page = tabs.open(view, site=SITE, head=0, **({"at": 4} if view == "steps" else {}))
    steady(page, view)
    assert painted(page)[0] > 0.01
    marks = saved_marks(page)
    for tag, count in least.items():
        assert len(list(marks.iter(f"{SVG}{tag}"))) >= count


def test_the_canvas_leaves_the_pointer_to_what_lies_beneath(tabs):
    page = tabs.open("model")
    steady(page, "model")
    before = painted(page)
    page.locator("[data-token='1']").first.hover()
    page.wait_for_function("async () => { await new Promise(requestAnimationFrame); return true; }")
    assert painted(page)[1] != before[1], "the lanes of the other tokens are pale"
    page.get_by_test_id(f"thumb-{SITE}-1").click()
    page.get_by_test_id("view-head").wait_for()


def second_step(page):
    run = page.evaluate("async () => (await fetch('api/run')).json()")
    return sorted({*run["film"], *run["steps"], run["step"]})[1]


@pytest.mark.parametrize("view", few(["model", "steps"], 1))
def test_a_fast_hand_comes_to_the_step_it_stops_at(tabs, view):
    """Each move begins before the last is answered: nothing is broken off, and the last one is what is shown."""
    page = tabs.open(view, site=SITE, head=0, **({"at": 4} if view == "steps" else {}))
    steady(page, view)
    before = painted(page)
    slider = page.get_by_test_id("step-slider")
    last = int(slider.get_attribute("max"))
    slider.evaluate(
        """async (slider, last) => {
            for (let move = 0; move < 40; move++) {
                slider.value = move % (last + 1);
                slider.dispatchEvent(new Event("input", { bubbles: true }));
                await new Promise(done => setTimeout(done, 5));
            }
            slider.value = 1;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        last,
    )
    second = second_step(page)
    comes_to(page, step=second)
    expect(page.get_by_test_id("step-shown")).to_have_text(re.compile(rf"\b{second}$"))
    steady(page, view)
    assert painted(page)[1] != before[1]


FILMED = {
    "decoding": {"mode": "beam"},
    "steps": {"site": SITE, "head": 0, "at": 4},
    **{view: {"site": SITE, "head": 0} for view in ("model", "heads", "head", "intervene")},
    "meaning": {"site": "encoder.1.attention", "head": 0},
}
SCRUB = """async slider => {
    for (const place of [0, 2, 1, 3, 0, 1]) {
        slider.value = place;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise(done => setTimeout(done, 20));
    }
}"""


@pytest.mark.parametrize("view", few(FILMED, 1))
def test_after_scrubbing_a_view_says_what_it_says_of_that_step(tabs, view):
    """Parts of a view take turns while the slider moves; when it rests none is left behind."""
    page = tabs.open(view, **FILMED[view])
    page.get_by_test_id("step-slider").evaluate(SCRUB)
    comes_to(page, step=second_step(page))
    said = steady(page, view)
    fresh = tabs.reopen(page)
    shown(fresh, view)
    assert steady(fresh, view) == said


def test_the_film_grows_while_the_run_trains(chromium, demo_folder, tmp_path):
    folder = RunFolder(shutil.copytree(demo_folder, tmp_path / "growing"))
    frames = sorted((folder.path / "film").iterdir())
    away = tmp_path / frames[2].name
    frames[2].rename(away)
    with folder.lock(), serving(folder.path) as home:
        tabs = Tabs(chromium, home)
        page = tabs.open("model")
        before = int(page.get_by_test_id("step-slider").get_attribute("max"))
        away.rename(frames[2])
        expect(page.get_by_test_id("step-slider")).to_have_attribute("max", str(before + 1))
        tabs.check()
        tabs.close()


def test_terms_of_a_views_sentence_are_explained(tabs):
    page = tabs.open("steps", site=SITE, head=0)
    expect(page.get_by_role("heading", level=1)).to_have_text("Steps")
    page.get_by_test_id("view-steps").locator("header").get_by_test_id("term-query").focus()
    expect(page.get_by_role("tooltip")).to_contain_text("What a token looks for")


def test_numbers_in_german_have_a_comma(tabs):
    page = tabs.open("steps", site=SITE, head=0, query=1, at=4, lang="de")
    shares = page.locator("text.share").all_text_contents()
    assert shares
    assert all(re.fullmatch(r"[01](,\d+)?|\d(,\d+)?e−\d+", one.strip()) for one in shares), shares
