"""The page of `clearhead page`: one file, opened from disk with the network cut off, on which the model runs."""

import contextlib
import io
import re

import pytest
from playwright.sync_api import expect

import clearhead as ch
from clearhead.cli import run
from clearhead.exercises.progress import read_hand_in
from clearhead.serve.live import is_built
from clearhead.text.merges import MergeRules
from clearhead.training.run import load
from tests.browser.looking import missing
from tests.browser.test_every_view import AXE, faults
from tests.browser.test_learn import guess
from tests.browser.watching import SITE, SOURCE, Tabs, comes_to, eventually, shown, state

pytestmark = pytest.mark.slow

OTHER = "dreihundertfünf"
VIEWS = (
    *("heads", "head", "steps", "similarity", "context", "positions", "decoding", "intervene", "meaning", "neurons"),
    "model",
    "tokens",
    "training",
)
EXACT = 1e-4
NEAR = 0.01
"""How far a weight may be from the run's own at an earlier step, whose weights are rounded."""


@pytest.fixture(scope="module")
def page_file(demo_folder, tmp_path_factory):
    if not is_built():
        missing("the live page is not built; run `make web`")
    file = tmp_path_factory.mktemp("live") / "live page.html"
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["page", str(demo_folder), "-o", str(file)]) == 0
    assert file.stat().st_size < 12_000_000
    return file


@pytest.fixture(scope="module")
def window(chromium, page_file):
    """The file in a window without a network; it may ask for itself and nothing else. To load it takes a second."""
    tabs = Tabs(chromium, page_file.as_uri())
    context = tabs.context()
    context.set_offline(True)
    context.route(re.compile("^(http|ws)"), lambda route: route.abort())
    page = context.new_page()
    page.goto(page_file.as_uri())
    shown(page, "head")
    yield page, tabs
    tabs.close()


@pytest.fixture
def opened(window):
    """The window at the model of a short text; whatever a test does, there is no error on the page."""
    page, tabs = window
    changed = "edits" in page.url
    page.goto(f"{page.url.partition('#')[0]}#/model?source={OTHER}")
    if changed:
        page.reload()  # an edit stays until it is undone
    shown(page, "model")
    yield page
    tabs.check()


def test_it_opens_where_the_demos_first_number_crosses(window, page_file):
    page, tabs = window
    fresh = page.context.new_page()
    fresh.goto(page_file.as_uri())
    comes_to(fresh, source="vierundzwanzig")
    shown(fresh, "head")
    expect(fresh.get_by_test_id("site-picker")).to_have_value(re.compile(r"decoder\.\d\.cross"))
    expect(fresh.get_by_test_id("source")).to_have_value("vierundzwanzig")
    fresh.goto(f"{page_file.as_uri()}#/model")
    fresh.reload()
    shown(fresh, "model")
    fresh.close()
    tabs.check()


def own_answer(run, source, edits=()):
    made = ch.trace(run, source, edits=edits)
    return run.task.tokenizers["target"].decode([row[0].id for row in made.candidates])


def test_any_text_in_every_view_without_a_network(opened, demo):
    page = opened
    expect(page.get_by_test_id("live-note")).to_contain_text("runs in your browser")
    for source in (SOURCE, OTHER):
        page.get_by_test_id("source").fill(source)
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("answer")).to_have_text(own_answer(demo, source))
    offered = page.locator("[data-testid^=nav-]").evaluate_all("all => all.map(one => one.dataset.testid.slice(4))")
    assert {*offered} == {*VIEWS}
    for view in VIEWS:
        page.get_by_test_id(f"nav-{view}").click()
        shown(page, view)
        expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_test_id("live-note")).to_contain_text(
        "Sequence, Circuit, Design and Exercises need the run itself"
    )
    page.goto(f"{page.url.partition('#')[0]}#/circuit?source={SOURCE}")
    expect(page.get_by_role("alert")).to_contain_text("does not have the view Circuit")


