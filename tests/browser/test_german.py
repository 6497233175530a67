"""The explorer in German: no view says an English sentence that text/de.ts has in German."""

import re
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from clearhead.attention.positions.base import Position
from clearhead.attention.weighting.base import Weighting
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
    assert "A beam keeps the likeliest texts so far, and drops the rest" in ENGLISH
    assert not {one for one in ENGLISH if one.startswith("import")}


def test_what_the_server_says_of_its_own_parts_has_german_words():
    """Parts, boxes and positions speak English; the page has each of their phrases in German."""
    from clearhead.attention.similarity import Similarity
    from clearhead.attention.weighting.argmax import SUMMARIES
    from clearhead.serve.questions import positions as waves
    from clearhead.tracing.names import FORMULAS

    words = {part.words for part in (*subclasses(Similarity), *subclasses(Weighting), *subclasses(Position))}
    reasons = {found for part in subclasses(Similarity) for found in (part.scale_reason, part.formula)}
    positions = [waves.sinusoidal(None, 8, 4), waves.learned(None, 4), waves.rotary(None, 8, 4)]
    told = {one[name] for one in positions for name in ("sentence", "note")}
    formulas = {formula.replace("BLOCKED", "{}") for formula in FORMULAS.values()}  # 0 or −∞, by the weighting
    said = words | reasons | told | formulas | {*SUMMARIES.values()}
    code = (TEXT / "server.de.ts").read_text(encoding="utf-8")
    sentences = {one for one in said if re.search(r"[a-z]{2,} [a-z]{2,}", one) and "clearhead" not in one}
    assert len(sentences) > 20
    assert {one for one in sentences if f'"{one}"' not in code} == set()


def subclasses(part):
    """Return the parts of the package that are of a kind, without those that tests have defined."""
    found = {one for direct in part.__subclasses__() for one in (direct, *subclasses(direct))}
    return {one for one in found if one.__module__.startswith("clearhead.")}


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
        found[view] = [one for one in ENGLISH if one in said and re.search(rf"(?<!\w){re.escape(one)}(?!\w)", said)]
    assert found == {view: [] for view in STATES}
    expect(page.get_by_role("heading", level=1)).to_have_text("Tokenizer")
