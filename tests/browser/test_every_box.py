"""Every box of the model's picture opens its own numbers: each name of a trace is clicked to, and read.

What is read is held against a forward pass in which nothing of clearhead.tracing takes part
(tests/tracing/observing.py), for every kind of run.
"""

import re
from dataclasses import replace

import pytest
import torch

from tests.browser.looking import serving
from tests.browser.watching import Tabs, address_of, comes_to, number_in, rests, says, shown
from tests.covering import share_of
from tests.tracing.observing import observed
from tests.training import small_runs

pytestmark = pytest.mark.slow
HEAD = 1


def rotary(folder):
    """A decoder as Llama: rotary positions, RMSNorm, SwiGLU, shared key heads."""
    from clearhead.model import presets

    task, source, tokenizing, _ = small_runs.documents(folder)
    return task, source, tokenizing, presets.llama(small_runs.SIZE._replace(n_kv_heads=1), vocabulary=320)


def note(folder):
    """The notes' block and heads: norm(FFN(a) + a) with a = Attention(x); slices of the input, values of low rank."""
    from clearhead.attention.heads import SlicedHeads
    from clearhead.model.arrangements import SingleResidualNorm

    task, source, tokenizing, spec = small_runs.documents(folder)
    block = spec.blocks[0]
    attention = replace(block.attention, heads=SlicedHeads(block.attention.heads.count, value_rank=3))
    return (
        task,
        source,
        tokenizing,
        replace(spec, blocks=(replace(block, attention=attention, arrangement=SingleResidualNorm()),) * 2),
    )


def compiled(factory):
    from clearhead.experiments.rasp_run import compile_to_run
    from clearhead.rasp import PROGRAMS
    from clearhead.training.run import load

    return load(compile_to_run(PROGRAMS["histogram"], factory.mktemp("compiled") / "histogram").path, device="cpu")


RUNS = {
    "translator": (lambda factory: small_runs.trained(small_runs.translating, factory), "zwei null"),
    "decoder with rotary positions": (lambda factory: small_runs.trained(rotary, factory, steps=5), "the cat eats"),
    "classifier": (lambda factory: small_runs.trained(small_runs.classifying, factory), "red plum"),
    "fill": (lambda factory: small_runs.trained(small_runs.filling, factory), "the <mask> eats"),
    "compiled program": (compiled, "a b c a"),
    "the note's block": (lambda factory: small_runs.trained(note, factory, steps=5), "the cat eats"),
}


SOME = ("translator",)
"""Of these every name is read in `make test`: both stacks and what is between them. Of another arrangement a test below
sees which boxes there are, and tests/tracing/test_inner.py holds every value to what passed there.
"""


@pytest.fixture(
    scope="module", params=[name if name in SOME else pytest.param(name, marks=pytest.mark.thorough) for name in RUNS]
)
def case(request, tmp_path_factory):
    """A run, its text, the text's trace, and the address of its explorer."""
    from clearhead.experiments.tracing import trace

    make, text = RUNS[request.param]
    run = make(tmp_path_factory)
    with serving(run) as home:
        yield run, text, trace(run, text), home


@pytest.fixture
def page(case, chromium):
    _, text, _, home = case
    tabs = Tabs(chromium, home)
    yield tabs.open("model", source=text, window={"width": 2000, "height": 1000})
    tabs.check()
    tabs.close()


def open_box(page, name, **wanted):
    """Opens a box by a click (an output by one of its places), and waits for the numbers that are asked for."""
    if name.endswith(".output"):
        page.get_by_test_id(f"output-{wanted.pop('place')}").first.click()
    else:
        page.get_by_test_id(f"box-{name}").locator("rect").first.click()
    rests(page)
    for what, value in wanted.items():
        choice = page.get_by_test_id(f"box-{what}")
        if choice.count():
            choice.select_option(str(value))
    wait_for(
        page, box=name, **{what: value for what, value in wanted.items() if page.get_by_test_id(f"box-{what}").count()}
    )


def wait_for(page, **wanted):
    page.wait_for_function(
        """wanted => {
            const list = document.querySelector("[data-testid=box-values]");
            const shown = list && JSON.parse(list.dataset.shown);
            return shown && Object.entries(wanted).every(([name, value]) => String(shown[name]) === String(value));
        }""",
        arg=wanted,
    )


def read(page, name, *, products=False):
    """What a row says once it is clicked: the place it stands at, the number there, and the largest others.

    `products`: wait for those of a linear map too. They make the row higher when they come, and a click on the next row
    is lost where that row moves away between the press and the release.
    """
    row = page.locator(f"[data-testid=box-values] > [data-name='{name}'][data-made=true]")
    row.locator("button.head").click()
    row.locator(".more").wait_for()
    if products:
        row.get_by_test_id("products").wait_for()
    said = row.evaluate(
        """row => ({
            place: Number(row.dataset.place),
            number: row.querySelector("[data-testid=number]").textContent,
            largest: [...row.querySelectorAll(".largest [data-place]")]
                .map(one => [Number(one.dataset.place), one.querySelector(".number").textContent]),
        })"""
    )
    return said["place"], said["number"], said["largest"]


