"""A lesson in one file, offline: an exercise of each kind is solved by clicking, and the line to hand in counts it."""

import pytest
from playwright.sync_api import expect

from clearhead.cli import run
from clearhead.exercises import EXERCISES
from clearhead.exercises.exercise import run_code
from clearhead.exercises.progress import read_hand_in
from clearhead.exercises.slips import SlipModel
from clearhead.serve.live import is_built
from tests.browser.looking import missing
from tests.browser.watching import Tabs

pytestmark = pytest.mark.slow
STEPS = ("reverse", "look-at-blue", "slip-3", "mystery-1")
PHONE, PROJECTOR = {"width": 360, "height": 740}, {"width": 1280, "height": 720}


@pytest.fixture(scope="module", params=["en", "de"])
def lesson(request, demo_folder, tmp_path_factory):
    """The file of a lesson, and its language."""
    if not is_built():
        missing("the live page is not built; run `make web`")
    home = tmp_path_factory.mktemp("lesson")
    steps = "".join(f"## exercise {name}\n" for name in ("scale", *STEPS))
    (home / "mine.md").write_text(f"# Mine\nlanguage: {request.param}\nsentence: vier\n## Hi\nRead.\n{steps}")
    assert run(["page", str(demo_folder), "--lesson", str(home / "mine.md"), "-o", str(home / "lesson.html")]) == 0
    return home / "lesson.html", request.param


@pytest.fixture
def opened(chromium, lesson):
    """Open the lesson in a window of this size without a network."""
    file, _ = lesson
    tabs = Tabs(chromium, file.as_uri())

    def open_in(size):
        context = tabs.context(**size)
        context.set_offline(True)
        page = context.new_page()
        page.goto(file.as_uri())
        page.get_by_test_id("learn-said").wait_for()
        return page

    yield open_in
    tabs.check()
    tabs.close()


def go_to(page, name):
    """Go to the step of this name; on a phone the dots are hidden."""
    page.evaluate("name => document.querySelector(`[data-testid=chapter-${name}]`).click()", name)
    expect(page.get_by_test_id(f"chapter-{name}")).to_have_attribute("aria-current", "step")
    page.mouse.wheel(0, 1)  # until somebody moves the page, the exercise stays in sight


def is_graded(page, state):
    expect(page.locator("[data-testid=verdict] [data-state]")).to_have_attribute("data-state", state)


def program(page, lines):
    """Make a program by menus."""
    for at, line in enumerate(lines):
        operation, *chosen = line.split(" | ")
        page.get_by_test_id(f"add-{operation}").click()
        menus = page.get_by_test_id("puzzle-lines").locator("li").nth(at).locator("select")
        expect(menus).to_have_count(len(chosen))
        for slot, choice in enumerate(chosen):
            menus.nth(slot).select_option(choice)


def solve_puzzle(page, _):
    lines = EXERCISES["reverse"].menus
    program(page, [*lines[:-2], lines[-2].replace("key == query - 1", "key == query"), lines[-1]])
    is_graded(page, "not yet")
    expect(page.get_by_test_id("verdict")).to_contain_text(" a: ")
    expect(page.get_by_test_id("puzzle-lines").locator("output")).to_have_text(["[0]", "1", "1", "[]", "–"])
    page.get_by_test_id("puzzle-lines").locator("li").nth(3).locator("select").nth(2).select_option("key == query - 1")


def solve_design(page, language):
    asks = {"en": "{} asks for blue", "de": "{} fragt nach blue"}[language]
    is_graded(page, "not yet")
    for word in ("the", "a", "blue", "green", "old", "creature", "forest", "and", "one"):
        page.get_by_role("button", name=asks.format(word), exact=True).click()


def solve_slip(page, _):
    at, step = SlipModel(exercise=EXERCISES["slip-3"]).place
    page.locator(f"[data-step='{at} context']").click()
    page.get_by_test_id("slip-formula").select_option("weight @ value")
    is_graded(page, "not yet")
    page.locator(f"[data-step='{at} {step}']").click()
    page.get_by_test_id("slip-formula").select_option("softmax(masked, -1)")


def solve_mystery(page, _):
    exercise = EXERCISES["mystery-1"]
    expect(page.get_by_test_id("mystery-text-answer")).to_have_text("→ – a b")
    page.get_by_test_id("mystery-other").fill("bbc")
    expect(page.get_by_test_id("mystery-edges").locator("label.raised")).to_have_count(2)
    program(page, exercise.menus)
    is_graded(page, "not yet")
    for edge in run_code(exercise.solution, exercise.name)["edges"]:
        page.locator(f"[data-edge='{edge}']").check()


SOLVE = dict(zip(STEPS, (solve_puzzle, solve_design, solve_slip, solve_mystery), strict=True))


@pytest.mark.parametrize("size", [PHONE, PROJECTOR], ids=["phone", "projector"])
def test_an_exercise_of_each_kind_is_solved_in_the_file(opened, lesson, size):
    page, language = opened(size), lesson[1]
    go_to(page, "own-2")
    expect(page.get_by_test_id("learn-code")).to_contain_text("def scale(scores, d):")
    for name in STEPS:
        go_to(page, name)
        expect(page.get_by_test_id("exercise-asked")).to_be_visible()
        SOLVE[name](page, language)
        is_graded(page, "right")
        expect(page.get_by_test_id(f"chapter-{name}")).to_have_text("✓")
        expect(page.get_by_test_id("learn-verdict")).to_contain_text("✓")
    page.get_by_test_id("learn-name").fill("Ada")
    handed = read_hand_in(page.get_by_test_id("learn-line").inner_text())
    assert (handed.solved, handed.left) == (STEPS, ())
    assert handed.tries >= 2 * len(STEPS)


def test_what_was_solved_and_answered_is_there_again(opened):
    """In a new tab of the same file, without an address; and an address that says it is solved is not believed."""
    page = opened(PROJECTOR)
    go_to(page, "reverse")
    solve_puzzle(page, "en")
    is_graded(page, "right")
    expect(page.get_by_test_id("chapter-reverse")).to_have_text("✓")
    again = page.context.new_page()
    again.goto(page.url.partition("#")[0])
    again.get_by_test_id("learn-said").wait_for()
    expect(again.get_by_test_id("chapter-reverse")).to_have_text("✓")
    go_to(again, "reverse")
    expect(again.get_by_test_id("puzzle-lines").locator("li")).to_have_count(5)
    again.goto(f"{page.url.partition('#')[0]}#/?learn=slip-3&solved=slip-3.mystery-1")
    again.reload()
    again.get_by_test_id("exercise-asked").wait_for()
    expect(again.get_by_test_id("chapter-slip-3")).not_to_have_text("✓")
