"""What a researcher reaches for, clicked in the page: attribution, patching, surprise, lengths, and lines of Python."""

import math
from itertools import chain

import pytest
from playwright.sync_api import expect

import clearhead as ch
from clearhead.model.presets import Size
from clearhead.serve.program import load_program
from clearhead.training.tasks.learning import decoder
from tests.browser.looking import serving
from tests.browser.watching import SITE, SOURCE, Tabs, comes_to, eventually, rests, says, shown, steady
from tests.serve.questions.test_python import compiled, imported, last_value
from tests.training.small_runs import classifying, documents, filling, trained

pytestmark = pytest.mark.slow

TEXT, OTHER = "vierundzwanzig", "siebenundvierzig"


def deep(folder):
    task, source, tokenizing, _ = documents(folder)
    return task, source, tokenizing, decoder(Size(24, 16, 2, 2, 32), 32, 0.0)


KINDS = {
    "decoder": (documents, "the cat eats the", "eats the cat the"),
    "classifier": (classifying, "red plum", "red cow"),
    "fill": (filling, "the <mask> eats", "the <mask> the", "the <mask> dog", "dog <mask> eats"),
    "compiled": (compiled, "a b c a", "a b a a"),
    "imported": (imported, "ab abc"),
    "deep": (deep, "the cat eats the"),
}
"""By kind: its run, a text, and others, of which one has as many tokens and another answer, if its weights give any."""


@pytest.fixture(scope="module", params=KINDS)
def other_kind(request, chromium, tmp_path_factory):
    make, text, *others = KINDS[request.param]
    whole = make in (compiled, imported)
    run = make(tmp_path_factory) if whole else trained(make, tmp_path_factory, steps=2 if make is deep else 60)
    with serving(run) as home:
        tabs = Tabs(chromium, home)
        yield tabs, run, text, others
        tabs.check()
        tabs.close()


def numbers(page, name):
    """The numbers of a grid in full, row by row."""
    rows = page.get_by_test_id(name).locator("tbody tr").all()
    return [[float(one.get_attribute("data-value")) for one in row.locator("[data-value]").all()] for row in rows]


def test_attribution_is_that_of_python(tabs, demo):
    page = tabs.open("intervene", source=TEXT, tab="attribute", place=0)
    expect(page.get_by_test_id("attribute-heads")).to_be_visible()
    rests(page)
    first, second = (one.id for one in ch.trace(demo, TEXT).candidates[0][:2])
    found = ch.attribute(demo, TEXT, answer=first, other=second, place=0)
    heads = [value for name, value in found.parts.items() if ".head." in name]
    assert list(chain(*numbers(page, "attribute-heads"))) == pytest.approx(heads, abs=1e-4)
    rest = sum(chain(*numbers(page, "attribute-rest")))
    assert rest + sum(heads) == pytest.approx(found.total, abs=1e-3)
    page.get_by_test_id("attribute-heads").locator("tbody tr").nth(1).locator("button").nth(2).click()
    shown(page, "head")
    comes_to(page, head=2)


def test_numbers_of_other_kinds_of_run_are_those_of_python(other_kind):
    tabs, run, text, _ = other_kind
    trace = ch.trace(run, text)
    site = f"{trace.answer_side}.0.attention"
    page = tabs.open("model", source=text)
    told = [one.get_attribute("data-surprise") for one in page.locator("[data-surprise]").all()]
    wanted = [] if run.task.labels or load_program(run) else trace.surprise.nan_to_num().tolist()
    assert [float(one) for one in told if one] == pytest.approx([one for one in wanted if one], rel=1e-4, abs=1e-4)
    page = tabs.open("intervene", source=text, tab="attribute", place=0)
    expect(page.get_by_test_id("attribute-heads")).to_be_visible()
    rests(page)
    first, second = (one.id for one in trace.candidates[0][:2])
    found = ch.attribute(run, text, answer=first, other=second, place=0)
    heads = [value for name, value in found.parts.items() if ".head." in name]
    assert list(chain(*numbers(page, "attribute-heads"))) == pytest.approx(heads, rel=1e-4, abs=1e-4)
    page = tabs.open("steps", source=text, site=site, head=0, query=1, key=0, at=4)
    context = page.get_by_test_id("cell-context")
    wanted = trace[site].head[0].cell(1, 0).context[0]
    eventually(page, lambda: float(context.get_attribute("data-value")) == pytest.approx(wanted, rel=1e-4, abs=1e-5))
    page = tabs.open("meaning", source=text, site=site, head=0, places="0,1", pair="1,0")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    steady(page, "meaning")
    page.get_by_test_id("copy-python").click()
    expect(page.get_by_test_id("python-said")).to_have_text("Copied")
    spaces = last_value(page.evaluate("navigator.clipboard.readText()"))
    rows = page.get_by_test_id("spaces-pairs").locator("tbody tr").all()
    for row, token in zip(rows, (0, 1), strict=True):
        told = row.locator("b").all_inner_texts()
        assert len(told) == 4
        for words, name in zip(told, ("embedding", "query_key", "value", "score"), strict=True):
            assert says(words, float(getattr(spaces, name)[1][token])), name
    page = tabs.open("head", source=text, site=site, head=0, query=1, key=0)
    page.get_by_test_id("weighted").click()
    comes_to(page, of="added")
    steady(page, "head")
    page.get_by_test_id("heat-map").locator("canvas").focus()
    page.keyboard.press("ArrowLeft")
    rests(page)
    wanted = trace[site].head[0].weighted[1, 0].item()
    eventually(page, lambda: says(page.get_by_test_id("reading-value").first.inner_text(), wanted))