def test_its_numbers_are_the_traces(opened, demo):
    page, cell = opened, ch.trace(demo, OTHER).sites[SITE].head[1].cell(2, 1)
    page.goto(f"{page.url.partition('#')[0]}#/steps?source={OTHER}&site={SITE}&head=1&query=2&key=1")
    shown(page, "steps")
    for name, wanted in (("score", cell.score), ("scaled", cell.scaled), ("weight", cell.weight)):
        shown_number = page.get_by_test_id(f"cell-{name}")
        expect(shown_number).to_be_visible()
        found = float(shown_number.get_attribute("data-value"))
        assert abs(found - wanted) <= EXACT * max(1, abs(wanted)), name
    site = "decoder.0.cross"
    edits = f'[{{"at":"{site}","step":"context","times":0}}]'
    page.goto(f"{page.url.partition('#')[0]}#/model?source={OTHER}&edits={edits}")
    shown(page, "model")
    off = ch.Edit(at=site, step="context", times=0.0)
    expect(page.get_by_test_id("answer")).to_have_text(own_answer(demo, OTHER, [off]))


def test_the_tokeniser_cuts_what_is_typed(opened, demo):
    page = opened
    page.get_by_test_id("nav-tokens").click()
    shown(page, "tokens")
    for field, text in (("source", OTHER), ("source", "Zwölf 3 😀"), ("target", "eighty-one")):
        if field == "target":
            page.get_by_test_id("tokens-field").select_option(field)
        page.get_by_test_id("tokens-text").fill(text)
        tokenizer = demo.task.tokenizers[field]
        pieces = tokenizer.pieces(tokenizer.encode(text))
        shown_pieces = [piece.replace("▁", "·") for piece in pieces]
        expect(page.get_by_test_id("tokens-line").locator("button > span")).to_have_text(shown_pieces)
        ids = page.get_by_test_id("tokens-line").locator("button > small").all_inner_texts()
        assert ids == [str(one) for one in tokenizer.encode(text)]
    place = max(range(len(pieces)), key=lambda at: len(pieces[at]))
    page.get_by_test_id("tokens-line").locator("button").nth(place).click()
    tree = MergeRules.of(tokenizer).tree(tokenizer.token(int(ids[place])))
    ranks = [str(node.rank) for node in tree if node.rank is not None]
    assert len(ranks) > 1
    expect(page.get_by_test_id("tokens-trees").locator(".raised .rank")).to_have_text(ranks)


def test_the_film_shows_the_weights_of_each_step(opened, demo, demo_folder):
    page, steps = opened, demo.folder.film.steps()
    ids = ch.trace(demo, OTHER).sides["decoder"].ids[1:]
    page.goto(f"{page.url.partition('#')[0]}#/steps?source={OTHER}&site={SITE}&head=1&query=2&key=1")
    shown(page, "steps")
    slider, weight = page.get_by_test_id("step-slider"), page.get_by_test_id("cell-weight")
    expect(slider).to_have_attribute("max", str(len(steps)))
    found = []
    for place, step in reversed([*enumerate(steps)]):
        slider.fill(str(place))
        comes_to(page, step=str(step))
        cell = ch.trace(load(demo_folder, device="cpu", step=step), OTHER, target=ids).sites[SITE].head[1].cell(2, 1)
        expect(page.get_by_test_id("step-shown")).to_contain_text(str(step))
        eventually(page, lambda cell=cell: abs(float(weight.get_attribute("data-value")) - cell.weight) <= NEAR)
        found.append(cell.weight)
    assert max(found) - min(found) > 3 * NEAR
    expect(page.get_by_test_id("live-note")).to_contain_text("It has the earlier steps of the training")
    page.get_by_test_id("compare").click()
    expect(page.get_by_test_id("comparison")).to_be_visible()
    page.get_by_test_id("compare-close").click()
    expect(page.get_by_test_id("comparison")).to_have_count(0)