def boxes_to_read(made):
    """Every box, or in `make test` one of each kind: in the decoder's first layer the cross-attention with its sum and
    norm, the attention and the feed-forward; the encoder's attention; those of no layer. The others are drawn alike.
    """
    every = made.inner.names.boxes.values()
    return [
        box
        for box in every
        if share_of(4) == 4
        or re.match(r"decoder\.0\.cross|\w+\.0\.attention$|decoder\.0\.feed_forward$|\D+$", box.name)
    ]


def test_every_name_of_the_trace_is_read_in_its_box(case, page):
    run, _, made, _ = case
    device_rows = [torch.tensor([side.ids]) for side in made.sides.values()]
    wanted = observed(run.model, *device_rows)
    seen = set()
    boxes = boxes_to_read(made)
    for box in boxes:
        token = len(made.sides[box.side].ids) - 1
        place = 0 if box.values[0].rows == "whole" else token
        choices = {"place": place} if box.kind == "output" else {"token": token, "key": 1, "head": HEAD}
        heads = next((site.n_heads for site in made.sites.values() if site.name == box.name), 1)
        choices |= {"head": min(HEAD, heads - 1)} if "head" in choices else {}
        open_box(page, box.name, **choices)
        for value in box.values:
            where, number, largest = read(page, value.name, products=bool(value.map))
            whole = wanted[value.name]
            row = {"key": 1, "query": token}.get(value.rows, 0)
            vector = whole if value.rows == "none" else whole[choices["head"], row] if value.per_head else whole[row]
            at = where if len(vector) > 1 else 0
            assert says(number, vector[at].item()), f"{value.name}[{at}] is {vector[at].item()}, and reads {number}"
            for other, text in largest:
                assert says(text, vector[other].item()), f"{value.name}[{other}]: {vector[other].item()}, reads {text}"
            seen.add(value.name)
    assert seen == {value.name for box in boxes for value in box.values}
    assert {value.name for box in made.inner.names.boxes.values() for value in box.values} == set(made.names)
    assert set(made.names) == set(wanted)


def test_the_boxes_drawn_are_those_of_the_model(case, page):
    _, _, made, _ = case
    drawn = page.locator("[data-testid^=box-]").evaluate_all("all => all.map(one => one.dataset.testid.slice(4))")
    assert drawn == [name for name, box in made.inner.names.boxes.items() if box.kind != "output"]


@pytest.mark.parametrize("case", ["the note's block"], indirect=True)
def test_the_note_s_block_has_neither_sum_nor_norm_around_its_attention(case, page):
    drawn = page.locator("[data-testid^='box-decoder.0.']")
    assert drawn.evaluate_all("all => all.map(one => one.dataset.testid)") == [
        "box-decoder.0.attention",
        "box-decoder.0.feed_forward",
        "box-decoder.0.feed_forward.add",
        "box-decoder.0.feed_forward.norm",
    ]


@pytest.mark.parametrize("case", ["the note's block"], indirect=True)
def test_a_sliced_head_shows_the_slice_that_it_reads_and_its_latent_values(case, page):
    """Nothing is said of the numbers that head 1 does not read, in the Steps or in the products of a query."""
    run, _, made, _ = case
    width = run.model.spec.d_model // made["decoder.0.attention"].n_heads
    open_box(page, "decoder.0.attention", token=1, key=1, head=HEAD)
    read(page, "decoder.0.attention.query", products=True)
    products = page.get_by_test_id("products")
    products.get_by_role("button").click()
    rests(page)
    said = products.locator("td:first-child").all_inner_texts()
    assert sorted(int(number_in(text)[0]) for text in said) == [*range(HEAD * width, (HEAD + 1) * width)]
    page.get_by_role("button", name="The steps of this query and key").click()
    shown(page, "steps")
    cell = page.get_by_test_id("cell")
    cell.get_by_text(f"input · numbers {HEAD * width}–{(HEAD + 1) * width - 1}").wait_for()
    latent = cell.locator(".line").filter(has_text="V_down of")
    latent.get_by_role("button").click()
    values = [number_in(text)[0] for text in latent.locator("li .number").all_inner_texts()]
    assert values == pytest.approx(made.value("decoder.0.attention.latent_value")[HEAD, 1].tolist(), rel=1e-3)


