"""Sampling and the views of other parts of the model: the numbers are the library's, and a link restores them."""

import json
import re

import pytest
from playwright.sync_api import expect

import clearhead as ch
from clearhead.decoding import Sample, generate
from clearhead.serve.questions.decoding import request_of
from clearhead.tracing.edits import Edit
from tests.browser.looking import serving
from tests.browser.watching import SOURCE, Tabs, comes_to, rests, says, state, steady

pytestmark = pytest.mark.slow


def drawn(run, text, **how):
    """Return the ids that the library draws."""
    request = request_of(run, text, None)
    [[found]] = generate(run.model, [request.source], Sample(**how), rules=request.rules, prefix=request.prefix)
    return list(found.tokens)


def written(run, ids):
    return run.task.tokenizers["target"].decode(ids)


def test_a_translator_is_sampled_token_by_token_as_the_library_does(tabs, demo):
    page = tabs.open("decoding")
    expect(page.get_by_test_id("mode-beam")).to_have_attribute("aria-pressed", "true")
    page.get_by_test_id("mode-sample").click()
    wanted = drawn(demo, SOURCE, temperature=0.8, seeds=0)
    for n in (1, 2):
        page.get_by_test_id("add-token").click()
        comes_to(page, tokens=n)
        expect(page.get_by_test_id("written")).to_have_text(written(demo, wanted[:n]))
    page.get_by_test_id("sample-top-k").fill("2")
    page.get_by_test_id("sample-top-k").press("Enter")
    comes_to(page, top_k=2)
    page.get_by_test_id("sample-temperature").press("End")
    page.wait_for_function("() => location.hash.includes('temperature=')")
    page.get_by_test_id("other-seed").click()
    comes_to(page, seed=1, top_k=2)
    page.get_by_test_id("add-all").click()
    rests(page)
    hot = float(state(page)["temperature"])
    wanted = drawn(demo, SOURCE, temperature=hot, top_k=2, seeds=1)
    expect(page.get_by_test_id("written")).to_have_text(written(demo, wanted))
    expect(page.get_by_test_id("add-token")).to_be_disabled()
    expect(page.get_by_test_id("draw-strip")).to_contain_text("The random number")
    expect(page.get_by_test_id("sample-bars").locator(".cut")).to_have_count(8)
    expect(page.get_by_test_id("left")).to_have_text(re.compile("^2 of "))
    fresh = tabs.reopen(page)
    expect(fresh.get_by_test_id("written")).to_have_text(written(demo, wanted))
    page.get_by_test_id("start-again").click()
    expect(page.get_by_test_id("written")).to_have_text("")
    page.get_by_test_id("mode-greedy").click()
    page.get_by_test_id("add-all").click()
    traced = ch.trace(demo, SOURCE)
    expect(page.get_by_test_id("written")).to_have_text(written(demo, traced.sides["decoder"].ids[1:]))


def test_the_units_of_a_feed_forward_and_one_switched_off(tabs, demo):
    from clearhead.tracing.neurons import read_units

    at, token = "decoder.1.feed_forward", 2
    page = tabs.open("neurons", box=at, token=token)
    traced = ch.trace(demo, SOURCE)
    found = read_units(traced, at, token=token, most=3)
    rows = page.get_by_test_id("neurons-units").locator("button")
    for place, unit in enumerate(found.units):
        expect(rows.nth(place)).to_have_attribute("data-unit", str(unit.unit))
        rests(page)
        assert says(rows.nth(place).locator(".bar").inner_text(), unit.norm)
    best = found.units[0]
    bars = page.get_by_test_id("unit-effects").locator("g")
    expect(bars.first).to_have_attribute("data-candidate", str(best.promotes[0].id))
    rests(page)
    assert says(bars.first.locator("text").last.text_content().replace("+", ""), best.promotes[0].change)
    page.get_by_test_id("unit-off").click()
    off = {"at": at, "step": "hidden", "unit": best.unit, "times": 0}
    expect(page.get_by_test_id("edit-list")).to_contain_text(f"unit {best.unit} off")
    rests(page)
    assert json.loads(state(page)["edits"]) == [off]
    page.get_by_test_id("unit-compare").click()
    changed = ch.trace(demo, SOURCE, edits=[Edit(at=at, step="hidden", unit=best.unit, times=0.0)])
    said = demo.task.tokenizers["target"].decode([row[0].id for row in changed.candidates])
    expect(page.get_by_test_id("answer-changed")).to_have_text(said)
    page.get_by_test_id("undo").click()
    expect(page.get_by_test_id("edit-list")).not_to_contain_text("unit")


def test_the_tokeniser_shows_how_each_token_was_made(tabs, demo):
    from clearhead.text.merges import MergeRules

    page = tabs.open("tokens", source="vierundzwanzig")
    page.get_by_test_id("tokens-text").fill("siebenhundert drei Ω")
    line = page.get_by_test_id("tokens-line").locator("button")
    ids = demo.tokenizer.encode("siebenhundert drei Ω")
    expect(line).to_have_count(len(ids))
    rests(page)
    assert [text.split()[-1] for text in line.all_inner_texts()] == list(map(str, ids))
    line.first.click()
    tree = page.get_by_test_id("merge-tree").first
    nodes = MergeRules.of(demo.tokenizer).tree(demo.tokenizer.spans("siebenhundert")[0].token)
    last = nodes[-1]
    expect(tree).to_have_attribute(
        "aria-label", re.compile(rf"{nodes[last.left].text} \+ {nodes[last.right].text} \({last.rank}\)$")
    )
    comes_to(page, text="siebenhundert drei Ω")
    line.first.press("ArrowRight")
    comes_to(page, at=1)


def test_rollout_stands_beside_the_mean(tabs, demo):
    site = "encoder.1.attention"
    page = tabs.open("head", site=site, head=0, query=2)
    page.get_by_test_id("rollout").click()
    comes_to(page, rollout=1)
    row = ch.trace(demo, SOURCE).rollout(site)[2]
    figure = page.locator("figure").first
    expect(figure.locator("h2")).to_contain_text("rollout")
    caption = figure.locator("figcaption")
    expect(caption).to_contain_text("%")
    rests(page)
    assert says(re.search(r"([\d.]+ %)", caption.text_content())[1], row.max().item())
    page.get_by_test_id("head-picker").get_by_role("button", name="Head 1").click()
    expect(figure.locator("h2")).not_to_contain_text("rollout")


def test_a_decoder_opens_on_sampling_and_its_headline_is_what_generate_writes(chromium, tmp_path_factory):
    from tests.training import small_runs

    run = small_runs.trained(small_runs.documents, tmp_path_factory)
    [text] = run.generate(["the cat"], max_new=24, method=Sample(temperature=0.8))
    with serving(run) as home:
        tabs = Tabs(chromium, home)
        page = tabs.open("model", source="the cat")
        expect(page.get_by_test_id("continuation")).to_contain_text(" ".join(text.split())[:30])
        page.get_by_test_id("open-decoding").click()
        expect(page.get_by_test_id("mode-sample")).to_have_attribute("aria-pressed", "true")
        expect(page.get_by_test_id("written")).to_have_text(text.strip())
        for view in ("neurons", "meaning", "tokens"):
            page.get_by_test_id(f"nav-{view}").click()
            steady(page, view)
        tabs.check()
        tabs.close()