def test_learn_walks_to_its_end(opened):
    """Every chapter finds its view, its numbers and its task without a server."""
    page = opened
    page.keyboard.press("l")
    expect(page.get_by_test_id("learn-said")).not_to_be_empty()
    names = [one.get_attribute("data-testid") for one in page.locator("[data-testid^=chapter-]").all()]
    assert len(names) > 12
    assert "chapter-film" in names
    for at, name in enumerate(names):
        expect(page.get_by_test_id(name)).to_have_attribute("aria-current", "step")
        expect(page.get_by_test_id("learn-said")).not_to_be_empty()
        guess(page)
        expect(page.get_by_test_id("learn-task")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
        if at < len(names) - 1:
            page.keyboard.press("n")
    expect(page.get_by_test_id("learn-finished")).to_be_visible()


@pytest.mark.thorough  # it is the panel of tests/browser/test_learn.py, where axe looks at three of its chapters
def test_anyone_can_use_learn(opened):
    page = opened
    page.keyboard.press("l")
    expect(page.get_by_test_id("learn-said")).not_to_be_empty()
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert [told for one in found["violations"] for told in faults(one)] == []


LESSON = """# Mine
language: de
sentence: neunundneunzig

## Hallo
Erst *lesen*.

## tokens
## Frage
choice: ja
choice: * nein
Was meinst du?

## Ende
answer: --
Schalte einen Kopf aus.
"""


def test_a_lesson_is_given_from_the_file_alone(chromium, demo_folder, tmp_path, capsys):
    """It opens in its language at its sentence, asks once, and ends with a line that the command reads."""
    planned, file = tmp_path / "mine.md", tmp_path / "lesson.html"
    planned.write_text(LESSON)
    assert run(["page", str(demo_folder), "--lesson", str(planned), "-o", str(file)]) == 0
    assert "“Ende”, 'neunundneunzig': " in capsys.readouterr().out
    tabs = Tabs(chromium, file.as_uri())
    context = tabs.context()
    context.set_offline(True)
    page = context.new_page()
    page.goto(file.as_uri())
    expect(page.get_by_test_id("learn-title")).to_have_text("Hallo")
    expect(page.get_by_test_id("learn-said")).to_have_text("Erst lesen.")
    expect(page.get_by_test_id("learn-place")).to_have_text("Kapitel 1 von 4")
    assert state(page)["source"] == "neunundneunzig"
    for title in ("Token", "Frage"):
        page.get_by_test_id("learn-next").click()
        expect(page.get_by_test_id("learn-title")).to_have_text(title)
    page.get_by_test_id("learn-choice-0").click()
    expect(page.get_by_test_id("learn-guessed")).to_contain_text("Anders, als du gesagt hast. Richtig: nein.")
    page.reload()
    expect(page.get_by_test_id("learn-choice-1")).to_be_disabled()
    page.get_by_test_id("learn-next").click()
    page.get_by_test_id("learn-name").fill("Ada; 9b")
    handed = read_hand_in(page.get_by_test_id("learn-line").inner_text())
    assert (handed.name, handed.lesson, handed.solved, handed.tries) == ("Ada, 9b", "Mine", (), 1)
    assert handed.left == ("tokens", "own-3", "own-4")
    tabs.close()


@pytest.fixture(scope="module")
def filmed_lesson(demo_folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("filmed")
    (home / "mine.md").write_text("# Film\nsentence: vier\n## film\n## Last\nWords.\n")
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["page", str(demo_folder), "--lesson", str(home / "mine.md"), "-o", str(home / "lesson.html")]) == 0
    return home / "lesson.html"


PHONE, ROOM = {"width": 360, "height": 740}, {"width": 1280, "height": 720}


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize("options", [PHONE, ROOM | {"dark": True}], ids=["phone", "room"])
def test_a_lesson_has_the_film_and_the_tokeniser(chromium, filmed_lesson, options, language):
    """On a phone and on a projector the slider of the chapter is in sight, and nothing is wider than the screen."""
    tabs = Tabs(chromium, filmed_lesson.as_uri())
    context = tabs.context(**options)
    context.set_offline(True)
    page = context.new_page()
    own = "&projector=1" if options["width"] > PHONE["width"] else ""
    page.goto(f"{filmed_lesson.as_uri()}#/?learn=film&lang={language}{own}")
    expect(page.get_by_test_id("learn-title")).to_have_text(
        {"en": "How it was learned", "de": "Wie es gelernt wurde"}[language]
    )
    slider = page.get_by_test_id("step-slider")
    expect(slider).to_be_visible()
    slider.fill("0")
    comes_to(page, step="0")
    shown_step = {"en": "step 0", "de": "Schritt 0"}[language]
    expect(page.get_by_test_id("step-shown")).to_have_text(shown_step)
    fits(page)
    page.evaluate("location.hash = location.hash.replace(/^#.[a-z]*/, '#/tokens')")
    shown(page, "tokens")
    expect(page.get_by_test_id("tokens-line").locator("button")).not_to_have_count(0)
    fits(page)
    tabs.check()
    tabs.close()


TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : ["wider than the window",
    ...[...document.querySelectorAll("body *")].filter(one => one.getBoundingClientRect().right > innerWidth + 1)
        .map(one => `${one.tagName}.${one.className} ${one.getBoundingClientRect().right}`)]"""


def fits(page):
    """The page is as wide as the window, once a projector's enlargement has settled."""

    def too_wide():
        found = page.evaluate(TOO_WIDE)
        assert found == []
        return True

    eventually(page, too_wide)
