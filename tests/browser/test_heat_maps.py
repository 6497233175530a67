"""Heat maps: their scales, what they say, how they go together with the arcs, and what is saved of them."""

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.browser.watching import SOURCE, comes_to, number_in, rests, steady

pytestmark = pytest.mark.slow

SITE, HEAD = "decoder.0.attention", 1
SVG = "{http://www.w3.org/2000/svg}"


def test_a_map_is_read_and_saved_with_all_that_it_takes_to_publish_it(tabs, demo):
    import clearhead as ch

    trace = ch.trace(demo, SOURCE)
    head, tokens = trace[SITE].head[HEAD], trace.sides["decoder"].tokens
    written = [row[0].text for row in trace.candidates]
    page = tabs.open("head", site=SITE, head=HEAD)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    steady(page, "head")
    reads_like(page, head, len(tokens))
    check_scales(page)
    size = check_svg(save(page, "map-svg"), head, tokens, written)
    check_png(save(page, "map-png"), size)
    check_numbers(page, head, tokens, written)
    again = tabs.reopen(page)
    expect(again.get_by_role("button", name="Log", exact=True)).to_have_attribute("aria-pressed", "true")


def point(page, n, query, key):
    """Go to a cell by the arrow keys, from the first."""
    page.get_by_test_id("heat-map").locator("canvas").focus()
    for _ in range(n):
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowLeft")
    for arrow, times in (("ArrowDown", query), ("ArrowRight", key)):
        for _ in range(times):
            page.keyboard.press(arrow)
    rests(page)


def reads_like(page, head, n):
    """A cell says its percent where it is pointed at, and its arc stands out; a token of the arcs marks the map."""
    point(page, n, 3, 1)
    tip = page.get_by_test_id("map-tip")
    expect(tip).to_contain_text("%")
    told, _ = number_in(tip.locator("strong").inner_text())
    assert told == pytest.approx(head.weight[3, 1].item(), rel=6e-3)
    assert number_in(page.get_by_test_id("reading-value").inner_text())[0] == pytest.approx(
        head.weight[3, 1].item(), abs=6e-5
    )
    assert page.locator(".arcs path.met").count() == int(head.weight[3, 1].item() >= 0.012)
    expect(page.locator("[data-end=query][data-token='3']")).to_have_class(re.compile("here"))
    point(page, n, 1, 3)
    expect(tip).to_contain_text("masked")
    canvas = page.get_by_test_id("heat-map").locator("canvas")
    page.locator("h1").hover()
    page.get_by_test_id("to-steps").focus()
    rests(page)
    before = canvas.evaluate("each => each.toDataURL()")
    page.locator("[data-end=query][data-token='2']").hover()
    page.wait_for_function("([each, before]) => each.toDataURL() !== before", arg=[canvas.element_handle(), before])
    page.locator("h1").hover()


def check_scales(page):
    bar = page.get_by_test_id("colour-bar")
    expect(bar).to_have_attribute("aria-label", "Colours: weight from 0 % to 100 %; hatched cells are masked")
    page.get_by_role("button", name="Per row").click()
    comes_to(page, colours="row")
    expect(bar).to_have_attribute("aria-label", re.compile("each row from 0 to its highest"))
    page.get_by_role("button", name="Log", exact=True).click()
    comes_to(page, colours="log")
    expect(bar).to_have_attribute("aria-label", re.compile("from ≤ 0.01 % to 100 %, logarithmic scale"))
    expect(page.get_by_test_id("scale-by-itself")).to_have_count(0)


def save(page, button):
    with page.expect_download() as told:
        page.get_by_test_id(button).click()
    return told.value.path()


def check_svg(saved, head, tokens, written):
    """A rectangle a cell that may be attended, with its number; hatching for the others; colour bar and caption."""
    root = ElementTree.fromstring(Path(saved).read_bytes())
    [cells] = root.findall(f".//{SVG}g[@data-part='cells']")
    allowed = head.allowed(0, len(tokens))
    titles = [one.text for one in cells.iter(f"{SVG}title")]
    assert len(titles) == int(allowed.sum())
    assert len(cells.findall(f"{SVG}path[@data-part='masked']")) == 1
    for title, (query, key) in zip(titles, allowed.nonzero().tolist(), strict=True):
        told, _ = number_in(title.rsplit(": ", 1)[1])
        assert told == pytest.approx(head.weight[query, key].item(), rel=6e-3, abs=1e-9), title
    words = [one.text.replace("\u2068", "").replace("\u2069", "") for one in root.iter(f"{SVG}text")]
    rows = [f"{shown(one)} → {shown(next_one)}" for one, next_one in zip(tokens, written, strict=True)]
    assert [one for one in words if one in rows] == rows
    assert root.find(f".//{SVG}g[@data-part='bar']") is not None
    caption = " ".join(words[words.index("masked") + 1 :])
    for part in ("Run run", "step 90", SOURCE[:20], f"({SITE}), head {HEAD}", "logarithmic scale"):
        assert part in caption, part
    return float(root.get("width")), float(root.get("height"))


def check_png(saved, size):
    image = Image.open(io.BytesIO(Path(saved).read_bytes()))
    assert image.size == tuple(round(2 * side) for side in size)
    assert len(image.convert("RGB").getcolors(1 << 24)) > 20


def shown(token):
    return re.sub("^[ ▁]", "·", token) or "∅"


def check_numbers(page, head, tokens, written):
    """They are pasted with the tokens; what is masked is empty."""
    page.get_by_test_id("map-numbers").click()
    n = len(tokens)
    expect(page.get_by_test_id("numbers-told")).to_have_text(f"Copied {n} × {n} numbers, with the tokens.")
    first, *rows = page.evaluate("navigator.clipboard.readText()").rstrip("\n").split("\n")
    assert first.split("\t") == ["", *map(shown, tokens)]
    weight, allowed = head.weight, head.allowed(0, n)
    for query, row in enumerate(rows):
        name, *numbers = row.split("\t")
        assert name == f"{shown(tokens[query])} → {shown(written[query])}"
        for key, number in enumerate(numbers):
            assert (number == "") == (not allowed[query, key])
            assert number == "" or float(number) == pytest.approx(weight[query, key].item(), rel=1e-6)
