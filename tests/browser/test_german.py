"""The explorer in German: no view says an English sentence that text/de.ts has in German."""

import re
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from tests.browser.test_every_view import STATES
from tests.browser.watching import SOURCE, shown, steady

pytestmark = pytest.mark.slow

TEXT = Path(__file__).parents[2] / "web" / "src" / "text"
SHORTEST = 3
"""Words: a phrase of fewer may be a term that both languages share."""
FRAGMENT = 4
"""The same for what stands between a function's arguments: "query and key" is also a phrase of the server's."""
SAID = """() => {
    const told = [document.body.innerText];
    for (const each of document.querySelectorAll("[aria-label], [title], [aria-valuetext], figcaption, text"))
        told.push(...["aria-label", "title", "aria-valuetext"].map(name => each.getAttribute(name)), each.textContent);
    return told.filter(Boolean).join("\\n").replace(/\\s+/g, " ");
}"""
"""All that the page says, also to those who do not see it."""


def phrases(language):
    """Return what a text file says: its sentences, and what its functions say between their arguments."""
    code = re.sub(r"/\*.*?\*/|^\s*//.*?$", "", (TEXT / f"{language}.ts").read_text(encoding="utf-8"), flags=re.S | re.M)
    whole = re.findall(r'"((?:[^"\\\n]|\\.)*)"', code)
    templates = re.findall(r"`((?:[^`\\]|\\.)*)`", code)
    parts = [part for template in templates for part in re.split(r"\$\{[^}]*\}?", template)]
    return long_ones(whole, SHORTEST) | long_ones(parts, FRAGMENT)


def long_ones(found, least):
    """Return those of at least so many words, without the marks that the page turns into colours."""
    plain = (re.sub(r"\[\w+\|([^\]]*)\]|[*{}]", r"\1", one) for one in found)
    tidy = {" ".join(one.split()).strip(" .,:;") for one in plain}
    return {one for one in tidy if len(re.findall(r"[A-Za-z]{2,}", one)) >= least}


ENGLISH = sorted(phrases("en") - phrases("de"))


def test_the_sentences_are_found():
    assert len(ENGLISH) > 200
    assert "Where a head looks" in ENGLISH
    assert not {one for one in ENGLISH if one.startswith("import")}


def test_no_view_in_german_has_an_english_sentence(tabs):
    page = tabs.open("model", lang="de")
    found = {}
    for view, own in STATES.items():
        page.evaluate(
            "hash => { location.hash = hash; }", f"/{view}?{urlencode({'source': SOURCE, 'lang': 'de', **own})}"
        )
        shown(page, view)
        steady(page, view)
        said = page.evaluate(SAID)
        found[view] = [one for one in ENGLISH if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", said)]
    assert found == {view: [] for view in STATES}
    expect(page.get_by_role("heading", level=1)).to_have_text("Tokenizer")
