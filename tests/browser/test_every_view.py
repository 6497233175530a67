"""What holds for every view: its text can be read, its link restores it, its pictures are saved, anyone can use it.

Each view is opened once, for all four, and its link in one other window for all views. And errors are told.
"""

import io
import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.browser.looking import missing
from tests.browser.watching import (
    GO,
    NUMBERED,
    SITE,
    SOURCE,
    VIEWS,
    Tabs,
    address_of,
    ask,
    comes_to,
    eventually,
    rests,
    shown,
    steady,
)
from tests.covering import few

pytestmark = pytest.mark.slow

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
OFF = json.dumps([{"at": SITE, "step": "context", "head": 1, "times": 0}])
STATES = {
    "model": {"lens": "on", "box": "token.decoder.2"},
    "heads": {"site": SITE, "head": 1, "by": "entropy", "order": "highest", "show": "colours", "least": 20},
    "head": {"site": SITE, "head": "mean", "query": 2, "key": 1},
    "steps": {"site": SITE, "head": 1, "query": 3, "key": 2, "at": 3, "dimension": 5},
    "similarity": {"site": SITE, "head": 1, "query": 3, "key": 2, "a": "3,-1", "b": "2,2.5", "unscaled": 0.5},
    "context": {"layer": 1},
    "positions": {"kind": "rotary", "position": 9},
    "decoding": {"beam": 3, "at": 4, "layer": 1},
    "intervene": {"site": SITE, "head": 1, "query": 3, "key": 2, "edits": OFF, "place": 2},
    "training": {"site": SITE, "head": 2, "checkpoint": 60, "scale": "log"},
    "design": {"site": "encoder.0.attention", "head": 1, "preset": "same", "scale": 3, "epsilon": 0.05},
    "meaning": {"site": "encoder.0.attention", "head": 1, "places": "0,1,3", "pair": "2,1", "space": "query_key"},
    "sequence": {"site": "decoder.0.cross", "head": 2, "query": 3},
    "circuit": {"against": "achtundvierzigtausenddreiundsechzig", "edges": 20, "method": "eap"},
    "neurons": {"box": "decoder.0.feed_forward", "token": 2},
    "exercises": {"exercise": "length", "lines": "select | tokens | tokens | key == query\nwidth | line 1"},
    "tokens": {"text": "siebenhundert drei \u03a9", "at": 0},
}
"""Each view somewhere else than where it opens."""


OFTEN = ("model", "head", "steps", "decoding", "intervene", "training")
"""Views whose pictures and dark colours every run tries; the others are of the same make: see `make test-all`."""
LINKED = ("steps", "intervene", "training")
"""Views whose links every run opens in a window that is there: a place in a head, edits, a checkpoint."""
LEAST = 12
"""Pixels of the smallest letters, after all scaling."""
PHONE = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}
SIZES = {"phone": {"width": 390, "height": 844}, "desk": {"width": 1280, "height": 800}}
TOO_SMALL = """least => {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode.textContent.trim(), owner = walker.currentNode.parentElement;
        if (!text || owner.closest(".hidden, title, desc, script, style, select, option")) continue;
        const box = owner.getBoundingClientRect(), style = getComputedStyle(owner);
        if (!box.width || !box.height || style.visibility === "hidden") continue;
        const matrix = owner.closest("svg") && owner.getScreenCTM?.();
        const scale = matrix ? Math.hypot(matrix.a, matrix.b) : 1;
        const size = parseFloat(style.fontSize) * scale;
        if (size < least - 0.01) found.push(`${size.toFixed(1)} px: ${text.slice(0, 30)} (${owner.tagName}.${
            owner.getAttribute("class") ?? ""})`);
    }
    return [...new Set(found)];
}"""
MANY = "q x z j v w k y p f b g c q x z j v w k"
"""More than 28 tokens, one for a letter or a blank."""
OUT_OF_SIGHT = """() => [...document.querySelectorAll(".choice [aria-pressed=true]")]
    .map(each => [each.getBoundingClientRect(), each.closest(".tokens").getBoundingClientRect()])
    .filter(([inner, outer]) => inner.top < outer.top || inner.bottom > outer.bottom)"""
