"""Several tabs of one explorer: each shows its own text, and what the server has let go is asked for again."""

import re

import pytest
from playwright.sync_api import expect

import clearhead as ch
from clearhead.cli.demo_page import german
from clearhead.serve.explorer import TRACES
from tests.browser.watching import SITE, ask, comes_to, rests, says, shown

pytestmark = pytest.mark.slow

POST = """async texts => {
    const post = source => fetch("api/trace", { method: "POST", body: JSON.stringify({ source }),
                                                headers: { "Content-Type": "application/json" } });
    return Promise.all(texts.map(text => post(text).then(answer => answer.text().then(() => answer.status))));
}"""


def answer(demo, text):
    made = ch.trace(demo, text)
    return demo.task.tokenizers["target"].decode([row[0].id for row in made.candidates])


def test_two_tabs_answer_at_once(tabs, demo):
    one, other = (tabs.open("model") for _ in range(2))
    texts = "vierundzwanzig", "neunhunderttausendsieben"
    for page, text in zip((one, other), texts, strict=True):
        page.get_by_test_id("source").fill(text)
    for page in (one, other):
        page.get_by_test_id("look").click()
    for page, text in zip((one, other), texts, strict=True):
        expect(page.get_by_test_id("answer")).to_have_text(answer(demo, text))
    for page in (one, other):
        page.get_by_test_id("nav-head").click()
        shown(page, "head")
        expect(page.get_by_test_id("reading-entropy")).to_have_text(re.compile(r"bits$"))


def test_a_trace_that_was_let_go_is_made_again(tabs, demo):
    one = tabs.open("head", site=SITE, head=0)
    other = tabs.open("model", source="vierundzwanzig")
    texts = [german(number) for number in range(30_001, 30_002 + TRACES)]
    assert other.evaluate(POST, texts) == [200] * len(texts)
    tabs.provoked.append("status of 410")
    one.get_by_role("button", name="Head 3").click()
    comes_to(one, head=3)
    one.get_by_test_id("heat-map").locator("canvas").focus()
    one.keyboard.press("ArrowDown")
    expect(one.get_by_test_id("reading-value")).to_have_text(re.compile(r"\d"))
    rests(one)
    weight = ch.trace(demo, "achtundvierzigtausendsiebenundsechzig")[SITE].head[3].weight[1, 0].item()
    assert says(one.get_by_test_id("reading-value").inner_text(), weight)
    ask(other, texts[0])
    expect(other.get_by_test_id("answer")).to_have_text(answer(demo, texts[0]))


def test_a_hundred_requests_from_one_tab_leave_the_other_answering(tabs, demo):
    one, other = tabs.open("model"), tabs.open("model", source="vierundzwanzig")
    one.evaluate(
        """() => { window.answers = Promise.all(Array.from({ length: 100 }, (_, n) => fetch(`api/positions?n=${n + 2}`)
                       .then(answer => answer.text().then(() => answer.status)))); }"""
    )
    ask(other, "neunhunderttausendsieben")
    expect(other.get_by_test_id("answer")).to_have_text(answer(demo, "neunhunderttausendsieben"))
    assert one.evaluate("window.answers") == [200] * 100
