"""The induction head of the docs page `induction-heads.md`, ablated in the browser: the copying stops."""

import math
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

import clearhead as ch
from tests.browser.looking import serving
from tests.browser.watching import Tabs, number_in, rests
from tests.docs.strangers import run_once_as_stranger

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # its model takes most of a minute to train

PAGE = Path(__file__).parents[2] / "docs/induction-heads.md"
TEXT = "k 3 z q m 5 t b x 1 f w k 3 z q m 5 t b x 1 f"
LAST, COPIED = 22, "w"


@pytest.fixture(scope="module")
def folder(browser_program, tmp_path_factory):
    return run_once_as_stranger(PAGE, tmp_path_factory) / "runs/copying"


@pytest.fixture(scope="module")
def run(folder):
    return ch.load(folder, device="cpu")


@pytest.fixture(scope="module")
def copying_home(folder):
    with serving(folder) as address:
        yield address


@pytest.fixture
def copying(chromium, copying_home):
    made = Tabs(chromium, copying_home)
    yield made
    made.check()
    made.close()


def site_of(layer):
    return f"decoder.{layer}.attention"


def share_of(run, *layers):
    """Return the probability of the copied symbol, without the heads of some layers; 0 if not among the likeliest."""
    off = [ch.Edit(at=site_of(layer), step="context", head=0, times=0.0) for layer in layers]
    last = ch.trace(run, TEXT, edits=off).candidates[LAST]
    return next((math.exp(one.log_prob) for one in last if one.text == COPIED), 0.0)


def drawn_share(page, name):
    """Return the probability of the copied symbol in full: the bar's, of the changed run, or its mark's."""
    expect(page.locator("main")).to_have_attribute("aria-busy", "false")
    rests(page)
    bars = page.get_by_test_id("run-changed").locator("[data-candidate]")
    bar = bars.filter(has=page.locator("title", has_text=f"{COPIED}: "))
    if name == "unchanged":
        return float(bar.get_attribute("data-before"))
    return float(re.search(r"\(([^()]+)\)$", bar.locator("title").text_content()).group(1))


def test_the_page_and_this_test_speak_of_the_same_text():
    assert TEXT in PAGE.read_text(encoding="utf-8")
    assert len(TEXT.split()) == LAST + 1
    assert TEXT.split()[11] == COPIED


@pytest.mark.parametrize(("layer", "copies"), [(0, False), (1, False), (2, True)])
def test_the_copied_token_falls_without_either_head_of_the_pair_and_not_without_another(copying, run, layer, copies):
    page = copying.open("intervene", source=TEXT, site=site_of(layer), head=0, place=LAST)
    assert drawn_share(page, "changed") == drawn_share(page, "unchanged") > 0.8
    page.get_by_test_id(f"head-toggle-{site_of(layer)}-0").click()
    expect(page.get_by_test_id("edit-list")).to_contain_text("head 0 off")
    share = drawn_share(page, "changed")
    assert share > 0.8 if copies else share < 0.2
    assert share == pytest.approx(share_of(run, layer), abs=1e-5)
    assert drawn_share(page, "unchanged") == pytest.approx(share_of(run), abs=1e-5)
    page.get_by_test_id("undo").click()
    expect(page.get_by_test_id("edit-list")).to_contain_text("Nothing is changed yet")
    assert drawn_share(page, "changed") > 0.8


def test_the_head_view_reads_it_as_an_induction_head(copying):
    shares = []
    for layer in range(3):
        page = copying.open("head", source=TEXT, site=site_of(layer), head=0)
        shown = page.get_by_test_id("reading-induction")
        expect(shown).to_contain_text("%")
        shares.append(number_in(shown.inner_text())[0])
    assert shares[1] > 0.7
    assert max(shares[0], shares[2]) < 0.2


class Actions:
    """What a reader does on a page, counted."""

    def __init__(self, page):
        self.page, self.count = page, 0

    def click(self, name):
        self.count += 1
        self.page.get_by_test_id(name).click()

    def type(self, name, text):
        self.count += 1
        self.page.get_by_test_id(name).fill(text)

    def choose(self, name, option):
        self.count += 1
        self.page.get_by_test_id(name).select_option(option)


OTHER = TEXT.replace("f w", "f 2")
"""A text in which another symbol is to be copied."""
FEW = 14
"""Actions; without patching and attribution it took as many before."""


def test_a_head_is_found_patched_attributed_ablated_and_shared_in_few_actions(copying, chromium):
    page = copying.open("model")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    reader, site = Actions(page), site_of(1)
    reader.type("source", TEXT)
    reader.click("look")
    expect(page.get_by_test_id("answer")).to_have_text(COPIED)
    reader.click("nav-heads")
    reader.choose("by", "induction")
    reader.choose("order", "highest")
    rests(page)
    first = page.locator("g.cell").first
    expect(first).to_have_attribute("data-testid", f"cell-{site}-0")
    expect(first.locator(".name")).to_have_text("L1H0")
    reader.click("nav-intervene")
    reader.click("tab-patch")
    reader.click("patch-head")
    reader.type("patch-text", OTHER)
    reader.click("patch-look")
    cells = page.get_by_test_id("patch-decoder").locator("tbody tr")
    expect(cells).to_have_count(3)
    rests(page)
    recovered = [
        [float(one.get_attribute("data-value")) for one in row.locator("[data-value]").all()] for row in cells.all()
    ]
    assert recovered[1][LAST] == max(max(row) for row in recovered) > 0.5
    reader.click("tab-attribute")
    rests(page)
    parts = page.get_by_test_id("attribute-heads").locator("[data-value]").all()
    values = [float(one.get_attribute("data-value")) for one in parts]
    assert values[1] == max(values) > 0
    reader.click("tab-edit")
    reader.click(f"head-toggle-{site}-0")
    expect(page.get_by_test_id("edit-list")).to_contain_text("head 0 off")
    expect(page.get_by_test_id("answer-unchanged")).to_have_text(COPIED)
    expect(page.get_by_test_id("answer-changed")).not_to_have_text(COPIED)
    answer = page.get_by_test_id("answer-changed").inner_text()
    reader.click("copy-link")
    link = page.evaluate("navigator.clipboard.readText()")
    assert reader.count <= FEW

    shared = chromium.new_page()
    shared.goto(link)
    expect(shared.get_by_test_id("answer-changed")).to_have_text(answer)
    shared.close()
