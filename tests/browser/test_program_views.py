"""A compiled program in the explorer: its answer, what it is, which head does what, and no dead views."""

import pytest
from playwright.sync_api import expect

from clearhead.experiments.rasp_run import compile_to_run
from clearhead.rasp import PROGRAMS
from tests.browser.looking import serving
from tests.browser.watching import Tabs, comes_to, shown

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sort_home(tmp_path_factory):
    folder = compile_to_run(PROGRAMS["sort"], tmp_path_factory.mktemp("craft") / "sort")
    with serving(folder.path) as address:
        yield address


@pytest.fixture
def tabs(chromium, sort_home):
    made = Tabs(chromium, sort_home)
    yield made
    made.check()
    made.close()


def test_the_answer_is_the_programs(tabs):
    page = tabs.open("model", source="c a b b a")
    expect(page.get_by_test_id("answer")).to_have_text("a a b b c")
    rows = page.get_by_test_id("program-answers").get_by_role("row")
    expect(rows.nth(0)).to_have_text("token c a b b a", use_inner_text=True)
    expect(rows.nth(1)).to_have_text("answer a a b b c", use_inner_text=True)


def test_the_program_and_what_each_layer_does_are_shown(tabs):
    page = tabs.open("model", source="c a b b a")
    panel = page.get_by_test_id("program")
    expect(panel).to_contain_text(PROGRAMS["sort"].about)
    expect(page.get_by_test_id("program-listing")).to_contain_text("rank = map(smaller, equal and earlier)")
    layers = page.get_by_test_id("program-layers")
    expect(layers).to_contain_text("select(tokens, tokens, key < query), then count what is selected")
    expect(layers).to_contain_text("smaller and equal and earlier → rank")
    layers.get_by_role("button", name="Encoder 4 · head 0").click()
    shown(page, "head")
    comes_to(page, site="encoder.4.attention", head=0)
    expect(page.get_by_test_id("program-head")).to_contain_text(
        "select(rank, indices, key = query), then aggregate(tokens) → in order"
    )


def test_a_head_that_does_nothing_says_so(tabs):
    page = tabs.open("steps", source="c a b", site="encoder.2.attention", head=0)
    expect(page.get_by_test_id("program-head")).to_contain_text("does nothing")


def test_views_it_has_nothing_for_are_not_offered(tabs):
    page = tabs.open("model", source="c a b b a")
    for view in ("decoding", "training"):
        expect(page.get_by_test_id(f"nav-{view}")).to_have_count(0)
    page.keyboard.press("9")
    shown(page, "positions")


@pytest.mark.parametrize(
    ("view", "why"),
    [
        ("training", "not trained"),
        pytest.param("decoding", "answers in one step", marks=pytest.mark.thorough),
    ],
)
def test_a_link_to_such_a_view_says_why_and_leads_back(tabs, view, why):
    page = tabs.context().new_page()
    page.goto(f"{tabs.home}#/{view}?source=c+a+b")
    expect(page.get_by_test_id("view-absent")).to_contain_text(why)
    page.get_by_role("button", name="Go to the model").click()
    shown(page, "model")
    expect(page.get_by_test_id("answer")).to_have_text("a b c")


def test_the_program_fits_a_phone(tabs):
    page = tabs.open("model", source="c a b b a", window={"width": 390, "height": 844})
    page.get_by_test_id("program-toggle").click()
    expect(page.get_by_test_id("program-layers")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
