"""The built site: every link leads somewhere, nothing comes from elsewhere, axe is content, the model runs in it."""

import re
from pathlib import Path

import pytest
from PIL import Image
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


def test_the_reference_has_the_help_of_every_command(site):
    from clearhead.cli import VERBS

    page = (site / "commands.html").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"Usage: clearhead {verb} " not in page] == []
    assert "Usage: clearhead learn write" in page
    assert "--micro-batch-tokens" in page


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


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (360, 780)])
@pytest.mark.parametrize("dark", [False, True])
def test_the_first_screen_has_the_crossing_of_vierundzwanzig(site, chromium, width, height, dark):
    tab = open_from_disk(chromium, site / "index.html", dark, width)
    tab.set_viewport_size({"width": width, "height": height})
    model = tab.frame_locator("iframe.live")
    expect(model.get_by_test_id("source")).to_have_value("vierundzwanzig")
    expect(model.get_by_test_id("answer")).not_to_have_text("")
    expect(model.get_by_test_id("site-picker")).to_have_value(re.compile(r"decoder\.\d\.cross"))
    expect(model.locator("html")).to_have_attribute("data-theme", "dark" if dark else "light")
    # The small demo does not know the answer yet: with the right one the page is as it is on the site.
    frame = tab.frames[1]
    frame.evaluate("location.hash = '#/?glance=1&source=vierundzwanzig&target=twenty-four'")
    frame.wait_for_function("document.querySelectorAll('[data-testid=weight-grid] tbody tr').length < 6")
    assert frame.evaluate("document.documentElement.scrollHeight - innerHeight") <= 0
    box = tab.locator("iframe.live").bounding_box()
    assert box["y"] + box["height"] <= height
    assert box["x"] + box["width"] <= width
    expect(model.get_by_test_id("arcs")).to_be_visible()
    expect(model.get_by_test_id("weight-grid")).to_be_visible(visible=width > 500)
    tab.context.close()


def test_a_head_is_switched_off_and_the_theme_is_followed_on_the_front_page(site, chromium):
    tab = open_from_disk(chromium, site / "index.html")
    model = tab.frame_locator("iframe.live")
    switch = model.get_by_test_id("switch-head")
    expect(switch).to_be_checked()
    before = tab.frames[1].url
    switch.click()
    expect(switch).not_to_be_checked()
    assert "edits" in tab.frames[1].url
    assert "edits" not in before
    expect(model.get_by_test_id("was")).to_contain_text("was ")
    tab.evaluate("document.body.dataset.theme = 'dark'")
    expect(model.locator("html")).to_have_attribute("data-theme", "dark")
    tab.context.close()


def test_three_doors_an_icon_and_a_picture_for_links(site):
    front = (site / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<div class="door[^>]*>\s*<p><a[^>]*><span[^>]*>(\w+)', front) == ["Learn", "Research", "Build"]
    [icon] = re.findall(r'<link rel="shortcut icon" href="([^"]+)"', front)
    assert (site / icon.partition("?")[0]).read_text(encoding="utf-8").startswith("<svg")
    [address] = re.findall(r'<meta property="og:image" content="([^"]+)"', front)
    with Image.open(site / "_static" / address.rpartition("/")[2].partition("?")[0]) as social:
        assert social.size == (1200, 630)


@pytest.mark.parametrize(
    ("asked", "page"),
    [
        ("kv cache", "docs/decoding.html"),
        ("install", "docs/installation.html"),
        ("nan", "docs/nan.html"),
        ("induction head", "docs/induction-heads.html"),
    ],
)
def test_search_finds_the_guide_first_from_disk(site, chromium, asked, page):
    tab = open_from_disk(chromium, site / "index.html")
    tab.get_by_placeholder("Search").fill(asked)
    tab.get_by_placeholder("Search").press("Enter")
    expect(tab.get_by_text(re.compile("Search finished"))).to_be_visible()
    assert tab.locator("ul.search > li > a").first.get_attribute("href").startswith(page)
    found = [link.get_attribute("href") for link in tab.locator("ul.search > li > a").all()]
    assert [one for one in found if "decisions/0" in one] == []
    tab.context.close()


def test_the_menu_folds_and_code_can_be_copied(site, chromium):
    tab = open_from_disk(chromium, site / "docs/gpt2.html")
    menu = tab.locator(".sidebar-tree")
    expect(menu.get_by_role("link", name="Rank", exact=False).first).to_be_visible()  # the section that one is in
    expect(menu.get_by_role("link", name="Reliability", exact=True)).to_be_hidden()
    copied = tab.locator("button.copy").count()
    assert copied == tab.locator("div.highlight").count() - tab.locator("div.highlight-output").count() > 0
    tab.context.close()


def test_every_picture_has_a_text_in_its_place(site):
    pictures = [tag for page in site.glob("docs/*.html") for tag in re.findall(r"<img [^>]*>", page.read_text("utf-8"))]
    alts = [found[1] if (found := re.search(r'alt="([^"]*)"', tag)) else "" for tag in pictures]
    assert len(alts) > 30
    assert [alt for alt in alts if len(alt.split()) < 2] == []


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