@pytest.mark.parametrize("case", ["translator"], indirect=True)
class TestTheArithmetic:
    def test_of_a_norm_is_written_out(self, case, page):
        _, _, made, _ = case
        open_box(page, "encoder.0.attention.norm", token=2)
        rows = page.get_by_test_id("box-values").locator("[data-made=true]")
        place = int(rows.last.get_attribute("data-place"))
        values = {
            name: made.value(f"encoder.0.attention.norm.{name}") for name in ("mean", "variance", "gamma", "beta")
        }
        x, out = (made.value(f"encoder.0.attention.{name}")[2, place].item() for name in ("residual", "normed"))
        equation = page.locator("[data-name='encoder.0.attention.norm.normalized'] .worked").inner_text()
        for said, wanted in zip(numbers(equation), [x, values["mean"][2, 0], values["variance"][2, 0]], strict=False):
            assert says(said, float(wanted))
        equation = page.locator("[data-name='encoder.0.attention.normed'] .worked").inner_text()
        said = numbers(equation)
        assert says(said[0], values["gamma"][place].item())
        assert says(said[2], values["beta"][place].item())
        assert says(said[-1], out)

    def test_of_a_hidden_unit_is_the_sum_of_its_products(self, case, page):
        _, _, made, _ = case
        open_box(page, "decoder.0.feed_forward", token=1)
        name = "decoder.0.feed_forward.pre_activation"
        place, number, _ = read(page, name)
        products = page.get_by_test_id("products")
        assert says(number, made.value(name)[1, place].item())
        products.get_by_role("button").click()
        rests(page)
        amounts = [number_in(text)[0] for text in products.locator("td.amount").all_inner_texts()]
        weight, bias = (getattr(run_network(case), part)[place] for part in ("weight", "bias"))
        assert len(amounts) == len(weight)
        assert sum(amounts) + bias.item() == pytest.approx(made.value(name)[1, place].item(), abs=1e-2)

    def test_of_a_sum_has_both_its_terms(self, case, page):
        _, _, made, _ = case
        open_box(page, "decoder.0.cross.add", token=1)
        place, *_ = read(page, "decoder.0.cross.residual")
        equation = numbers(page.locator("[data-name='decoder.0.cross.residual'] .worked").inner_text())
        names = ("decoder.0.attention.normed", "decoder.0.cross.out", "decoder.0.cross.residual")
        for said, name in zip(equation, names, strict=True):
            assert says(said, made.value(name)[1, place].item())

    def test_another_unit_is_chosen_and_the_address_keeps_it(self, case, page):
        _, _, made, _ = case
        open_box(page, "encoder.0.feed_forward", token=1)
        name = "encoder.0.feed_forward.hidden"
        read(page, name)
        page.locator(f"[data-name='{name}'] .largest [data-place]").nth(3).click()
        rests(page)
        place = int(page.locator(f"[data-name='{name}']").get_attribute("data-place"))
        fresh = page.context.new_page()
        fresh.goto(address_of(page))
        shown(fresh, "model")
        wait_for(fresh, box="encoder.0.feed_forward", token=1)
        row = fresh.locator(f"[data-name='{name}']")
        assert int(row.get_attribute("data-place")) == place
        assert says(row.get_by_test_id("number").inner_text(), made.value(name)[1, place].item())

    def test_an_attention_box_leads_to_its_head_and_its_steps(self, case, page):
        open_box(page, "decoder.0.cross", token=1, key=2, head=1)
        page.get_by_role("button", name="The steps of this query and key").click()
        shown(page, "steps")
        comes_to(page, site="decoder.0.cross", head=1)


def numbers(equation):
    """The numbers of an equation "= 1.2 · (−0.3) + 4 = 5", as they stand there."""
    return re.findall(r"−?\d+(?:\.\d+)?(?:e[−-]?\d+)?|−∞", equation)


def run_network(case):
    run = case[0]
    return run.model.decoder.stack.blocks[0].feed_forward.up


@pytest.mark.parametrize("case", ["translator"], indirect=True)
def test_nothing_hangs_over_on_a_phone_and_small_text_can_be_read(case, chromium):
    _, text, _, home = case
    tabs = Tabs(chromium, home)
    page = tabs.open("model", source=text, window={"width": 390, "height": 844})
    for box in ("encoder.0.attention.norm", "decoder.0.cross", "decoder.0.feed_forward"):
        open_box(page, box)
        page.locator("[data-testid=box-values] button.head").last.click()
        rests(page)
        panel = page.get_by_test_id("detail")
        assert panel.evaluate("one => one.scrollWidth <= one.clientWidth")
        sizes = panel.evaluate(
            "one => [...one.querySelectorAll('*')].filter(e => e.childNodes.length && [...e.childNodes]"
            ".some(n => n.nodeType === 3 && n.textContent.trim())).map(e => parseFloat(getComputedStyle(e).fontSize))"
        )
        assert min(sizes) >= 11
    tabs.check()
    tabs.close()
