"""Learn: the whole path on four kinds of run, tasks solved and failed; German, projector, phone, and axe."""

import re
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import expect

from tests.browser.looking import looking, missing
from tests.browser.test_every_view import AXE, LEAST, RUNS_OFF, TOO_SMALL, faults
from tests.browser.watching import Tabs, address_of, comes_to, shown, state

pytestmark = pytest.mark.slow

ATTENTION = ["vectors", "score", "scale", "softmax", "sum", "heads"]
START, END = ["tokens", "embedding", "position"], ["residual", "feedforward", "output"]
PATHS = {
    "documents": [*START, "vectors", "score", "scale", "mask", "softmax", "sum", "heads", *END, "sampling", "change"],
    "classifier": [*START, *ATTENTION, *END, "change"],
    "program": [*START, "vectors", "score", "softmax", "sum", "heads", *END, "change"],
}
TRANSLATOR = [*PATHS["documents"][:10], "cross", *END, "sampling", "change"]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    from clearhead.rasp import PROGRAMS
    from clearhead.training.rasp_run import compile_to_run

    return compile_to_run(PROGRAMS["sort"], tmp_path_factory.mktemp("craft") / "sort")


def chapters(page):
    dots = page.get_by_test_id("learn").locator("ol button")
    return [one.get_attribute("data-testid").removeprefix("chapter-") for one in dots.all()]


def told(page, name):
    """Wait until a chapter is told where it leads to, and its task can be judged."""
    comes_to(page, learn=name)
    page.get_by_test_id("learn-said").wait_for()
    expect(page.locator("main")).to_have_attribute("aria-busy", "false")


def next_chapter(page, name):
    page.keyboard.press("n")
    told(page, name)


def verdict(page):
    return page.get_by_test_id("learn-verdict")


def try_all(page, choices):
    """Make choices until one solves the task; return how many did not."""
    for failed, choose in enumerate(choices):
        choose()
        expect(verdict(page)).to_contain_text(re.compile("Not yet|Solved"))
        page.wait_for_timeout(60)
        if "Solved" in verdict(page).inner_text():
            return failed
    raise AssertionError(f"nothing solves it: {page.get_by_test_id('learn-task').inner_text()}")


def spotlight_is_around(page, part):
    """Wait until the outline lies around an element, wherever the page was scrolled to."""
    page.wait_for_function(
        """wanted => {
            const light = document.querySelector("[data-testid=spotlight]")?.getBoundingClientRect();
            const part = document.querySelector(wanted)?.getBoundingClientRect();
            return light && part && light.left < part.left && light.top < part.top && light.right > part.right
                && light.bottom > part.bottom;
        }""",
        arg=part,
    )


@pytest.fixture
def page(tabs):
    """The explorer, opened on nothing in particular."""
    made = tabs.context().new_page()
    made.goto(tabs.home)
    return made


def test_a_translators_path_from_the_invitation_to_the_end(page, tabs):
    page.get_by_test_id("invitation").wait_for()
    page.get_by_test_id("invitation-start").click()
    told(page, "tokens")
    assert chapters(page) == TRANSLATOR
    expect(page.get_by_test_id("invitation")).to_have_count(0)
    page.get_by_test_id("source").fill("vierundzwanzigtausenddreihundertsieben")
    page.get_by_test_id("look").click()
    comes_to(page, source="vierundzwanzigtausenddreihundertsieben")

    solve_tokens(page)
    for name in TRANSLATOR[1:]:
        next_chapter(page, name)
        if name in SOLVERS:
            SOLVERS[name](page)
    solved = ["tokens", *(name for name in TRANSLATOR if name in SOLVERS)]
    assert set(state(page)["solved"].split(".")) >= set(solved)
    expect(page.get_by_test_id("learn-next")).to_be_disabled()
    expect(page.get_by_test_id("learn-finished")).to_be_visible()
    restored = tabs.reopen(page)
    told(restored, "change")
    expect(restored.get_by_test_id("chapter-score")).to_have_class(re.compile("solved"))
    restored.keyboard.press("p")
    told(restored, "sampling")
    assert parse_qs(address_of(restored).split("?")[1]).get("edits") is None


