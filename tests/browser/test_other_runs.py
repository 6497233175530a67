"""Views of runs that are not the demo's: turned queries, a long text, and a compiled program."""

import io
import random
import re
import time
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import expect

import clearhead as ch
from tests.browser.looking import serving
from tests.browser.watching import PATIENCE, Tabs, number_in, says, steady

pytestmark = pytest.mark.slow

WORDS = [
    "the",
    "cat",
    "dog",
    "sees",
    "small",
    "big",
    "red",
    "blue",
    "house",
    "tree",
    "and",
    "runs",
    "over",
    "a",
    "bird",
]
LONG = " ".join(random.Random(2).choices(WORDS, k=400))
SHORT = " ".join(LONG.split()[:30])
SITE = "decoder.1.attention"


@pytest.fixture(scope="module")
def turning_folder(browser_program, tmp_path_factory):
    """A decoder with rotary positions that reads 512 tokens, hardly trained."""
    from clearhead.cli import run

    folder = tmp_path_factory.mktemp("turning")
    text = folder / "text.txt"
    lines = (" ".join(random.Random(seed).choices(WORDS, k=12)) for seed in range(200))
    text.write_text("\n".join(lines), encoding="utf-8")
    options = {"task": "generate", "text": text, "size": "60k", "position": "rotary", "steps": 2, "context": 512}
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    assert run(["train", str(folder / "run"), *arguments, "--tokenizer", "word", "--device", "cpu"]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def compiled_folder(browser_program, tmp_path_factory):
    from clearhead.experiments.rasp_run import compile_to_run
    from clearhead.rasp import PROGRAMS

    folder = tmp_path_factory.mktemp("compiled") / "run"
    compile_to_run(PROGRAMS["reverse"], folder)
    return folder


@pytest.fixture(scope="module")
def turning_home(turning_folder):
    with serving(turning_folder) as address:
        yield address


@pytest.fixture(scope="module")
def compiled_home(compiled_folder):
    with serving(compiled_folder) as address:
        yield address


@pytest.fixture
def turning(chromium, turning_home):
    made = Tabs(chromium, turning_home)
    yield made
    made.check()
    made.close()


@pytest.fixture
def compiled(chromium, compiled_home):
    made = Tabs(chromium, compiled_home)
    yield made
    made.check()
    made.close()


def test_the_turn_of_a_query_is_a_step_of_its_own(turning, turning_folder):
    page = turning.open("steps", source=SHORT, site=SITE, head=0, query=20, key=3, at=1)
    cell = ch.trace(ch.load(turning_folder, device="cpu"), SHORT)[SITE].head[0].cell(20, 3)
    expect(page.get_by_test_id("turned-query")).to_be_visible()
    lines = page.get_by_test_id("cell").locator(".line")

    def first_number(name):
        line = lines.filter(has=page.locator("dt", has_text=re.compile(name)))
        return line.locator(".shown .number").inner_text()

    for name, vector in (
        ("^W_Q · input", cell.turn.query),
        ("^turned query", cell.query),
        ("^W_K · input", cell.turn.key),
        ("^turned key", cell.key),
    ):
        assert number_in(first_number(name))[0] == pytest.approx(vector[0], rel=1e-2, abs=1e-4), name
    assert abs(cell.turn.query[0] - cell.query[0]) > 0.01
    turns = page.get_by_test_id("turn").all_inner_texts()
    assert len(turns) == 2
    assert says(turns[0].split("→ (")[1], cell.query[0])


def test_a_decoder_shows_the_keys_it_may_look_at(turning):
    page = turning.open("steps", source=SHORT, site=SITE, head=0, query=20, at=4)
    rows = page.locator("g.row desc").all_text_contents()
    places = [int(re.match(r"Key (\d+):", row)[1]) for row in rows]
    assert len(places) >= 8
    assert max(places) <= 20
    assert not any("masked −∞" in row for row in rows)


PIXELS = """(canvas, [rows, columns]) => {
    const context = canvas.getContext("2d");
    return rows.map(y => columns.map(x => {
        const part = context.getImageData(Math.round(x * canvas.width), Math.round(y * canvas.height), 9, 9).data;
        return [...Array(81).keys()].map(each => [...part.slice(each * 4, each * 4 + 3)].join());
    }));
}"""


def test_a_map_of_400_tokens_is_not_blank_and_its_masked_half_is_hatched(turning):
    page = turning.open("head", source=LONG, site=SITE, head=0)
    steady(page, "head")
    bar = page.get_by_test_id("colour-bar")
    expect(bar).to_have_attribute("aria-label", re.compile("each row from 0 to its highest; hatched cells are masked"))
    expect(page.get_by_test_id("scale-by-itself")).to_have_text("Each row has its own scale, as there are 400 keys.")
    canvas = page.get_by_test_id("heat-map").locator("canvas")
    masked = late = []
    end = time.monotonic() + PATIENCE / 1000
    while len({*masked}) < 2 and time.monotonic() < end:  # until it is drawn
        page.wait_for_timeout(100)
        [[masked], [late]] = (canvas.evaluate(PIXELS, [[y], [x]])[0] for y, x in ((0.3, 0.8), (0.9, 0.4)))
    assert 2 <= len(set(masked)) <= 12, "lines across one ground"
    darkness = [255 - int(pixel.split(",")[2]) for pixel in late]
    assert sum(darkness) / len(darkness) > 10, "weights of some thousandths are seen"


def test_a_saved_map_is_twice_as_fine_with_title_and_colour_bar(turning):
    page = turning.open("head", source=SHORT, site=SITE, head=0)
    steady(page, "head")
    figure = page.locator("figure", has=page.get_by_test_id("heat-map"))
    with page.expect_download() as told:
        figure.get_by_test_id("save").click()
    image = Image.open(io.BytesIO(Path(told.value.path()).read_bytes())).convert("RGB")
    assert image.width >= 2 * 30 * 14, "every token has room for its letters"
    rows = [[image.getpixel((x, y)) for x in range(image.width)] for y in range(image.height - 400, image.height, 6)]
    brown = [[pixel for pixel in row if pixel[0] - pixel[2] > 4] for row in rows]
    bar = max(brown, key=lambda row: len(set(row)))
    assert len(set(bar)) > 20, "a colour bar below the map"
    darkness = [sum(pixel) for pixel in bar]
    assert darkness[0] > darkness[len(darkness) // 2] > darkness[-1]


def test_a_head_that_does_not_scale_is_not_said_to(compiled):
    page = compiled.open("similarity", source="a b c")
    figure = page.locator("figure", has=page.get_by_role("heading", name="Why the scores are scaled"))
    expect(figure).to_contain_text("This head does not scale its scores (dot product)")
    expect(figure.locator("label b")).to_have_text("÷ 1")
    expect(figure).not_to_contain_text("as this head does")
    expect(page.locator("main")).to_contain_text("this head does not scale")


def test_a_compiled_table_is_not_called_learned(compiled):
    page = compiled.open("positions", source="a b c")
    own = page.locator(".kind.used")
    expect(own.get_by_role("heading")).to_have_text("Compiled")
    expect(own).to_contain_text("the compiler wrote")
    expect(page.locator("main")).not_to_contain_text("this run has learned")


def test_parts_are_named_in_words(compiled):
    page = compiled.open("head", source="a b c")
    made = page.locator("p.made")
    expect(made).to_contain_text("dot product · argmax · no positions inside attention · no mask · kernel")
