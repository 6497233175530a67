"""Learn: the whole path on four kinds of run, every task solved and failed; German, projector, phone, and axe."""

import re
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import expect

from tests.browser.looking import missing, serving
from tests.browser.test_every_view import AXE, LEAST, RUNS_OFF, TOO_SMALL, faults
from tests.browser.watching import GO, Tabs, address_of, comes_to, eventually, number_in, rests, shown, state

pytestmark = pytest.mark.slow

ATTENTION = ["vectors", "score", "scale", "softmax", "sum", "roles", "heads"]
START, END = ["tokens", "embedding", "position"], ["residual", "feedforward", "output"]
PATHS = {
    "documents": [*START, *ATTENTION[:3], "mask", *ATTENTION[3:], *END, "sampling", "film", "change", "summary"],
    "classifier": [*START, *ATTENTION, *END, "film", "change", "summary"],
    "program": [
        *START,
        "vectors",
        "score",
        "softmax",
        "sum",
        "heads",
        *END[:2],
        "layers",
        "output",
        "change",
        "summary",
    ],
}
TRANSLATOR = [
    *(*PATHS["documents"][:11], "cross", "residual", "feedforward", "layers"),
    *("output", "sampling", "film", "change", "summary"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    from clearhead.experiments.rasp_run import compile_to_run
    from clearhead.rasp import PROGRAMS

    return compile_to_run(PROGRAMS["sort"], tmp_path_factory.mktemp("craft") / "sort")


def chapters(page):
    dots = page.get_by_test_id("learn").locator("ol button")
    return [one.get_attribute("data-testid").removeprefix("chapter-") for one in dots.all()]


def told(page, name):
    """Wait until a chapter is told where it leads to, and its task can be judged."""
    comes_to(page, learn=name)
    page.get_by_test_id("learn-said").wait_for()
    expect(page.locator("main")).to_have_attribute("aria-busy", "false")
    rests(page)
    guess(page)


def guess(page):
    """Answer the question that stands before a change; the task comes after it, and a second guess is not taken."""
    # A chapter is told again when its text has come: for a moment it then has neither.
    expect(page.locator("main")).to_have_attribute("aria-busy", "false")
    page.locator("[data-testid=learn-question], [data-testid=learn-task]").first.wait_for()
    first = page.get_by_test_id("learn-choice-0")
    if first.count() and first.is_enabled():
        expect(page.get_by_test_id("learn-task")).to_have_count(0)
        first.click()
        expect(page.get_by_test_id("learn-guessed")).to_be_visible()
        expect(first).to_be_disabled()


def next_chapter(page, name):
    """Go to a chapter. Nothing is said of its task before a move is made."""
    page.keyboard.press("n")
    told(page, name)
    if has_task(page):
        assert verdict(page).inner_text() == ""


def has_task(page):
    return verdict(page).count() > 0


def verdict(page):
    return page.get_by_test_id("learn-verdict")


def solved(page):
    """The chapters that the address says are solved."""
    return {*state(page).get("solved", "").split(".")} - {""}


def judged(page):
    """What is said of the last move. Whether it counts is in the address too, when a slider has come to rest."""
    rests(page)

    def agreed():
        said, now = verdict(page).inner_text(), state(page)["learn"] in solved(page)
        assert ("Solved" in said) == now, said
        return (said,)

    return eventually(page, agreed)[0]


def try_all(page, moves):
    """Make moves until one solves the task; return how many did not."""
    wrong = 0
    for move in moves:
        move()
        said = judged(page)
        if "Solved" in said:
            return wrong
        wrong += "Not yet" in said
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

    assert {*SOLVERS, "summary"} == set(TRANSLATOR)
    done, wrong = [], {}
    for name in TRANSLATOR:
        if name != "tokens":
            next_chapter(page, name)
        if has_task(page):
            wrong[name] = SOLVERS[name](page)
            done.append(name)
        assert solved(page) == set(done)
    assert len(done) >= len(TRANSLATOR) - 3, "of few tasks this text has none"
    assert all(wrong[name] for name in ONCE_WRONG & wrong.keys()), wrong
    expect(page.get_by_test_id("learn-next")).to_be_disabled()
    expect(page.get_by_test_id("learn-finished")).to_be_visible()
    restored = tabs.reopen(page)
    told(restored, "summary")
    expect(restored.get_by_test_id("chapter-score")).to_have_class(re.compile("solved"))
    restored.keyboard.press("p")
    told(restored, "change")
    assert parse_qs(address_of(restored).split("?")[1]).get("edits") is None


def solve_tokens(page):
    side = "encoder" if page.get_by_test_id("tokens-encoder").count() else "decoder"
    spotlight_is_around(page, f"[data-testid=tokens-{side}]")
    wanted = re.search(r"id (\d+)", page.get_by_test_id("learn-task").inner_text())[1]
    page.get_by_test_id("learn-hint").click()
    expect(verdict(page)).to_contain_text("Not yet")
    tokens = page.get_by_test_id(f"tokens-{side}").locator("[data-token]").all()
    labels = [one.get_attribute("aria-label") for one in tokens]
    right = next(at for at, label in enumerate(labels) if f" {wanted}:" in label)
    wrong = try_all(page, [tokens[right - 1].click, tokens[right].click])
    expect(verdict(page)).to_contain_text(f"is number {wanted}")
    return wrong


def solve_embedding(page):
    """The two tokens that are most alike, in the table; where all are equally far apart, the last token's numbers."""
    table = page.get_by_test_id("spaces-embedding").locator("tbody tr")
    if not table.count():
        places = page.get_by_test_id("box-token").locator("option").count()
        return try_all(page, [lambda at=at: choose(page, "box-token", at) for at in range(1, places)])
    numbers = [[number_in(cell)[0] for cell in row.locator("td button").all_inner_texts()] for row in table.all()]
    pairs = [(row, column) for row in range(len(numbers)) for column in range(row + 1, len(numbers))]
    pairs.sort(key=lambda pair: -numbers[pair[0]][pair[1]])
    cells = [table.nth(row).locator("td button").nth(column) for row, column in [pairs[len(pairs) // 2], *pairs]]
    return try_all(page, [cell.click for cell in cells])


def choose(page, name, place):
    page.get_by_test_id(name).select_option(index=place)


def solve_position(page):
    return try_all(page, [lambda at=at: slide(page, at) for at in (31, *range(1, 13))])


def slide(page, position):
    page.get_by_test_id("positions-slider").fill(str(position))
    comes_to(page, position=position)  # the slider writes there when it rests


def solve_vectors(page):
    page.set_viewport_size({"width": 1400, "height": 700})
    spotlight_is_around(page, "[data-testid=steps-query]")
    page.mouse.wheel(0, 120)
    spotlight_is_around(page, "[data-testid=steps-query]")
    page.set_viewport_size({"width": 1280, "height": 800})
    lit = page.get_by_test_id("formula").locator("[data-state=lit]").all_inner_texts()
    assert lit == ["Q", "Kᵀ", "V"]
    query, key = (int(state(page)[name]) for name in ("query", "key"))
    return try_all(page, [lambda: pick(page, "query", key), lambda: pick(page, "key", query)])


def pick(page, role, place):
    page.get_by_role("group", name=role, exact=True).locator(f"[data-token='{place}']").click()


def solve_by_key(page):
    """Of the score and of the sum: the keys of the picture, one after the other."""
    keys = page.get_by_test_id("view-steps").locator("svg[data-picture] g.row").all()
    return try_all(page, [one.click for one in keys])


def solve_scale(page):
    slider = page.get_by_test_id("temperature")
    assert re.search(r"√32 = 5.66", page.get_by_test_id("learn-said").inner_text())
    ends = ("End", "Home") if "down" in page.get_by_test_id("learn-task").inner_text() else ("Home", "End")
    return try_all(page, [lambda end=end: turn(slider, end) for end in ends])


def turn(slider, end):
    slider.press(end)
    expect(slider.page.get_by_test_id("edit-list")).to_contain_text("temperature")


def solve_mask(page):
    count = int(re.search(r"exactly (\d+)", page.get_by_test_id("learn-task").inner_text())[1])
    return try_all(page, [lambda q=query: look_from(page, q) for query in (count, count - 1)])  # token q sees q + 1


def look_from(page, query):
    page.get_by_test_id("arcs").locator(f"[data-end=query][data-token='{query}']").click()
    comes_to(page, query=query)


def solve_softmax(page):
    queries = page.get_by_role("group", name="query", exact=True).locator("[data-token]").count()
    return try_all(page, [lambda q=query: pick(page, "query", q) for query in range(queries)])


def solve_heads(page):
    count = len(page.get_by_test_id("head-picker").get_by_role("button").all()) - 1
    return try_all(page, [lambda: page.keyboard.press("]")] * count)


def solve_cross(page):
    queries = page.get_by_test_id("arcs").locator("[data-end=query]").count()
    return try_all(page, [lambda q=query: look_from(page, q) for query in range(queries)])


def solve_residual(page):
    side = "decoder" if page.get_by_test_id("tokens-decoder").count() else "encoder"
    return try_all(page, [one.click for one in page.get_by_test_id(f"tokens-{side}").locator("[data-token]").all()])


def solve_roles(page):
    cells = page.get_by_test_id("spaces-query_key").locator("td button")
    return try_all(page, [one.click for one in cells.all()])


def solve_film(page):
    """Back to the first step, and to the last again for the chapters that follow."""
    slider = page.get_by_test_id("step-slider")
    slider.fill("0")
    expect(verdict(page)).to_contain_text("Solved")
    slider.fill(slider.get_attribute("max"))
    expect(verdict(page)).to_contain_text("Solved before")
    rests(page)
    return 1


def solve_feedforward(page):
    """The largest units are listed, the furthest from 0 first."""
    units = page.locator("[data-name$='.hidden'] .largest [data-place]").all()
    return try_all(page, [one.click for one in (units[-1], *units)])


def solve_output(page):
    """The place that is least sure; where there is one answer for the whole text, the head that it needs."""
    switches = page.locator("[data-testid^=head-toggle-]").all()
    if switches:
        return try_all(page, [lambda one=one: alone(page, one) for one in switches])
    return try_all(page, [one.click for one in page.locator("[data-testid^=output-]").all()])


def alone(page, switch):
    """Switch one head off, and the others on."""
    page.get_by_test_id("learn-show").click()
    page.wait_for_function("() => !location.hash.includes('edits')")
    expect(page.locator("main")).to_have_attribute("aria-busy", "false")
    rests(page)
    switch.click()
    expect(switch).to_have_attribute("aria-checked", "false")


def solve_sampling(page):
    slider = page.get_by_test_id("decoding-slider")
    steps = int(slider.get_attribute("max"))
    return try_all(page, [lambda key=key: slider.press(key) for key in ("Home", *["ArrowRight"] * steps)])


def solve_change(page):
    page.get_by_test_id("learn-hint").click()
    expect(verdict(page)).to_contain_text("should be enough")
    enough = re.search(r": (\d+) should", verdict(page).inner_text())[1]
    return try_all(page, [lambda score=score: set_score(page, score) for score in ("-50", enough)])


def set_score(page, score):
    page.get_by_test_id("score-input").fill(score)
    page.get_by_test_id("score-set").click()
    page.wait_for_function('score => decodeURIComponent(location.hash).includes(`"to":${score}`)', arg=score)


SOLVERS = {
    "tokens": solve_tokens,
    "embedding": solve_embedding,
    "position": solve_position,
    "vectors": solve_vectors,
    "score": solve_by_key,
    "scale": solve_scale,
    "mask": solve_mask,
    "softmax": solve_softmax,
    "sum": solve_by_key,
    "heads": solve_heads,
    "cross": solve_cross,
    "residual": solve_residual,
    "feedforward": solve_feedforward,
    "roles": solve_roles,
    "layers": solve_residual,
    "film": solve_film,
    "output": solve_output,
    "sampling": solve_sampling,
    "change": solve_change,
}
ONCE_WRONG = {"tokens", "embedding", "position", "vectors", "scale", "mask", "feedforward", "change"}
"""Where a wrong move is made first. Of the others the first may happen to be the right one."""
SOLVED = {
    "documents": {"embedding", "position", "sampling", "change"},
    "classifier": {"vectors", "sum", "output", "change"},
    "program": {"embedding", "softmax", "residual", "feedforward", "change"},
}
"""The tasks that are solved on each of the other kinds of run, where its text has one."""


@pytest.mark.thorough  # chapters.test.ts has the chapters of each kind, and the translator's path is above
@pytest.mark.parametrize("kind", PATHS)
def test_the_path_of_other_runs(kind, chromium, request):
    run = request.getfixturevalue(kind)
    with serving(getattr(run, "path", run)) as home:
        tabs = Tabs(chromium, home)
        page = tabs.context().new_page()
        page.goto(f"{home}#/model?learn=tokens")
        told(page, "tokens")
        assert chapters(page) == PATHS[kind]
        said, done = {"tokens": page.get_by_test_id("learn-said").inner_text()}, set()
        for name in PATHS[kind][1:]:
            next_chapter(page, name)
            said[name] = page.get_by_test_id("learn-said").inner_text()
            page.get_by_test_id("spotlight").wait_for()
            assert not re.search("undefined|NaN", said[name])
            if name in SOLVED[kind] and has_task(page):
                SOLVERS[name](page)
                done.add(name)
        assert solved(page) == done
        assert len(done) >= len(SOLVED[kind]) - 1
        CHECKS[kind](page, said)
        tabs.check()
        tabs.close()


def check_decoder(page, said):
    assert "what comes next" in said["mask"]
    assert "what may come next" in said["output"]
    assert "sampling" in said["sampling"]


def check_classifier(page, said):
    assert "one vector for the whole text" in said["output"]


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
    shown(page, "head")
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
    rests(page)
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
    page.evaluate(GO, f"#/head?source={'eintausend' * 6}&site=encoder.0.attention&lang=de")
    shown(page, "head")
    before = page.locator("h1").bounding_box()["height"]
    page.keyboard.press("f")
    comes_to(page, projector="1")
    expect(page.get_by_test_id("nav")).not_to_be_visible()
    expect(page.get_by_test_id("run")).not_to_be_visible()
    expect(page.get_by_test_id("step-slider")).to_be_visible()
    expect(page.get_by_test_id("source")).to_be_editable()
    rests(page)
    assert page.locator("h1").bounding_box()["height"] == pytest.approx(1.5 * before, rel=0.05)
    assert page.get_by_test_id("view-head").bounding_box()["width"] > 1800
    choose_by_pointer(page)
    check_axe(page)
    page.keyboard.press("1")
    shown(page, "model")
    comes_to(page, projector="1")
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("nav")).to_be_visible()
    page.wait_for_function("() => !location.hash.includes('projector')")


def choose_by_pointer(page):
    """What the pointer is on is what is chosen, also where the page is enlarged."""
    chosen = []
    for share in (0.3, 0.5):
        rests(page)
        before = state(page).get("key")
        box = page.get_by_test_id("heat-map").locator("canvas").bounding_box()
        page.mouse.click(box["x"] + share * box["width"], box["y"] + share * box["height"])
        eventually(page, lambda before=before: state(page).get("key") not in (None, before))
        chosen.append(int(state(page)["key"]))
    tokens = page.evaluate("document.querySelectorAll('[data-testid=arcs] text').length")
    assert 0 < chosen[0] < chosen[1] < tokens


def check_axe(page):
    if not AXE.exists():
        missing("axe-core is not installed; run `make web`")
    rests(page)
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


def test_beside_the_path_the_rail_and_the_texts_have_room(tabs):
    page = tabs.open("model", source="vierundzwanzig", learn="summary", window={"width": 1280, "height": 800})
    page.get_by_test_id("learn-finished").wait_for()
    assert page.locator(".rail").evaluate("rail => rail.scrollHeight <= innerHeight")
    lines = page.get_by_test_id("source").evaluate(
        "text => text.clientHeight / parseFloat(getComputedStyle(text).lineHeight)"
    )
    assert lines < 2