def solve_tokens(page):
    spotlight_is_around(page, "[data-testid=tokens-encoder]")
    asked = page.get_by_test_id("learn-task").inner_text()
    wanted = re.search(r"id (\d+)", asked)[1]
    page.get_by_test_id("learn-hint").click()
    expect(verdict(page)).to_contain_text("Not yet")
    tokens = page.get_by_test_id("tokens-encoder").locator("[data-token]").all()
    labels = [one.get_attribute("aria-label") for one in tokens]
    right = next(at for at, label in enumerate(labels) if f" {wanted}:" in label)
    tokens[right - 1].click()
    expect(verdict(page)).to_contain_text("Not yet")
    tokens[right].click()
    expect(verdict(page)).to_contain_text(f"is number {wanted}")
    comes_to(page, solved="tokens")


def solve_vectors(page):
    page.set_viewport_size({"width": 1400, "height": 700})
    spotlight_is_around(page, "[data-testid=steps-query]")
    page.mouse.wheel(0, 120)
    spotlight_is_around(page, "[data-testid=steps-query]")
    page.set_viewport_size({"width": 1280, "height": 800})
    lit = page.get_by_test_id("formula").locator("[data-state=lit]").all_inner_texts()
    assert lit == ["Q", "Kᵀ", "V"]
    before = state(page)
    page.evaluate(
        "query => { location.hash = location.hash.replace(/query=\\d+&key=\\d+/, query); }",
        f"query={before['key']}&key={before['query']}",
    )
    expect(verdict(page)).to_contain_text("Solved")


def solve_score(page):
    keys = page.get_by_test_id("view-steps").locator("svg[data-picture] g.row").all()
    assert try_all(page, [lambda one=one: one.click() for one in keys]) >= 1


def solve_scale(page):
    slider = page.get_by_test_id("temperature")
    assert re.search("√32 = 5.66", page.get_by_test_id("learn-said").inner_text())
    down = "down" in page.get_by_test_id("learn-task").inner_text()
    slider.press("End" if down else "Home")
    expect(verdict(page)).to_contain_text("Not yet")
    slider.press("Home" if down else "End")
    expect(verdict(page)).to_contain_text("Solved")


def solve_mask(page):
    count = int(re.search(r"exactly (\d+)", page.get_by_test_id("learn-task").inner_text())[1])
    for query, said in ((count, "Not yet"), (count - 1, "Solved")):  # causal: token q sees q + 1 keys
        page.evaluate("query => { location.hash = location.hash.replace(/query=\\d+/, `query=${query}`); }", query)
        expect(verdict(page)).to_contain_text(said)


def solve_heads(page):
    count = len(page.get_by_test_id("head-picker").get_by_role("button").all()) - 1
    try_all(page, [lambda: page.keyboard.press("]")] * count)


def solve_output(page):
    rows = page.locator("[data-testid^=output-]").all()
    try_all(page, [lambda one=one: one.click() for one in rows])


def solve_change(page):
    page.get_by_test_id("learn-hint").click()
    expect(verdict(page)).to_contain_text("should be enough")
    enough = re.search(r": (\d+) should", verdict(page).inner_text())[1]
    for score, said in (("-50", "Not yet"), (enough, "Solved")):
        page.wait_for_load_state("networkidle")  # what arrives later would be written over what is typed
        page.get_by_test_id("score-input").fill(score)
        page.get_by_test_id("score-set").click()
        page.wait_for_function('score => decodeURIComponent(location.hash).includes(`"to":${score}`)', arg=score)
        expect(verdict(page)).to_contain_text(said)


SOLVERS = {
    "vectors": solve_vectors,
    "score": solve_score,
    "scale": solve_scale,
    "mask": solve_mask,
    "heads": solve_heads,
    "output": solve_output,
    "change": solve_change,
}


@pytest.mark.parametrize("kind", PATHS)
def test_the_path_of_other_runs(kind, chromium, request):
    run = request.getfixturevalue(kind)
    with looking(getattr(run, "folder", run).path) as home:
        tabs = Tabs(chromium, home)
        page = tabs.context().new_page()
        page.goto(f"{home}#/model?learn=tokens")
        told(page, "tokens")
        assert chapters(page) == PATHS[kind]
        said = {"tokens": page.get_by_test_id("learn-said").inner_text()}
        for name in PATHS[kind][1:]:
            next_chapter(page, name)
            said[name] = page.get_by_test_id("learn-said").inner_text()
            page.get_by_test_id("spotlight").wait_for()
            expect(page.get_by_test_id("learn-task")).not_to_contain_text("Solved")
            assert not re.search("undefined|NaN", said[name])
        if "edits" not in state(page):
            solve_change(page)
        CHECKS[kind](page, said)
        tabs.check()
        tabs.close()


def check_decoder(page, said):
    assert "what comes next" in said["mask"]
    assert "what may come next" in said["output"]
    assert "sampling" in said["sampling"]


