"""What a stranger tripped over (docs/decisions/0036): numbers out of sight, names on each other, letters too small."""

import re

import pytest
from playwright.sync_api import expect

import clearhead as ch
from tests.browser.looking import serving
from tests.browser.test_every_view import OFF
from tests.browser.watching import SITE, SOURCE, Tabs, comes_to, eventually, rests, says, steady
from tests.serve.questions.test_python import compiled, last_value

pytestmark = pytest.mark.slow

PHONE = {"width": 360, "height": 740}
ROOM = {"width": 1280, "height": 720}
SCROLLED = "element => element.scrollWidth - element.clientWidth"
ON_EACH_OTHER = """() => {
    const names = [...document.querySelectorAll("[data-testid=meaning-plane] [data-mark]:not(.hidden) text")];
    const boxes = names.map(one => [one.textContent, one.getBoundingClientRect()]);
    return boxes.flatMap(([one, a], at) => boxes.slice(at + 1)
        .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 5 && b.top < a.bottom - 5)
        .map(([other]) => `${one} ${other}`));
}"""
"""Names of the plane that lie on each other by more than the room above and below their letters."""
OUT_OF_THE_SIDE = """() => [...document.querySelectorAll("main svg text")]
    .map(one => [one.textContent.trim(), one.getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.left < 0 || box.right > innerWidth)).map(([text]) => text)"""


@pytest.mark.parametrize("view", ["intervene", "design"])
def test_the_lines_that_are_copied_have_the_edits(tabs, demo, view):
    page = tabs.open(view, edits=OFF)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    steady(page, view)
    page.get_by_test_id("copy-python").click()
    expect(page.get_by_test_id("python-said")).to_have_text("Copied")
    lines = page.evaluate("navigator.clipboard.readText()")
    off = ch.Edit(at=SITE, step="context", head=1, times=0.0)
    assert last_value(lines) == ch.trace(demo, SOURCE, edits=[off]).candidates


def test_a_patch_is_made_where_the_texts_are_answered_otherwise(chromium, tmp_path_factory):
    run = compiled(tmp_path_factory)
    text, other = "a b c a", "a b a a"
    said = [[row[0].id for row in ch.trace(run, one).candidates] for one in (text, other)]
    place = next(at for at, (one, another) in enumerate(zip(*said, strict=True)) if one != another)
    assert place > 0
    with serving(run) as home:
        tabs = Tabs(chromium, home)
        page = tabs.open("intervene", source=text, tab="patch", other=other)
        expect(page.get_by_test_id("patch-encoder")).to_be_visible()
        comes_to(page, place=place)
        tabs.check()
        tabs.close()


@pytest.mark.parametrize("window", [PHONE, {"width": 1440, "height": 900}], ids=["phone", "desk"])
def test_the_steepest_slopes_are_in_sight(tabs, demo, window):
    page = tabs.open("similarity", site=SITE, head=2, query=4, key=1, window=window)
    rests(page)
    grid = page.get_by_test_id("slopes")
    assert grid.locator("xpath=..").evaluate(SCROLLED) <= 0
    weight = ch.trace(demo, SOURCE)[SITE].head[2].weight[4].double()
    steepest = (weight.diag() - weight[:, None] * weight).abs().max().item()
    shown = [abs(float(one.get_attribute("data-value"))) for one in grid.locator("[data-value]").all()]
    assert max(shown) == pytest.approx(steepest, abs=1e-5)
    assert not re.search("−0.00(?!\\d)", grid.inner_text())
    assert page.evaluate(OUT_OF_THE_SIDE) == []


@pytest.mark.parametrize("window", [PHONE, {"width": 1440, "height": 900}], ids=["phone", "desk"])
def test_names_in_the_plane_do_not_lie_on_each_other(tabs, window):
    page = tabs.open("meaning", site="decoder.1.attention", head=1, window=window)
    steady(page, "meaning")
    assert eventually(page, lambda: page.evaluate(ON_EACH_OTHER) == [])
    pairs = page.get_by_test_id("spaces-pairs").locator("xpath=..")
    assert pairs.evaluate(SCROLLED) <= 0


