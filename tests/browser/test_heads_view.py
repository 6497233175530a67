"""The overview of all heads, in a model of twelve layers and in the demo's encoder-decoder."""

import re

import pytest
from playwright.sync_api import expect

import clearhead as ch
from clearhead.tracing.head_metrics import readings
from tests.browser.looking import serving
from tests.browser.watching import SITE, Tabs, comes_to, eventually, rests, shown, state, steady, tab_to
from tests.covering import few

pytestmark = pytest.mark.slow

TEXT = "the cat sees the dog and the cat sees the bird"
LAYERS, HEADS = 12, 3


@pytest.fixture(scope="module")
def deep_folder(browser_program, tmp_path_factory):
    """A decoder of twelve narrow layers, hardly trained."""
    from clearhead.model import presets
    from clearhead.text.encoding import Corpus
    from clearhead.text.preparing import Tokenizing
    from clearhead.text.sources import Documents
    from clearhead.training import train
    from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine, Optimizer, Recipe
    from clearhead.training.tasks.learning import decoder

    folder = tmp_path_factory.mktemp("deep")
    (folder / "text.txt").write_text(f"{TEXT}\n" * 60, encoding="utf-8")
    recipe = Recipe(
        task="generate",
        corpus=Corpus(train=Documents(paths=(str(folder / "text.txt"),))),
        tokenizing=Tokenizing(kind="word"),
        model=decoder(presets.Size(LAYERS, 24, HEADS, HEADS, 32), 64, 0.0),
        optimizer=Optimizer(lr=1e-6),
        batching=Batching(tokens=128, context=64),
        budget=Budget(steps=1),
        checkpointing=Checkpointing(score_records=0, samples=1),
        machine=Machine(device="cpu", threads=1),
    )
    train(folder / "run", recipe, log=lambda _: None)
    return folder / "run"


@pytest.fixture(scope="module")
def deep_home(deep_folder):
    with serving(deep_folder) as address:
        yield address


@pytest.fixture
def deep(chromium, deep_home):
    made = Tabs(chromium, deep_home)
    yield made
    made.check()
    made.close()


@pytest.fixture(scope="module")
def traced(deep_folder):
    return ch.trace(ch.load(deep_folder, device="cpu"), TEXT)


def cell(page, layer, head, side="decoder", slot="attention"):
    return page.get_by_test_id(f"cell-{side}.{layer}.{slot}-{head}")


def test_every_head_is_there_and_a_click_opens_it(deep):
    page = deep.open("heads", source=TEXT)
    steady(page, "heads")
    expect(page.locator("[data-testid^=cell-]")).to_have_count(LAYERS * HEADS)
    expect(page.locator("[data-testid^=cell-][data-drawn]")).to_have_count(LAYERS * HEADS)
    cell(page, 7, 2).click()
    shown(page, "head")
    comes_to(page, site="decoder.7.attention", head=2)
    expect(page.get_by_test_id("site-picker")).to_have_value("decoder.7.attention")
    expect(page.get_by_test_id("head-picker").get_by_role("button", pressed=True)).to_have_text("2")
    page.get_by_role("button", name="All heads", exact=True).click()
    shown(page, "heads")
    expect(cell(page, 7, 2)).to_have_attribute("aria-current", "true")