def test_patches_of_other_kinds_of_run_are_those_of_python(other_kind):
    tabs, run, text, others = other_kind
    if not others:
        pytest.skip("it has one answer to all texts: tests/serve/questions/test_python.py names two answers instead")
    traces = {one: ch.trace(run, one) for one in (text, *others)}
    side = traces[text].answer_side
    said = {one: [row[0].id for row in each.candidates] for one, each in traces.items()}
    other, place = next(
        (other, place)
        for other in others
        if len(traces[other].sides[side].ids) == len(traces[text].sides[side].ids)
        for place, (one, another) in enumerate(zip(said[text], said[other], strict=False))
        if one != another
    )
    page = tabs.open("intervene", source=text, tab="patch", place=place, other=other)
    grid = f"patch-{side}"
    expect(page.get_by_test_id(grid)).to_be_visible()
    rests(page)
    recovered = ch.patch(run, text, other, by="layer", place=place).recovered
    for row, wanted in zip(numbers(page, grid), recovered.values(), strict=True):
        assert row == pytest.approx(wanted.tolist(), rel=1e-3, abs=1e-3)


def test_patching_is_that_of_python_and_a_click_tells_what_a_cell_brings(tabs, demo):
    page = tabs.open("intervene", source=TEXT, tab="patch", place=0)
    page.get_by_test_id("patch-text").fill(OTHER)
    page.get_by_test_id("patch-look").click()
    comes_to(page, other=OTHER)
    expect(page.get_by_test_id("patch-decoder")).to_be_visible()
    rests(page)
    target = ch.trace(demo, TEXT).sides["decoder"].ids[1:]
    found = ch.patch(demo, TEXT, OTHER, target, by="layer", place=0)
    drawn = numbers(page, "patch-encoder") + numbers(page, "patch-decoder")
    for row, recovered in zip(drawn, found.recovered.values(), strict=True):
        assert row == pytest.approx(recovered.tolist(), abs=1e-3)
    page.get_by_test_id("patch-encoder").locator("tbody tr").nth(1).locator("button").nth(1).click()
    expect(page.get_by_test_id("patch-chosen")).to_contain_text("of the way")


def test_tokens_are_coloured_by_their_surprise(tabs, demo):
    page = tabs.open("model")
    expect(page.get_by_test_id("surprise")).to_be_visible()
    told = [one.get_attribute("data-surprise") for one in page.locator("[data-surprise]").all()]
    wanted = ch.trace(demo, SOURCE).surprise.tolist()
    assert [float(one) for one in told if one] == pytest.approx(
        [one for one in wanted if not math.isnan(one)], abs=1e-4
    )


def test_a_weight_is_shown_as_what_it_adds(tabs, demo):
    page = tabs.open("head", site=SITE, head=1, query=2, key=1)
    page.get_by_test_id("weighted").click()
    comes_to(page, of="added")
    steady(page, "head")
    wanted = ch.trace(demo, SOURCE)[SITE].head[1].weighted[2, 0].item()
    canvas = page.get_by_test_id("heat-map").locator("canvas")
    canvas.focus()
    page.keyboard.press("ArrowLeft")
    rests(page)
    eventually(page, lambda: says(page.get_by_test_id("reading-value").first.inner_text(), wanted))


@pytest.mark.parametrize("view", ["head", "steps", "meaning", "decoding", "intervene"])
def test_the_lines_that_are_copied_run(tabs, view):
    page = tabs.open(view, site="decoder.1.attention", head=1, query=2, key=1)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    steady(page, view)
    page.get_by_test_id("copy-python").click()
    expect(page.get_by_test_id("python-said")).to_have_text("Copied")
    lines = page.evaluate("navigator.clipboard.readText()")
    assert lines.startswith("import clearhead as ch")
    exec(compile(lines, "copied", "exec"), {})