def check_classifier(page, said):
    assert "one vector for the whole text" in said["output"]
    page.keyboard.press("p")
    told(page, "output")
    switches = page.locator("[data-testid^=head-toggle-]").all()

    def alone(switch):
        page.get_by_test_id("learn-show").click()
        comes_to(page, learn="output")
        page.wait_for_function("() => !location.hash.includes('edits')")
        expect(page.locator("main")).to_have_attribute("aria-busy", "false")
        switch.click()

    if switches:
        try_all(page, [lambda one=one: alone(one) for one in switches])


def check_program(page, said):
    assert "no softmax" in said["softmax"]
    assert "written by the compiler" in said["vectors"]
    assert "no norm" in said["residual"]
    assert "select(" in said["heads"]
    expect(page.get_by_test_id("formula")).to_have_attribute("aria-label", re.compile(r"argmax\( Q Kᵀ \) V"))


CHECKS = {"documents": check_decoder, "classifier": check_classifier, "program": check_program}


def test_german_the_projector_and_a_phone(page, tabs):
    page.get_by_test_id("invitation-dismiss").click()
    expect(page.get_by_test_id("invitation")).to_have_count(0)
    page.get_by_test_id("language-de").click()
    expect(page.locator("html")).to_have_attribute("lang", "de")
    comes_to(page, lang="de")
    shown(page, "model")
    page.keyboard.press("l")
    told(page, "tokens")
    expect(page.get_by_test_id("learn-said")).to_contain_text("liest keine Buchstaben")
    term = page.get_by_test_id("term-token")
    term.hover()
    expect(page.get_by_role("tooltip")).to_contain_text("Ein Stück Text")
    term.focus()
    term.press("Escape")
    expect(page.get_by_role("tooltip")).to_have_count(0)
    check_axe(page)

    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(f"() => ({RUNS_OFF})().length === 0")
    assert page.evaluate(TOO_SMALL, LEAST) == []
    page.get_by_test_id("learn-fold").click()
    expect(page.get_by_test_id("learn-said")).to_have_count(0)
    next_folded = page.get_by_test_id("learn-next")
    next_folded.click()
    comes_to(page, learn="embedding", lang="de")
    page.get_by_test_id("learn-fold").click()
    check_axe(page)
    page.get_by_test_id("learn-close").click()
    expect(page.get_by_test_id("learn")).to_have_count(0)

    page.set_viewport_size({"width": 1920, "height": 1080})
    page.keyboard.press("3")
    shown(page, "head")
    size = "getComputedStyle(document.querySelector('h1')).fontSize"
    before = page.locator("h1").bounding_box()["height"]
    page.keyboard.press("f")
    comes_to(page, projector="1")
    expect(page.get_by_test_id("nav")).not_to_be_visible()
    expect(page.get_by_test_id("source")).not_to_be_visible()
    assert page.locator("h1").bounding_box()["height"] == pytest.approx(1.5 * before, rel=0.05), page.evaluate(size)
    assert page.get_by_test_id("view-head").bounding_box()["width"] > 1800
    choose_by_pointer(page)
    check_axe(page)
    page.keyboard.press("1")
    shown(page, "model")
    comes_to(page, projector="1")
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("nav")).to_be_visible()
    assert "projector" not in state(page)


def choose_by_pointer(page):
    """What the pointer is on is what is chosen, also where the page is enlarged."""
    box = page.get_by_test_id("heat-map").locator("canvas").bounding_box()
    chosen = []
    for share in (0.5, 0.75):
        page.mouse.click(box["x"] + share * box["width"], box["y"] + share * box["height"])
        page.wait_for_function("() => /[&?]key=\\d/.test(location.hash)")
        chosen.append(int(state(page)["key"]))
    tokens = page.evaluate("document.querySelectorAll('[data-testid=arcs] text').length")
    assert 0 < chosen[0] < chosen[1] < tokens


def check_axe(page):
    if not AXE.exists():
        missing("axe-core is not installed; run `make web`")
    page.wait_for_load_state("networkidle")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert not [one for violation in found["violations"] for one in faults(violation)]


def test_a_link_with_nothing_but_a_chapter_leads_to_it(tabs):
    page = tabs.context().new_page()
    page.goto(f"{tabs.home}#/model?learn=softmax&source=vierundzwanzig")
    told(page, "softmax")
    shown(page, "steps")
    comes_to(page, at="3")
    expect(page.get_by_test_id("invitation")).to_have_count(0)
    page.go_back()
    page.wait_for_function("() => !location.hash.includes('at=3')")