def test_arrows_move_over_the_heads_and_enter_opens(deep):
    page = deep.open("heads", source=TEXT, site="decoder.4.attention", head=1)
    tab_to(page, cell(page, 4, 1))
    page.keyboard.press("ArrowRight")
    expect(cell(page, 5, 1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(cell(page, 5, 2)).to_be_focused()
    expect(page.get_by_test_id("looked")).to_contain_text("L5H2")
    page.keyboard.press("End")
    expect(cell(page, LAYERS - 1, HEADS - 1)).to_be_focused()
    page.keyboard.press("Enter")
    shown(page, "head")
    comes_to(page, site=f"decoder.{LAYERS - 1}.attention", head=HEADS - 1)


@pytest.mark.parametrize("by", few(["entropy", "first", "same"], 1))
def test_sorted_heads_stand_in_the_order_of_their_readings(deep, traced, by):
    page = deep.open("heads", source=TEXT, by=by, order="highest")
    steady(page, "heads")
    found = [
        (getattr(one, by), f"cell-{name}-{head}")
        for name, site in traced.sites.items()
        for head, one in enumerate(readings(traced, site))
    ]
    expected = [name for _, name in sorted(found, key=lambda pair: -pair[0])]
    expect(page.locator("[data-testid^=cell-]")).to_have_count(LAYERS * HEADS)
    cells = page.locator("[data-testid^=cell-]")
    rests(page)
    assert cells.evaluate_all("all => all.map(one => one.dataset.testid)") == expected
    page.get_by_test_id("order").select_option("lowest")
    expect(cells.last).to_have_attribute("data-testid", expected[0])


def test_a_threshold_leaves_the_heads_above_it(deep, traced):
    page = deep.open("heads", source=TEXT, by="entropy", least=90)
    steady(page, "heads")
    values = [one.entropy for site in traced.sites.values() for one in readings(traced, site)]
    above = sum(value >= 0.9 * max(values) for value in values)
    expect(page.get_by_test_id("passing")).to_contain_text(f"{above} of {LAYERS * HEADS} heads")
    expect(page.locator("g.cell.dim")).to_have_count(LAYERS * HEADS - above)


def test_go_to_a_head_by_its_name(deep):
    page = deep.open("steps", source=TEXT)
    page.keyboard.press("g")
    expect(page.get_by_test_id("go-to")).to_be_focused()
    page.keyboard.type("L3H1")
    page.keyboard.press("Enter")
    comes_to(page, site="decoder.3.attention", head=1)
    shown(page, "steps")
    page.get_by_test_id("go-to").fill("L12H0")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("go-problem")).to_have_text("There is no layer 12: there are 12, counted from 0.")
    assert state(page)["site"] == "decoder.3.attention"
    page.get_by_test_id("site-picker").select_option("decoder.4.attention")
    comes_to(page, site="decoder.4.attention")
    page.get_by_test_id("head-picker").get_by_role("button", name="Head 0").click()
    comes_to(page, site="decoder.4.attention", head=0)


def test_a_layer_that_is_gone_to_comes_into_sight(deep):
    page = deep.open("model", source=TEXT, site="decoder.0.attention")
    steady(page, "model")
    for layer in range(1, LAYERS - 1):
        page.keyboard.press("}")
        comes_to(page, site=f"decoder.{layer}.attention")
    box = page.get_by_test_id(f"box-decoder.{LAYERS - 2}.attention").locator("rect")
    eventually(page, lambda: 160 < box.bounding_box()["x"] < 1280)


def test_on_a_phone_layers_go_down_and_all_heads_fit(deep):
    page = deep.open("heads", source=TEXT, window={"width": 390, "height": 844, "has_touch": True, "is_mobile": True})
    steady(page, "heads")
    first, later = (cell(page, layer, 0).locator("rect").first.bounding_box() for layer in (0, 5))
    assert first["x"] == pytest.approx(later["x"], abs=1)
    assert later["y"] > first["y"] + 100
    assert min(first["width"], first["height"]) >= 24
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    cell(page, 2, 1).tap()
    shown(page, "head")
    comes_to(page, site="decoder.2.attention", head=1)
    expect(page.get_by_test_id("site-picker")).to_be_in_viewport()


def test_an_encoder_decoder_has_three_grids(tabs):
    page = tabs.open("heads", site=SITE, head=1)
    steady(page, "heads")
    titles = page.locator("text.title").all_text_contents()
    assert titles == ["Encoder self-attention", "Decoder self-attention", "Cross-attention"]
    expect(cell(page, 1, 1, slot="cross")).to_have_attribute("aria-label", re.compile("^C1H1 none previous token"))
    expect(page.get_by_test_id("site-picker")).to_have_value(SITE)
    page.get_by_test_id("go-to").fill("E0H2")
    page.keyboard.press("Enter")
    comes_to(page, site="encoder.0.attention", head=2)
    shown(page, "head")