RUNS_OFF = """() => {
    const wide = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= wide) return [];
    return [...document.querySelectorAll("body *")]
        .filter(each => each.getBoundingClientRect().right > wide + 0.5)
        .map(each => `${each.tagName}.${each.getAttribute("class") ?? ""}: ${each.getBoundingClientRect().right}`);
}"""


@pytest.fixture(scope="module")
def other(chromium, home):
    """A second window, which links are opened in, and an empty page, for drawings."""
    tabs = Tabs(chromium, home)
    yield tabs.open("model", theme="light"), tabs.context().new_page()
    tabs.check()
    tabs.close()


@pytest.fixture(scope="module", params=VIEWS)
def opened(request, chromium, home):
    """A view and its page, as wide as a phone."""
    tabs = Tabs(chromium, home)
    page = tabs.open(request.param, window=SIZES["phone"], theme="light", **STATES[request.param])
    yield request.param, page, tabs
    tabs.close()


@pytest.fixture
def everywhere(opened):
    """The same for each test: nothing it does leads to an error on the page, or to a request to anyone else."""
    yield opened
    opened[-1].check()


def test_no_text_is_too_small_and_nothing_runs_off_the_side(everywhere):
    view, page, _ = everywhere
    check_readable(page, view)


@pytest.mark.parametrize(
    ("view", "state"),
    [
        ("design", {"source": MANY}),
        ("steps", {"source": MANY, "site": "encoder.0.attention", "head": 0, "query": 28}),
        ("model", {}),
    ],
)
def test_all_can_be_read_where_a_view_opens_too(tabs, view, state):
    page = tabs.open(view, window=SIZES["phone"], **state)
    check_readable(page, view)
    assert page.evaluate(OUT_OF_SIGHT) == []


def check_readable(page, view):
    for size in SIZES.values():
        page.set_viewport_size(size)
        steady(page, view)
        eventually(page, can_be_read, page, size)


def can_be_read(page, size):
    """What is drawn again in another size may take a frame or two."""
    assert page.evaluate(TOO_SMALL, LEAST) == [], size
    assert page.evaluate(RUNS_OFF) == [], size
    return True


def views_of(names):
    """Let a test have these views in `make test`, and all of them in `make test-all`."""
    views = [view if view in names else pytest.param(view, marks=pytest.mark.thorough) for view in VIEWS]
    return pytest.mark.parametrize("opened", views, indirect=True)


@views_of(LINKED)
def test_a_link_restores_the_view(everywhere, other):
    """In a window that is there already, and was at another view; the next test loads the page."""
    view, page, _ = everywhere
    page.set_viewport_size(SIZES["desk"])
    page.get_by_test_id("theme").click()
    comes_to(page, theme="dark")
    there = steady(page, view)
    again, _ = other
    again.evaluate(GO, f"#/{'steps' if view == 'model' else 'model'}?theme=light")
    again.evaluate(GO, "#" + address_of(page).split("#", 1)[1])
    shown(again, view)
    check_restored(again, page, view, there)
    again.evaluate("view => { location.hash = `#/${view}`; }", view)
    expect(again.get_by_test_id(f"view-{view}")).not_to_have_text(there)
    page.get_by_test_id("theme").click()


def are_alike(again, page):
    assert address_of(again) == address_of(page)
    return True


