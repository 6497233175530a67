"""A text of 2,000 tokens in every view: it is shown whole or in part, can be used, and its last numbers are right."""

import random

import pytest

import clearhead as ch
from tests.browser.looking import serving
from tests.browser.watching import VIEWS, Tabs, comes_to, number_in, rests, says, shown, steady

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

WORDS = ("the", "cat", "dog", "sees", "small", "big", "red", "blue", "house", "tree", "and", "runs", "over", "bird")
LONG = " ".join(random.Random(5).choices(WORDS, k=1990))
SITE = "decoder.1.attention"
STATES = {
    **{view: {} for view in VIEWS},
    "head": {"site": SITE, "head": 1},
    "steps": {"site": SITE, "head": 1, "query": 1900, "key": 1850, "at": 4},
    "neurons": {"token": 1900},
}
MOST_ELEMENTS = 20_000
"""More make a page slow, whatever it shows; a map of 2,000 tokens has 4,000,000 cells."""
OVERFLOW = "() => document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def long_folder(browser_program, tmp_path_factory):
    """A small decoder with rotary positions that reads 2,048 tokens, hardly trained."""
    from clearhead.cli import run

    folder = tmp_path_factory.mktemp("long")
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(random.Random(seed).choices(WORDS, k=12)) for seed in range(300)), "utf-8")
    options = {"task": "generate", "text": text, "size": "60k", "position": "rotary", "steps": 2, "context": 2048}
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    assert run(["train", str(folder / "run"), *arguments, "--tokenizer", "word", "--device", "cpu"]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def long_home(long_folder):
    with serving(long_folder) as address:
        yield address


@pytest.fixture(scope="module")
def traced(long_folder):
    return ch.trace(ch.load(long_folder, device="cpu"), LONG)


@pytest.fixture
def long(chromium, long_home):
    made = Tabs(chromium, long_home)
    yield made
    made.check()
    made.close()


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_shows_it(long, view):
    page = long.open(view, source=LONG, **STATES[view])
    assert steady(page, view).strip()
    assert page.locator("[role=alert]").all_inner_texts() == []
    assert page.evaluate("document.querySelectorAll('*').length") < MOST_ELEMENTS
    assert page.evaluate(OVERFLOW) <= 0
    # It can be left by the keyboard at once, and come back to.
    page.get_by_test_id("source").evaluate("field => field.blur()")
    page.keyboard.press("2" if view != "heads" else "1")
    shown(page, "heads" if view != "heads" else "model")
    page.go_back()
    shown(page, view)


def test_the_steps_of_a_late_query_have_its_numbers(long, traced):
    page = long.open("steps", source=LONG, **STATES["steps"])
    steady(page, "steps")
    head = traced.sites[SITE].head[1]
    for name in ("score", "weight"):
        found = page.get_by_test_id(f"cell-{name}").first
        value = float(found.get_attribute("data-value"))
        assert value == pytest.approx(getattr(head, name)[1900, 1850].item(), rel=1e-4, abs=1e-7)
        assert says(found.inner_text(), value)


def test_the_map_reads_the_cell_of_the_last_tokens(long, traced):
    page = long.open("head", source=LONG, **STATES["head"], query=1980, key=1979)
    steady(page, "head")
    canvas = page.get_by_test_id("heat-map").locator("canvas").first
    canvas.focus()
    page.keyboard.press("ArrowLeft")
    rests(page)
    value, half = number_in(page.get_by_test_id("reading-value").first.inner_text())
    assert value == pytest.approx(traced.sites[SITE].head[1].weight[1980, 1978].item(), abs=half + 1e-6)


def test_the_model_goes_to_the_last_tokens(long):
    page = long.open("model", source=LONG)
    slider = page.locator(".from input")
    last = int(slider.get_attribute("max"))
    slider.evaluate(
        "(slider, last) => { slider.value = last; slider.dispatchEvent(new Event('input', { bubbles: true })); }", last
    )
    comes_to(page, **{"from": last})
    assert page.locator("[data-token='1989']").count() > 0
    assert page.locator("[data-token='0']").count() == 0
