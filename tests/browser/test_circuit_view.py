"""The view Circuit: its edges, figures and patched edges are those of `ch.circuits`, on five kinds of run."""

import re

import pytest
import torch
from playwright.sync_api import expect

import clearhead as ch
from clearhead.circuits.circuit import Faithfulness, choose
from clearhead.circuits.truth import find_truth
from clearhead.experiments.patching import contrast_texts
from clearhead.experiments.rasp_run import compile_for_task, compile_to_run
from clearhead.rasp import PROGRAMS
from clearhead.serve.program import contrast_program
from tests.browser.looking import serving
from tests.browser.watching import Tabs, comes_to, rests, says
from tests.training.small_runs import classifying, documents, filling, trained

pytestmark = pytest.mark.slow

TEXTS = {
    "translator": ("vierundzwanzig", "siebenundzwanzig"),
    "decoder": ("the cat eats the plum, ", "the cat eats the pear, "),
    "fill": ("the cat <mask> the plum", "the cat eats <mask> plum"),
    "classifier": ("red plum", "red cow"),
    "program": ("a b b c", "b b b c"),
}


def run_of(kind, factory, demo):
    if kind == "translator":
        return demo
    if kind == "program":
        return ch.load(compile_to_run(PROGRAMS["reverse"], factory.mktemp("reverse") / "run").path, device="cpu")
    return trained({"decoder": documents, "fill": filling, "classifier": classifying}[kind], factory)


@pytest.fixture(scope="module", params=TEXTS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def run(kind, tmp_path_factory, demo):
    return run_of(kind, tmp_path_factory, demo)


@pytest.fixture(scope="module")
def pair(kind, run):
    """Two texts with different answers: those above, or the first word of the second list that has another one."""
    text, other = TEXTS[kind]
    if kind not in ("decoder", "fill"):
        return text, other
    words = ("the", "cat", "dog", "cow", "eats", "apple", "pear", "plum")
    text = "the cat eats the" if kind == "decoder" else "the <mask> eats the plum"
    for word in words:
        for place, old in enumerate(text.split()):
            other = " ".join(word if at == place and old != "<mask>" else one for at, one in enumerate(text.split()))
            try:
                contrast_texts(run, [text], [other])
            except ch.ClearheadError:
                continue
            return text, other
    raise AssertionError("no two texts of this run have different answers")


@pytest.fixture(scope="module")
def window(chromium, run):
    with serving(run) as home:
        tabs = Tabs(chromium, home)
        yield tabs
        tabs.check()
        tabs.close()


@pytest.fixture
def contrast(kind, run, pair):
    return contrast_program(run, *pair) if kind == "program" else contrast_texts(run, *([one] for one in pair)).contrast


def drawn(page):
    """The edges of the picture."""
    return [one.get_attribute("data-edge") for one in page.locator("[data-edge]:not(.missed)").all()]


def test_the_numbers_are_those_of_python(kind, window, pair, contrast):
    text, other = pair
    page = window.open("circuit", source=text, against=other, method="exact")
    expect(page.get_by_test_id("faithfulness")).to_have_text(re.compile(r"\d"))
    rests(page)
    graph = contrast.graph
    circuit = ch.circuits.find_circuit(contrast, method="exact", edges=len(graph.edges))
    faithfulness = Faithfulness(contrast)
    slider = page.get_by_test_id("circuit-size")
    sizes = int(slider.get_attribute("max")) + 1
    for step in sorted({0, sizes // 2, sizes - 1}):
        slider.fill(str(step))
        rests(page)
        count, of = map(int, re.findall(r"\d+", page.get_by_test_id("circuit-edges").inner_text()))
        assert of == len(graph.edges)
        chosen = choose(graph, circuit.mean.abs(), count)
        assert int(chosen.sum()) == count
        names = {str(graph.edges[number]) for number in chosen.nonzero().flatten().tolist()}
        assert set(drawn(page)) == names
        kept, left = faithfulness(torch.stack([chosen, ~chosen]))
        assert says(page.get_by_test_id("faithfulness").inner_text(), round(kept, 2))
        assert says(page.get_by_test_id("completeness").inner_text(), round(1 - left, 2))
    found = {str(scored.edge): scored.score for scored in circuit.edges}
    for one in page.get_by_test_id("pick-edge").all():
        told = float(one.get_attribute("data-score"))
        assert told == pytest.approx(found[one.get_attribute("data-name")], abs=1e-4)


def test_a_click_on_an_edge_patches_it(window, pair, contrast):
    text, other = pair
    page = window.open("circuit", source=text, against=other, method="exact")
    first = page.get_by_test_id("pick-edge").first
    expect(first).to_be_visible()
    name = first.get_attribute("data-name")
    line = page.locator(f'[data-edge="{name}"] .reach')
    line.dispatch_event("click")
    comes_to(page, edge=name)
    told = page.get_by_test_id("circuit-patched")
    expect(told).to_have_text(re.compile("→"))
    rests(page)
    after = contrast.patched(contrast.graph.select([name])[None]).mean().item()
    before = contrast.clean_value.mean().item()
    numbers = told.locator("b").inner_text().split("→")
    assert says(numbers[0].strip(), before)
    assert says(numbers[1].strip(), after)


def test_the_truth_of_a_program_is_a_second_layer(kind, window, pair, run):
    text, other = pair
    page = window.open("circuit", source=text, against=other, method="exact")
    expect(page.get_by_test_id("faithfulness")).to_have_text(re.compile(r"\d"))
    if kind != "program":
        expect(page.get_by_test_id("circuit-truth")).to_have_count(0)
        return
    compiled = compile_for_task(PROGRAMS["reverse"]).compiled
    graph = ch.circuits.Graph(run.model)
    shorter = type(PROGRAMS["reverse"])(**{**vars(PROGRAMS["reverse"]), "length": 5, "example": ()})
    truth = find_truth(graph, shorter, compiled, most_pairs=300)
    true = {str(graph.edges[number]) for number in truth.alone.nonzero().flatten().tolist()}
    hits = {one.get_attribute("data-edge") for one in page.locator("[data-edge].hit").all()}
    missed = {one.get_attribute("data-edge") for one in page.locator("[data-edge].missed").all()}
    assert hits | missed == true
    expect(page.get_by_test_id("circuit-grade")).to_contain_text(f"{len(hits)} of {len(true)} true edges")
    page.get_by_test_id("circuit-truth").click()
    comes_to(page, truth="off")
    expect(page.locator("[data-edge].hit")).to_have_count(0)


def test_a_text_to_compare_with_is_found_or_asked_for(kind, window, pair):
    page = window.open("circuit", source=pair[0])
    if kind == "fill":  # this run, hardly trained, fills every blank alike
        expect(page.get_by_test_id("view-circuit")).to_contain_text("Type a text as long as this one")
        expect(page.get_by_role("alert")).to_have_count(0)
        return
    expect(page.get_by_test_id("faithfulness")).to_have_text(re.compile(r"\d"))
    expect(page.get_by_test_id("circuit-text")).not_to_have_value("")


def test_texts_that_cannot_be_compared_are_told(window, pair):
    window.provoked.append("400")
    page = window.open("circuit", source=pair[0], against=f"{pair[0]} {pair[0]}")
    expect(page.get_by_test_id("circuit-error")).to_have_text(re.compile("tokens|length"))
