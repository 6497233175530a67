"""The page that `clearhead trace --html` writes: one file, opened from disk with the network cut off."""

import contextlib
import io
import math
import re

import pytest
from playwright.sync_api import expect

import clearhead as ch
from clearhead.cli import run
from clearhead.serve.live import is_built
from clearhead.tracing.survey import clearest, survey
from tests.browser.looking import missing
from tests.browser.watching import GO, SITE, SOURCE, Tabs, address_of, comes_to, rests, says, shown, steady

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page_file(demo_folder, tmp_path_factory):
    if not is_built():
        missing("the explorer's page is not built; run `make web`")
    file = tmp_path_factory.mktemp("page") / "page.html"
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["trace", str(demo_folder), SOURCE, "--html", str(file), "--device", "cpu"]) == 0
    return file


@pytest.fixture(scope="module")
def cut_off(chromium, page_file):
    """A window with the file in it and without a network: it may ask for itself and nothing else."""
    tabs = Tabs(chromium, page_file.as_uri())
    context = tabs.context()
    context.set_offline(True)
    context.route(re.compile("^(http|ws)"), lambda route: route.abort())
    page = context.new_page()
    page.goto(page_file.as_uri())
    yield page, tabs
    tabs.close()


@pytest.fixture
def offline(cut_off, page_file):
    """Goes to a view of the file, in the window or in a new tab of it."""
    page, tabs = cut_off

    def opened(view="", state="", *, fresh=False):
        there = page.context.new_page() if fresh else page
        if fresh:
            there.goto(f"{page_file.as_uri()}#/{view}?{state}")
        elif view:
            there.evaluate(GO, f"#/{'steps' if view == 'model' else 'model'}?{state}")
            there.evaluate(GO, f"#/{view}?{state}")
        shown(there, view)
        return there

    yield opened
    tabs.check()


@pytest.fixture(scope="module")
def traced(demo):
    return ch.trace(demo, SOURCE)


def test_it_needs_no_network_and_reads_other_texts_too(offline, demo, traced):
    page = offline("model")
    said = demo.task.tokenizers["target"].decode([row[0].id for row in traced.candidates])
    expect(page.get_by_test_id("answer")).to_have_text(said)
    other = offline("model", fresh=True)
    other.get_by_test_id("source").fill("zehn")
    other.get_by_test_id("look").click()
    expect(other.get_by_test_id("answer")).to_have_text(
        demo.task.tokenizers["target"].decode([row[0].id for row in ch.trace(demo, "zehn").candidates])
    )
    other.close()


def test_it_opens_on_the_head_that_the_command_shows(cut_off, page_file, traced):
    page, _ = cut_off
    fresh = page.context.new_page()
    fresh.goto(page_file.as_uri())
    shown(fresh, "head")
    view = clearest({name: site for name, site in survey(traced).items() if name.endswith("cross")})
    expect(fresh.get_by_test_id("site-picker")).to_have_value(view.site)
    comes_to(fresh, site=view.site, head=view.head)
    fresh.close()


def test_every_number_of_a_cell_is_exact(offline, traced):
    page = offline("steps", f"site={SITE}&head=1&query=3&key=2")
    cell = traced[SITE].head[1].cell(3, 2)
    for name in ("score", "scaled", "masked", "weight"):
        there, value = page.get_by_test_id(f"cell-{name}"), getattr(cell, name)
        assert says(there.inner_text(), value), name
        assert float(there.get_attribute("data-value")) == pytest.approx(value, rel=1e-4, abs=1e-6), name
    page.get_by_test_id("steps-next").click()
    expect(page.locator("figure h2").first).to_contain_text("Scores")


def test_candidates_are_the_traces(offline, traced):
    page = offline("model")
    for place, row in enumerate(traced.candidates):
        told = page.get_by_test_id(f"output-{place}").get_attribute("aria-label")
        shares = re.findall(r"<?[\d.]+ %", told)
        assert all(says(share, math.exp(one.log_prob)) for share, one in zip(shares, row, strict=False))


def test_its_link_restores_it(offline):
    page = offline("steps", f"site={SITE}&head=1&query=3&key=2&at=3")
    there = steady(page, "steps")
    again = offline("steps", address_of(page).split("?", 1)[1], fresh=True)
    expect(again.get_by_test_id("view-steps")).to_have_text(there)


@pytest.fixture(scope="module")
def recorded(chromium, demo_folder, tmp_path_factory):
    """The page of a model that is too large: it holds answers about one text, and asks for nothing else."""
    if not is_built():
        missing("the explorer's page is not built; run `make web`")
    file = tmp_path_factory.mktemp("recorded") / "page.html"
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr("clearhead.serve.recorded.LIVE", 10)
        assert run(["trace", str(demo_folder), SOURCE, "--html", str(file), "--device", "cpu"]) == 0
    tabs = Tabs(chromium, file.as_uri())
    context = tabs.context()
    context.set_offline(True)
    page = context.new_page()
    page.goto(f"{file.as_uri()}#/model")
    yield page
    tabs.check()
    tabs.close()


def test_of_a_large_model_it_has_three_views_of_one_text(recorded, traced, demo):
    shown(recorded, "model")
    said = demo.task.tokenizers["target"].decode([row[0].id for row in traced.candidates])
    expect(recorded.get_by_test_id("answer")).to_have_text(said)
    expect(recorded.get_by_test_id("live-note")).to_contain_text("attention weights of every head, each in 8 bits")
    expect(recorded.get_by_test_id("nav").get_by_role("button")).to_have_text(
        [*map(re.compile, ("Model", "Heads", "Head"))]
    )
    expect(recorded.get_by_test_id("source")).to_have_count(0)
    expect(recorded.get_by_test_id("learn-button")).to_have_count(0)
    for view in ("heads", "head", "model"):
        recorded.get_by_test_id(f"nav-{view}").click()
        shown(recorded, view)
        assert len(steady(recorded, view)) > 200


def test_its_weights_are_the_traces_to_one_part_in_255(recorded, traced):
    recorded.evaluate(GO, f"#/head?site={SITE}&head=1")
    shown(recorded, "head")
    recorded.get_by_test_id("heat-map").locator("canvas").focus()
    weight = traced[SITE].head[1].weight
    for keys, place in (("ArrowDown", (1, 0)), ("ArrowRight", (1, 1)), ("ArrowDown", (2, 1))):
        recorded.keyboard.press(keys)
        rests(recorded)
        told = float(recorded.get_by_test_id("reading-value").inner_text())
        assert told == pytest.approx(weight[place].item(), abs=0.51 / 255)


def test_a_box_of_it_says_that_the_run_has_the_rest(recorded):
    recorded.evaluate(GO, "#/model?box=encoder.0.feed_forward")
    shown(recorded, "model")
    expect(recorded.get_by_test_id("detail")).to_contain_text("open the run: clearhead look RUN")