def test_on_a_phone_the_sum_of_a_sequence_is_in_sight(tabs, demo):
    page = tabs.open("sequence", source="vierundzwanzig", site=SITE, head=0, query=1, window=PHONE)
    drawing = page.get_by_test_id("sequence-drawing")
    rests(page)
    assert len(ch.trace(demo, "vierundzwanzig").sides["encoder"].tokens) <= 5
    assert drawing.evaluate(SCROLLED) <= 0
    expect(drawing).to_contain_text("sum")


@pytest.mark.parametrize("view", ["sequence", "neurons"])
def test_a_room_reads_letters_of_ten_pixels(tabs, view):
    own = {"site": SITE, "head": 0} if view == "sequence" else {}
    page = tabs.open(view, source="achtundvierzig", projector=1, window=ROOM, **own)
    steady(page, view)
    place = "[data-testid=sequence-drawing] .number" if view == "sequence" else "[data-testid=neurons-units] .number"
    letters = page.locator(place).first.evaluate(
        """one => {
            const matrix = one.getScreenCTM?.();
            return parseFloat(getComputedStyle(one).fontSize) * (matrix ? matrix.a : one.currentCSSZoom);
        }"""
    )
    assert letters >= 10


def test_on_a_phone_nothing_runs_off_the_side_of_positions(tabs):
    page = tabs.open("positions", window=PHONE)
    steady(page, "positions")
    assert page.evaluate(OUT_OF_THE_SIDE) == []


def test_a_page_enlarged_to_twice_its_size_keeps_its_tools(tabs):
    page = tabs.open("model", window={"width": 720, "height": 450}, fresh=True)
    for name in ("learn-button", "help-button", "language-de", "theme"):
        box = page.get_by_test_id(name).bounding_box()
        assert box["y"] + box["height"] <= 450, name
    page.get_by_test_id("theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_in_german_all_numbers_are_german(tabs):
    page = tabs.open("design", lang="de", site="encoder.0.attention", preset="same", epsilon=0.05)
    steady(page, "design")
    said = page.locator("main").inner_text()
    assert "0,05" in said
    assert re.findall(r"\d\.\d\d?(?!\d)", said) == []


def test_what_is_drawn_after_a_long_prompt_is_in_sight(chromium, tmp_path_factory):
    from tests.training import small_runs

    run = small_runs.trained(small_runs.documents, tmp_path_factory)
    with serving(run) as home:
        tabs = Tabs(chromium, home)
        page = tabs.open("decoding", source="the cat\n" * 4 + "\n" * 12 + "the dog", mode="sample")
        rests(page)
        strip, coming = page.get_by_test_id("sampled"), page.locator(".next")
        assert strip.evaluate("one => one.scrollHeight > one.clientHeight"), "the prompt fills its box"

        def in_sight():
            inner, outer = coming.bounding_box(), strip.bounding_box()
            return outer["y"] <= inner["y"] and inner["y"] + inner["height"] <= outer["y"] + outer["height"]

        eventually(page, in_sight)
        tabs.check()
        tabs.close()


def test_units_of_a_compiled_program_are_shown_where_they_are_on(chromium, tmp_path_factory):
    from clearhead.experiments.rasp_run import compile_to_run
    from clearhead.rasp import PROGRAMS

    folder = compile_to_run(PROGRAMS["sort"], tmp_path_factory.mktemp("craft") / "sort")
    with serving(folder.path) as home:
        tabs = Tabs(chromium, home)
        page = tabs.open("neurons", source="c a b b a")
        rests(page)
        units = page.get_by_test_id("neurons-units").locator("button")
        assert 0 < units.count() < 20
        for unit in units.all():
            assert not says(unit.locator(".bar").inner_text(), 0)
        tabs.check()
        tabs.close()