def check_restored(again, page, view, there):
    expect(again.get_by_test_id(f"view-{view}")).to_have_text(there)
    eventually(again, are_alike, again, page)
    expect(again.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize(
    "view",
    [view if view == "head" else pytest.param(view, marks=pytest.mark.thorough) for view in VIEWS],
)
def test_a_link_restores_the_view_where_the_page_is_loaded(tabs, view):
    page = tabs.open(view, theme="dark", **STATES[view])
    there = steady(page, view)
    again = tabs.reopen(page)
    shown(again, view)
    check_restored(again, page, view, there)


@views_of(OFTEN)
def test_its_pictures_are_saved(everywhere, other):
    view, page, _ = everywhere
    page.set_viewport_size(SIZES["desk"])
    whole = "#" + address_of(page).split("#", 1)[1]
    page.evaluate(GO, re.sub(r"&box=[^&]*", "", whole))
    shown(page, view)
    steady(page, view)
    buttons = page.get_by_test_id("save").all()
    assert bool(buttons) == (view != "exercises")  # which has menus and numbers, and no picture
    _, blank = other
    for button in buttons:
        drawn = button.evaluate(PICTURE)
        with page.expect_download() as told:
            button.click()
        data = Path(told.value.path()).read_bytes()
        assert re.fullmatch(r"[a-z0-9-]+\.(svg|png)", told.value.suggested_filename)
        if told.value.suggested_filename.endswith(".png"):
            check_png(data)
        else:
            check_svg(data, drawn, blank)
    page.evaluate(GO, whole)


PLACES = """svg => {
    const from = svg.getBoundingClientRect();
    const all = [...svg.querySelectorAll("text, rect, circle, path, line, image")];
    return all.filter(each => !each.closest("defs, [data-marks]")).map(each => {
        const { x, y, width, height } = each.getBoundingClientRect();
        const { fill, stroke } = getComputedStyle(each);
        return [each.tagName, [x - from.x, y - from.y, width, height].map(Math.round), fill, stroke];
    });
}"""
"""Where everything in a drawing is, and in which colours; but for what lies on the canvas over it (test_frames.py), and
what is in `defs`, such as a pattern: it is not drawn there."""
PICTURE = f"""button => {{
    let around = button.parentElement;
    while (!around.querySelector("[data-picture], svg:not([data-icon]), canvas")) around = around.parentElement;
    const found = around.querySelector("[data-picture]") ?? around.querySelector("svg:not([data-icon]), canvas");
    return found.tagName === "CANVAS" ? null : ({PLACES})(found);
}}"""


def check_svg(data, drawn, blank):
    """It is one, it needs no other file, and opened by itself it looks as it did."""
    root = ElementTree.fromstring(data)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(rb"var\(--|(href|src)=\"(?!data:|#)", data)
    blank.set_content(f"<body style='margin: 0'>{data.decode()}")
    found = blank.locator("svg").first.evaluate(PLACES)
    assert len(found) == len(drawn) > 3
    for one, other in zip(found, drawn, strict=True):
        assert (one[0], one[2:]) == (other[0], other[2:])
        assert one[1] == pytest.approx(other[1], abs=2), one


def check_png(data):
    image = Image.open(io.BytesIO(data))
    assert min(image.size) > 100
    assert len(image.convert("RGB").getcolors(1 << 24)) > 2


OF_COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules that the other theme can break."""


def test_axe_finds_no_serious_fault(everywhere):
    """In the dark theme too, for the views of every run; for all of them in `make test-all`.

    What is around a view is the same for all: in every run it is looked at with the first.
    """
    if not AXE.exists():
        missing("axe-core is not installed; run `make web`")
    view, page, _ = everywhere
    page.set_viewport_size(SIZES["desk"])
    steady(page, view)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    thorough = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
    both, whole = view in OFTEN or thorough, view == VIEWS[0] or thorough
    for theme, rules in (("light", None), ("dark", OF_COLOURS))[: 2 if both else 1]:
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        rests(page)
        page.evaluate("Promise.allSettled(document.getAnimations().map(each => each.finished))")
        found = page.evaluate(
            """([part, runOnly]) => axe.run(document.querySelector(part), {
                resultTypes: ["violations"], ...(runOnly && { runOnly }),
            })""",
            ["html" if whole else "main", rules],
        )
        told = [told for one in found["violations"] for told in faults(one)]
        assert not told, f"{theme}: {told}"
        if both:
            page.get_by_test_id("theme").click()


def faults(violation):
    if violation["impact"] not in ("serious", "critical"):
        return []
    return [f"{violation['id']}: {node['html'][:160]}: {node['failureSummary']}" for node in violation["nodes"]]


@pytest.mark.parametrize(
    ("text", "told"),
    [("   ", "There is no text to trace"), ("sieben" * 70, "tokens, and the model reads 63; shorten it")],
)
def test_an_impossible_text_is_told_in_words(tabs, text, told):
    page = tabs.open("model")
    answer = page.get_by_test_id("answer").inner_text()
    tabs.provoked.append("status of 400")
    page.get_by_test_id("source").fill(text)
    page.get_by_test_id("look").click()
    expect(page.get_by_role("alert")).to_contain_text(told)
    assert page.get_by_test_id("answer").inner_text() == answer
    ask(page, "vierundzwanzig")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_test_id("answer")).not_to_have_text(answer)


def test_a_server_that_is_gone_is_told_in_words(tabs):
    page = tabs.open("model", fresh=True)  # a page that was used may know the answer
    tabs.provoked.append("ERR_INTERNET_DISCONNECTED")
    page.context.set_offline(True)
    page.get_by_test_id("source").fill("vierundzwanzig")
    page.get_by_test_id("look").click()
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer. Start it again")
    page.context.set_offline(False)
    ask(page, "vierundzwanzig")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_edit_that_cannot_be_is_told_in_words(tabs):
    page = tabs.open("intervene", site=SITE, head=1)
    tabs.provoked.append("status of 400")
    edits = json.dumps([{"at": "decoder.9.cross", "step": "context", "head": 1, "times": 0}])
    page.evaluate("hash => { location.hash = hash; }", f"#/intervene?source={SOURCE}&head=1&edits={edits}")
    expect(page.get_by_role("alert").first).to_contain_text("decoder.9.cross")


def test_light_and_dark(tabs):
    page = tabs.open("head", site=SITE, head=0, window={"dark": True})
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_test_id("theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    comes_to(page, theme="light")
    page.wait_for_function(f"dark => {ground} !== dark", arg=dark)  # a browser that is busy paints it later
    assert brightness(page.evaluate(ground)) > brightness(dark) + 300
    page.locator("body").press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def brightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


@pytest.mark.parametrize("view", few(["heads", "head", "model", "steps"], 2))
def test_a_phones_width_is_enough(tabs, view):
    page = tabs.open(view, **STATES[view], window=PHONE)
    steady(page, view)
    assert page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]") == [390, 390]
    for group in ("see", "understand", "use", "change"):
        box = page.get_by_test_id(f"group-{group}").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert box["y"] + box["height"] <= 844
    page.get_by_test_id("group-see").tap()
    page.get_by_test_id("nav-heads" if view == "head" else "nav-head").tap()
    shown(page, "heads" if view == "head" else "head")
    if view != "head":  # the titles over the arcs, on the narrowest of phones
        page.set_viewport_size({"width": 360, "height": 740})
        expect(page.get_by_test_id("arcs").locator("svg")).to_be_visible()
        eventually(page, titles_are_inside, page)


def test_a_group_of_views_on_a_phone_closes_by_escape_and_by_a_tap_elsewhere(tabs):
    page = tabs.open("model", window=PHONE)
    more, rest = page.get_by_test_id("group-change"), page.get_by_test_id("nav-intervene")
    expect(rest).to_be_hidden()
    more.tap()
    expect(rest).to_be_visible()
    rest.focus()
    page.keyboard.press("Escape")
    expect(rest).to_be_hidden()
    expect(more).to_have_attribute("aria-expanded", "false")
    expect(more).to_be_focused()
    more.tap()
    expect(rest).to_be_visible()
    page.touchscreen.tap(20, 300)
    expect(rest).to_be_hidden()
    more.tap()
    rest.tap()
    shown(page, "intervene")
    expect(rest).to_be_hidden()


def titles_are_inside(page):
    return (
        page.get_by_test_id("arcs")
        .locator("svg")
        .evaluate(
            """svg => [...svg.querySelectorAll(".title")].every(one => {
            const [own, whole] = [one.getBoundingClientRect(), svg.getBoundingClientRect()];
            return own.left >= whole.left - 1 && own.right <= whole.right + 1;  // metrics of letters, in fractions
        })"""
        )
    )


def test_every_view_is_one_key_away(tabs):
    page = tabs.open("model")
    for number, view in enumerate(NUMBERED, start=1):
        page.keyboard.press(str(number % 10))
        shown(page, view)
        expect(page.get_by_test_id(f"nav-{view}")).to_have_attribute("aria-current", "page")


def test_help_by_keyboard(tabs):
    page = tabs.open("model")
    page.keyboard.press("?")
    expect(page.get_by_test_id("help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("help")).not_to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_test_id("source")).to_be_focused()
