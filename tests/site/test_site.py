"""The built site: every link leads somewhere, nothing comes from elsewhere, axe is content, the model runs in it."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.looking import missing
from tests.browser.test_every_view import AXE, OF_COLOURS
from tests.site.links import broken_links, loaded_from_elsewhere

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KINDS = ("index.html", "docs/decoding.html", "docs/tour.html", "api/masks.html", "search.html")
"""A short page of each kind; `make test-all` looks at all of them."""
DARK = KINDS[:2]
"""Those that are looked at in the dark too, for what the theme can break: the colours are those of one style sheet."""


def test_every_page_of_the_repository_is_there_and_in_the_menu(site):
    front = (site / "index.html").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT) for folder in ("docs", "docs/decisions") for path in (ROOT / folder).glob("*.md")]
    assert [str(page) for page in pages if not (site / page.with_suffix(".html")).is_file()] == []
    listed = [page for page in pages if page.parent.name == "docs"]
    assert [str(page) for page in listed if f'href="{page.with_suffix(".html")}"' not in front] == []


def test_every_figure_of_a_page_is_there(site):
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    figures = {Path(name).name for name in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", sources)}
    assert figures <= {path.name for path in (site / "_images").iterdir()}


def test_no_link_is_broken(site):
    assert broken_links(site) == []


def test_nothing_is_loaded_from_elsewhere(site):
    assert loaded_from_elsewhere(site) == []
    styles = "".join(path.read_text(encoding="utf-8") for path in (site / "_static").rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//", styles) == []


def test_a_broken_link_and_a_strangers_script_would_be_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#there">1</a><a href="#here">2</a><a href="c.html">3</a><a href="b.html#no">4</a>'
        '<script src="https://cdn.example/x.js"></script><link rel="stylesheet" href="//fonts.example/f.css">'
    )
    (tmp_path / "b.html").write_text('<p id="there">')
    assert broken_links(tmp_path) == ["a.html: c.html", "a.html: b.html#no"]
    assert loaded_from_elsewhere(tmp_path) == [
        "a.html: https://cdn.example/x.js",
        "a.html: //fonts.example/f.css",
    ]


def test_the_api_has_every_public_name(site):
    import clearhead as ch

    api = "".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html"))
    assert [
        name for name in ch.__all__ if not re.search(rf'(id="[\w.]*\b{name}"|api/{name}\.html|{name}\.html)', api)
    ] == []


def open_from_disk(chromium, page, dark=False, width=1280):
    """Open a page of the site from disk, without a network."""
    context = chromium.new_context(color_scheme="dark" if dark else "light", viewport={"width": width, "height": 900})
    context.set_offline(True)
    tab = context.new_page()
    tab.goto(page.as_uri())
    return tab


def test_the_model_runs_on_the_front_page_from_disk(site, chromium):
    tab = open_from_disk(chromium, site / "index.html")
    model = tab.frame_locator("iframe.live")
    model.get_by_test_id("source").fill("siebenundvierzig")
    model.get_by_test_id("source").press("Enter")
    expect(model.get_by_test_id("answer")).not_to_have_text("")
    expect(model.get_by_role("alert")).to_have_count(0)
    tab.context.close()


def test_search_finds_a_page_from_disk(site, chromium):
    tab = open_from_disk(chromium, site / "index.html")
    tab.get_by_placeholder("Search").fill("induction")
    tab.get_by_placeholder("Search").press("Enter")
    expect(tab.locator("ul.search li a").first).to_be_visible()
    tab.context.close()


def check_pages(site, chromium, pages, in_the_dark):
    """Let axe look at pages in light, and at the colours of some in dark; nothing is wider than a phone."""
    if not AXE.exists():
        missing("axe-core is not installed; run `make web`")
    wrong = []
    for dark in (False, True):
        tab = open_from_disk(chromium, site / pages[0], dark, width=390)
        for page in in_the_dark if dark else pages:
            tab.goto((site / page).as_uri())
            tab.add_script_tag(path=AXE)
            # The live page has tests of its own.
            found = tab.evaluate(
                "rules => axe.run({ exclude: [['iframe']] }, { runOnly: rules, resultTypes: ['violations'] })",
                OF_COLOURS if dark else ["wcag2a", "wcag2aa", "wcag21aa"],
            )
            nodes = [(fault["id"], node) for fault in found["violations"] for node in fault["nodes"]]
            theme = "dark" if dark else "light"
            wrong += [
                f"{page}, {theme}: {name}: {node['html'][:160]}: {node['failureSummary']}" for name, node in nodes
            ]
            over = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
            wrong += [f"{page}: {over} px wider than a phone"] if over > 0 else []
        tab.context.close()
    assert wrong == []


def test_axe_and_a_phone_have_nothing_to_say(site, chromium):
    check_pages(site, chromium, KINDS, DARK)


@pytest.mark.thorough
def test_axe_and_a_phone_have_nothing_to_say_of_any_page(site, chromium):
    pages = [str(path.relative_to(site)) for path in sorted(site.rglob("*.html")) if path.name != "live.html"]
    check_pages(site, chromium, pages, pages)
