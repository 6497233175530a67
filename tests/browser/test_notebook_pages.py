"""Displays of a notebook in a browser: they follow the notebook's theme, need no script, and print."""

import pytest
import torch

import clearhead as ch
from clearhead.tracing.trace import trace_model
from tests.browser.looking import missing
from tests.browser.test_every_view import AXE
from tests.model.small import both_spec, built, words

pytestmark = pytest.mark.slow

THEMES = {
    "Jupyter, light": (":root{--jp-layout-color0:#fff;--jp-content-font-color1:rgb(33,33,33)}", 255, 33),
    "Jupyter, dark": (":root{--jp-layout-color0:#111;--jp-content-font-color1:rgb(250,250,250)}", 17, 250),
    "VS Code, dark": (":root{--vscode-editor-background:#1e1e1e;--vscode-editor-foreground:rgb(212,212,212)}", 30, 212),
}
COLOURS = """display => {
    const brightest = text => Math.max(...text.match(/\\d+/g).slice(0, 3).map(Number));
    const text = display.querySelector("svg text");
    return [getComputedStyle(display).backgroundColor, getComputedStyle(display).color,
            getComputedStyle(text).fill].map(brightest);
}"""
"""How bright the ground, the ink, and the words in a picture are."""
TEXTS_INSIDE = """display => [...display.querySelectorAll("svg")].every(svg => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].every(text => {
        const box = text.getBoundingClientRect();
        return box.left >= frame.left - 2 && box.right <= frame.right + 2 && box.top >= frame.top - 2;
    });
})"""


@pytest.fixture(scope="module")
def shown():
    tokens = {
        "encoder": ["drei", "ثلاثة", "<b>", "東京", "&amp;", "a", "</s>"],
        "decoder": ["<s>", "three", "·", "x", "y"],
    }
    trace = trace_model(built(both_spec()), words(1, 7), words(1, 5), pieces=tokens)
    steps = ch.explain(*torch.randn(3, 2, 5, 8).unbind(), mask=ch.masks.causal())
    return [one._repr_html_() for one in (steps, trace, trace.show(), trace["decoder.1.cross"])]


def open_offline(chromium, tmp_path, body, **options):
    saved = tmp_path / "notebook.html"
    saved.write_text(f"<!doctype html><meta charset=utf-8>{body}", encoding="utf-8")
    page = chromium.new_context(offline=True, **options).new_page()
    page.goto(saved.as_uri())
    return page


def test_what_is_wider_than_the_notebook_can_be_scrolled_by_keyboard(chromium, tmp_path, shown):
    if not AXE.exists():
        missing("axe-core is not installed; run `make web`")
    page = open_offline(chromium, tmp_path, "".join(shown), viewport={"width": 200, "height": 600})
    assert page.evaluate("[...document.querySelectorAll('.clearhead')].some(one => one.scrollWidth > one.clientWidth)")
    page.add_script_tag(path=AXE)  # the browser's own way to such a place is Chromium's alone
    found = page.evaluate("axe.run({ runOnly: ['scrollable-region-focusable', 'aria-allowed-attr'] })")
    assert [node["html"] for fault in found["violations"] for node in fault["nodes"]] == []
    page.context.close()


@pytest.mark.parametrize("system", ["light", "dark"])
@pytest.mark.parametrize("theme", THEMES)
def test_it_follows_the_notebook_s_theme_whatever_the_system_s(chromium, tmp_path, shown, theme, system):
    style, ground, ink = THEMES[theme]
    page = open_offline(chromium, tmp_path, f"<style>{style}</style>" + "".join(shown), color_scheme=system)
    for display in page.locator(".clearhead").all():
        assert display.evaluate(COLOURS) == [ground, ink, ink]
    page.context.close()


@pytest.mark.parametrize("system", ["light", "dark"])
def test_elsewhere_it_follows_the_system(chromium, tmp_path, shown, system):
    page = open_offline(chromium, tmp_path, "".join(shown), color_scheme=system)
    for display in page.locator(".clearhead").all():
        ground, ink, words = display.evaluate(COLOURS)
        assert words == ink
        assert (ground > 200, ink > 200) == ((True, False) if system == "light" else (False, True))
    page.context.close()


def test_it_needs_no_script_and_asks_for_nothing(chromium, tmp_path, shown):
    asked = []
    page = open_offline(chromium, tmp_path, "".join(shown), java_script_enabled=False)
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    assert asked == [page.url]
    assert page.locator("svg rect").count() > 100
    page.context.close()


def test_words_stay_inside_their_pictures(chromium, tmp_path, shown):
    page = open_offline(chromium, tmp_path, "".join(shown))
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    assert all(display.evaluate(TEXTS_INSIDE) for display in page.locator(".clearhead").all())
    page.context.close()


def test_sections_are_opened_by_keyboard(chromium, tmp_path, shown):
    page = open_offline(chromium, tmp_path, shown[2])
    first = page.locator("details").first
    assert first.evaluate("one => one.open") is False
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert first.evaluate("one => one.open") is True
    page.context.close()


def test_on_paper_a_dark_notebook_is_black_on_white(chromium, tmp_path, shown):
    style = THEMES["Jupyter, dark"][0]
    page = open_offline(chromium, tmp_path, f"<style>{style}</style>" + "".join(shown), color_scheme="dark")
    page.emulate_media(media="print")
    for display in page.locator(".clearhead").all():
        assert display.evaluate(COLOURS) == [255, 0, 0]
    closed = page.locator("details:not([open]) figure").first
    assert closed.bounding_box()["height"] > 50, "what is folded in is printed too"
    page.context.close()
