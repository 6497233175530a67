"""Pages for notebooks, opened from disk in a browser: several on one page, read by pointer and by keyboard."""

import pytest
from playwright.sync_api import expect

from clearhead.tracing.trace import trace_model
from tests.browser.watching import eventually
from tests.model.small import both_spec, built, words

pytestmark = pytest.mark.slow

GREY = """canvas => {
    const [x, y] = [canvas.width - 12, Math.round(canvas.height * 0.45)];
    const pixels = canvas.getContext("2d").getImageData(x - 8, y, 16, 16).data;
    return new Set([...Array(256).keys()].map(i => [...pixels.slice(i * 4, i * 4 + 3)].join())).size;
}"""
"""How many colours there are in the masked corner of a causal map."""


@pytest.fixture(scope="module")
def trace():
    tokens = {
        "encoder": ["drei", "ثلاثة", "<b>", "東京", "&amp;", "a", "</s>"],
        "decoder": ["<s>", "three", "·", "x", "y"],
    }
    return trace_model(built(both_spec()), words(1, 7), words(1, 5), pieces=tokens)


def test_pages_in_one_notebook_are_live_and_tell_the_trace_s_numbers(chromium, trace, tmp_path):
    shown = trace, trace["decoder.1.cross"], trace["decoder.0.attention"].head[1]
    saved = tmp_path / "notebook.html"
    saved.write_text("<!doctype html><meta charset=utf-8>" + "".join(one._repr_html_() for one in shown), "utf-8")
    context = chromium.new_context(viewport={"width": 900, "height": 2200}, offline=True)
    page, complaints, asked = context.new_page(), [], []
    page.on("console", lambda told: told.type == "error" and complaints.append(told.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(saved.as_uri())
    whole, site, head = (frame.content_frame for frame in page.locator("iframe").all())

    check_cell(whole, trace["decoder.1.cross"].head[0], 2, 4)
    whole.get_by_role("button", name="head 2").click()
    check_cell(whole, trace["decoder.1.cross"].head[2], 4, 1)
    whole.get_by_label("Attention").select_option("decoder.0.attention")
    check_cell(whole, trace["decoder.0.attention"].head[2], 3, 1)
    eventually(page, says_masked, whole, 1, 3, "three → x masked")
    check_cell(site, trace["decoder.1.cross"].head[0], 0, 3)  # the first page left it alone
    expect(head.get_by_label("Head", exact=True)).to_be_hidden()
    check_cell(head, trace["decoder.0.attention"].head[1], 4, 0)

    for name in ("Log", "Per row"):
        head.get_by_role("button", name=name).click()
        expect(head.get_by_role("button", name=name)).to_have_attribute("aria-pressed", "true")
    expect(head.locator("#bar")).to_contain_text("the row’s highest")
    assert 2 <= head.locator("#map").evaluate(GREY) < 40, "lines across one ground"
    head.locator("#map").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    eventually(page, says, head, trace["decoder.0.attention"].head[1], 2, 1)
    assert not complaints
    assert asked == [saved.as_uri(), *["about:srcdoc"] * (len(asked) - 1)]
    context.close()


def point_at(frame, query, key):
    """Move the pointer to a cell: the map fills the canvas but for its margins, as the page works them out."""
    place = frame.locator("#map").evaluate(
        "(canvas, [q, k]) => [box.left + (k + 0.5) * box.each, box.top + (q + 0.5) * box.each]", [query, key]
    )
    frame.locator("#map").hover(position={"x": place[0], "y": place[1]})


def says_masked(frame, query, key, said):
    point_at(frame, query, key)
    assert said in frame.locator("#reading").inner_text()
    return True


def check_cell(frame, head, query, key):
    """Point at a cell, again where the page was not ready for it, until it is read."""

    def read():
        point_at(frame, query, key)
        return says(frame, head, query, key)

    eventually(frame.locator("#map").page, read)


def says(frame, head, query, key):
    queries, keys = head.site.tokens
    assert f"{queries[query]} → {keys[key]}" in frame.locator("#reading").inner_text()
    weight = head.weight[query, key].item()
    assert float(frame.locator("#value").inner_text()) == pytest.approx(weight, rel=1e-5)
    told = frame.locator("#percent").inner_text()
    assert float(told.removesuffix(" %")) == pytest.approx(weight * 100, rel=6e-3)
    return True
