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
from tests.browser.looking import missing
from tests.browser.test_every_view import AXE, faults
from tests.browser.test_learn import guess
from tests.browser.watching import SITE, SOURCE, Tabs, comes_to, shown, state

pytestmark = pytest.mark.slow

OTHER = "dreihundertfünf"
VIEWS = (
    *("heads", "head", "steps", "similarity", "context", "positions", "decoding", "intervene", "meaning", "neurons"),
    "model",
)
EXACT = 1e-4


@pytest.fixture(scope="module")
def page_file(demo_folder, tmp_path_factory):
    if not is_built():
        missing("the live page is not built; run `make web`")
    file = tmp_path_factory.mktemp("live") / "live page.html"
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["page", str(demo_folder), "-o", str(file)]) == 0
    assert file.stat().st_size < 6_000_000
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
        "Tokeniser, Training, Design, Exercises, the film of the training, rollout and A | B need"
    )
    page.goto(f"{page.url.partition('#')[0]}#/training?source={SOURCE}")
    expect(page.get_by_role("alert")).to_contain_text("does not have the view Training")


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


def test_learn_walks_to_its_end(opened):
    """Every chapter finds its view, its numbers and its task without a server."""
    page = opened
    page.keyboard.press("l")
    expect(page.get_by_test_id("learn-said")).not_to_be_empty()
    names = [one.get_attribute("data-testid") for one in page.locator("[data-testid^=chapter-]").all()]
    assert len(names) > 12
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
