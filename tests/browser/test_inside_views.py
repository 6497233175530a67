"""The views of what is inside: the whole model, a head, the four steps. Their numbers are the trace's."""

import math
import re

import pytest
from playwright.sync_api import expect

import clearhead as ch
from clearhead.tracing.head_metrics import readings
from tests.browser.watching import (
    GO,
    SITE,
    SOURCE,
    address_of,
    ask,
    comes_to,
    eventually,
    number_in,
    point_at,
    rests,
    says,
    shown,
    state,
    tab_to,
)

pytestmark = pytest.mark.slow

SQUARE = "encoder.1.attention"
"""Its tokens are each there once, and its map fills the canvas."""
TALL = {"height": 1300}


@pytest.fixture(scope="module")
def traced(demo):
    return ch.trace(demo, SOURCE)


def answer_of(demo, made):
    return demo.task.tokenizers["target"].decode([row[0].id for row in made.candidates])


def piece(token):
    return re.sub("^▁", "·", token)


class TestModel:
    def test_every_token_has_its_id_and_what_follows_it(self, tabs, traced):
        page = tabs.open("model")
        for name, side in traced.sides.items():
            there = page.get_by_role("group", name=f"Tokens of the {name}").locator("[data-token]")
            expect(there).to_have_count(len(side.ids))
            for place, (token, number) in enumerate(zip(side.tokens, side.ids, strict=True)):
                told = there.nth(place).get_attribute("aria-label")
                assert told == f"{shortened(token)} {number}: token {place} of the {name}, and its id"
        for place, row in enumerate(traced.candidates):
            told = page.get_by_test_id(f"output-{place}").get_attribute("aria-label")
            shares = re.findall(r"<?[\d.]+ %", told)
            assert told.startswith(shortened(row[0].text, 10))
            assert len(shares) == 3
            assert all(says(share, math.exp(one.log_prob)) for share, one in zip(shares, row[:3], strict=True))

    def test_candidates_of_a_place_are_the_traces(self, tabs, demo, traced):
        page = tabs.open("model")
        assert page.get_by_test_id("answer").inner_text() == answer_of(demo, traced)
        page.get_by_test_id("output-2").click()
        rests(page)
        rows = page.get_by_test_id("detail").locator("[data-candidate]")
        expect(rows).to_have_count(len(traced.candidates[2]))
        for row, one in zip(rows.all(), traced.candidates[2], strict=True):
            assert row.locator(".name").text_content() == piece(one.text)
            assert says(row.locator(".share").text_content(), math.exp(one.log_prob))

    def test_a_tokens_way_is_told_in_lengths_and_cosines(self, tabs, traced):
        page = tabs.open("model")
        page.get_by_role("group", name="Tokens of the decoder").locator("[data-token='3']").click()
        rows = page.get_by_test_id("detail").locator("tbody tr")
        expect(rows).not_to_have_count(0)
        rests(page)
        start = traced.value("decoder.embedding.token")[3]
        names = [name for name in traced.stream if name.startswith("decoder.")]
        for row, name in zip(rows.all(), names, strict=True):
            value, cells = traced.value(name)[3], row.locator(".number").all_inner_texts()
            assert says(cells[0], value.norm().item())
            assert says(cells[1], (value @ start / value.norm() / start.norm()).item())

    def test_another_text_is_typed(self, tabs, demo):
        page = tabs.open("model")
        ask(page, "vierundzwanzig", "twenty-five")
        made = ch.trace(demo, "vierundzwanzig", "twenty-five")
        expect(page.get_by_test_id("answer")).to_have_text(answer_of(demo, made))
        expect(page.locator("[data-token]")).to_have_count(sum(len(side.ids) for side in made.sides.values()))

    def test_an_example_is_taken(self, tabs, demo):
        page = tabs.open("model")
        page.get_by_test_id("examples").select_option(index=2)
        text = page.locator("[data-testid=examples] option").nth(2).inner_text()
        expect(page.get_by_test_id("source")).to_have_value(text)
        expect(page.get_by_test_id("answer")).to_have_text(answer_of(demo, ch.trace(demo, text)))

    def test_a_token_pointed_at_stands_out(self, tabs):
        page = tabs.open("model")
        token = page.get_by_role("group", name="Tokens of the encoder").locator("[data-token='1']")
        token.hover()
        expect(token).to_have_class(re.compile(r"\bhere\b"))

    def test_the_logit_lens_says_what_each_layer_would(self, tabs, traced):
        page = tabs.open("model")
        page.get_by_test_id("lens").click()
        expect(page.get_by_test_id("lens")).to_have_attribute("aria-pressed", "true")
        layers = traced.sides["decoder"].n_layers
        expect(page.locator("text.guess")).to_have_count(layers * len(traced.candidates))

    def test_by_keyboard_into_a_head(self, tabs):
        page = tabs.open("model")
        tab_to(page, page.get_by_test_id(f"thumb-{SITE}-2"))
        page.keyboard.press("Enter")
        shown(page, "head")
        comes_to(page, site=SITE, head=2)


class TestHead:
    def test_cells_are_read_by_keyboard(self, tabs, traced):
        page = tabs.open("head", site=SITE, head=1)
        tab_to(page, page.get_by_test_id("heat-map").locator("canvas"))
        weight = traced[SITE].head[1].weight
        for keys, (query, key) in (("ArrowDown", (1, 0)), ("ArrowRight", (1, 1)), ("ArrowDown", (2, 1))):
            page.keyboard.press(keys)
            expect(page.get_by_test_id("reading")).to_contain_text(piece(traced.sides["encoder"].tokens[key]))
            expect(page.get_by_test_id("reading-value")).to_have_text(re.compile(r"\d"))
            rests(page)
            assert says(page.get_by_test_id("reading-value").inner_text(), weight[query, key].item())
        page.keyboard.press("Enter")
        comes_to(page, query=2, key=1)

    def test_a_cell_pointed_at_is_read_and_chosen(self, tabs, traced):
        page = tabs.open("head", site=SQUARE, head=0, window=TALL)
        canvas = page.get_by_test_id("heat-map").locator("canvas")
        read = []
        for across, down in ((0.35, 0.3), (0.6, 0.5), (0.8, 0.85)):
            point_at(page, canvas, across, down, until=page.get_by_test_id("reading-value"))
            read.append(read_cell(page, traced))
        assert len(set(read)) == 3
        query, key = read[-1]
        click_at(page, canvas, 0.8, 0.85)
        comes_to(page, query=query, key=key)
        assert says(page.get_by_test_id("reading-value").inner_text(), traced[SQUARE].head[0].weight[query, key].item())

    def test_panned_and_zoomed_it_still_reads_right(self, tabs, demo):
        target = "nine hundred and ninety-nine thousand, " * 3
        page = tabs.open("head", site="decoder.1.attention", head=0, target=target, window=TALL)
        weight = ch.trace(demo, SOURCE, target)["decoder.1.attention"].head[0].weight
        canvas = page.get_by_test_id("heat-map").locator("canvas")
        places = []
        for way in ((0.9, 0.9), (0.2, 0.3), (0.9, 0.9)):
            point_at(page, canvas, 0.6, 0.6, until=page.get_by_test_id("reading-value"))
            page.mouse.wheel(0, -300)
            expect(canvas).to_have_css("touch-action", "none")
            rests(page)
            box = canvas.bounding_box()
            page.mouse.down()
            page.mouse.move(box["x"] + way[0] * box["width"], box["y"] + way[1] * box["height"], steps=4)
            page.mouse.up()
            page.evaluate(FORGET)
            click_at(page, canvas, 0.5, 0.6)
            eventually(page, lambda: {"query", "key"} <= set(state(page)))
            rests(page)
            places.append((int(state(page)["query"]), int(state(page)["key"])))
            assert says(page.get_by_test_id("reading-value").inner_text(), weight[places[-1]].item())
        assert len(set(places)) > 1

    def test_the_mean_of_the_heads(self, tabs, traced):
        page = tabs.open("head", site=SITE, head=0)
        page.get_by_role("button", name="Mean over the heads").click()
        comes_to(page, head="mean")
        page.get_by_test_id("heat-map").locator("canvas").focus()
        page.keyboard.press("ArrowDown")
        expect(page.get_by_test_id("reading-value")).to_have_text(re.compile(r"\d"))
        rests(page)
        mean = sum(head.weight[1, 0].item() for head in traced[SITE].head) / traced[SITE].n_heads
        assert says(page.get_by_test_id("reading-value").inner_text(), mean)

    @pytest.mark.parametrize("site", ["encoder.1.attention", SITE])
    def test_its_readings(self, tabs, traced, site):
        page = tabs.open("head", site=site, head=2)
        found = readings(traced, traced[site])[2]
        expect(page.get_by_test_id("reading-entropy")).to_be_visible()
        for name in ("entropy", "distance", "first", "itself", "previous", "same", "induction"):
            value = getattr(found, name)
            if value is None:  # told with the others that this attention does not have, and why
                expect(page.get_by_test_id(f"reading-{name}")).to_have_count(0)
                expect(page.get_by_test_id("not-read").filter(has_text=name)).to_have_count(1)
            else:
                assert says(page.get_by_test_id(f"reading-{name}").inner_text(), value), name

    def test_arcs_say_where_a_token_looks_and_who_looks_at_it(self, tabs, traced):
        page = tabs.open("head", site=SITE, head=1)
        weight = traced[SITE].head[1].weight
        arcs = page.get_by_test_id("arcs")
        for end, other, shares in (("query", "key", weight[4]), ("key", "query", weight[:, 2])):
            arcs.locator(f"[data-end={end}][data-token='{4 if end == 'query' else 2}']").hover()
            rests(page)
            for place, share in enumerate(shares.tolist()):
                told = arcs.locator(f"[data-end={other}][data-token='{place}']").get_attribute("aria-label")
                assert ("%" in told) == (share >= 0.05)
                assert share < 0.05 or says(re.search(r"\d+(\.\d)? %", told).group(), share)

    def test_keys_go_to_other_heads_layers_and_views(self, tabs, traced):
        page = tabs.open("head", site=SITE, head=0)
        page.keyboard.press("]")
        comes_to(page, head=1)
        page.keyboard.press("{")
        names = list(traced.sites)
        comes_to(page, site=names[names.index(SITE) - 1])
        page.keyboard.press("4")
        shown(page, "steps")
        page.go_back()
        shown(page, "head")


class TestSteps:
    def test_every_number_of_a_cell(self, tabs, traced):
        page = tabs.open("steps", site=SITE, head=1, query=3, key=2)
        cell = traced[SITE].head[1].cell(3, 2)
        for name in ("score", "scaled", "masked", "weight"):
            there, value = page.get_by_test_id(f"cell-{name}"), getattr(cell, name)
            assert says(there.inner_text(), value), name
            assert float(there.get_attribute("data-value")) == pytest.approx(value, rel=1e-4), name
        assert says(line(page, "exponential").inner_text(), cell.exponential)
        assert says(line(page, "total").inner_text(), cell.total)
        page.get_by_role("spinbutton").fill("5")
        expect(page.get_by_test_id("cell-context")).to_have_attribute("data-value", re.compile("."))
        rests(page)
        assert says(page.get_by_test_id("cell-context").inner_text(), cell.context[5])
        assert sum(cell.products) == pytest.approx(cell.score, rel=1e-4)

    def test_the_working_is_written_out_and_adds_up(self, tabs, traced):
        page = tabs.open("steps", site=SITE, head=1, query=3, key=2)
        cell = traced[SITE].head[1].cell(3, 2)
        page.get_by_role("button", name=re.compile("more … products")).click()
        rests(page)
        amounts = page.get_by_test_id("cell").locator("table .amount").all_inner_texts()
        assert len(amounts) == len(cell.products)
        assert all(says(told, product) for told, product in zip(amounts, cell.products, strict=True))
        slack = sum(number_in(told)[1] for told in amounts) + 1e-4
        assert sum(number_in(told)[0] for told in amounts) == pytest.approx(cell.score, abs=slack)

    def test_what_is_masked_says_so(self, tabs, traced):
        page = tabs.open("steps", site="decoder.0.attention", head=0, query=1, key=4)
        assert page.get_by_test_id("cell-masked").inner_text() == "−∞"
        assert page.get_by_test_id("cell-weight").inner_text() == "0"
        cell = traced["decoder.0.attention"].head[0].cell(1, 4)
        assert says(page.get_by_test_id("cell-score").inner_text(), cell.score)

    def test_stepped_and_scrubbed(self, tabs):
        page = tabs.open("steps", site=SITE, head=1, query=3)
        title = page.locator("figure h2").first
        for name in ("Scores", "Weights", "Weighted sum"):
            page.get_by_test_id("steps-next").click()
            expect(title).to_contain_text(name)
        expect(page.get_by_test_id("steps-next")).to_be_disabled()
        page.get_by_test_id("steps-previous").click()
        expect(title).to_contain_text("Weights")
        page.get_by_test_id("steps-scrub").fill("0.5")
        expect(title).to_contain_text("Vectors")
        comes_to(page, at=0.5)
        page.get_by_test_id("steps-play").click()
        expect(page.get_by_test_id("steps-play")).to_have_accessible_name(re.compile("Pause"))
        expect(title).to_contain_text(re.compile("Scores|Weight"))  # it may be further by the time it is looked at

    def test_an_address_without_a_step_is_the_first_one(self, tabs):
        page = tabs.open("steps", site=SITE, head=1, query=3)
        before = address_of(page)
        page.get_by_test_id("steps-next").click()
        expect(page.locator("figure h2").first).to_contain_text("2 · Scores")
        comes_to(page, at=2)
        page.evaluate(GO, before[before.index("#") :])
        expect(page.locator("figure h2").first).to_contain_text("1 · Vectors")

    def test_by_keyboard(self, tabs, traced):
        page = tabs.open("steps", site=SITE, head=1, query=3, key=2)
        page.keyboard.press("ArrowRight")
        expect(page.locator("figure h2").first).to_contain_text("2 · Scores")
        tab_to(page, page.locator("g.row[role=button][aria-pressed=true]"))
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_function("!/[?&]key=2(&|$)/.test(location.hash)")
        chosen = int(state(page)["key"])
        weight = traced[SITE].head[1].weight[3, chosen].item()
        page.wait_for_function(
            """wanted => Math.abs(document.querySelector("[data-testid=cell-weight]").dataset.value - wanted) < 1e-6""",
            arg=weight,
        )
        assert says(page.get_by_test_id("cell-weight").inner_text(), weight)

    def test_another_query_and_key_are_chosen(self, tabs, traced):
        page = tabs.open("steps", site=SITE, head=0, query=1, key=0)
        page.get_by_role("group", name="query").locator("[data-token='5']").click()
        page.get_by_role("group", name="key", exact=True).locator("[data-token='4']").click()
        expect(page.locator("h2", has_text="worked out")).to_contain_text("</s>")
        comes_to(page, query=5, key=4)
        weight = traced[SITE].head[0].weight[5, 4].item()
        assert says(page.get_by_test_id("cell-weight").inner_text(), weight)


def shortened(token, most=12):
    told = piece(token)
    return f"{told[: most - 1]}…" if len(told) > most else told


FORGET = "() => { location.hash = location.hash.replace(/&(query|key)=\\d+/g, ''); }"
"""Choose no cell: the next one that stands in the address is chosen after this."""


def click_at(page, element, across, down):
    """Click at a place of an element, in shares of its size, where it is now."""
    rests(page)
    box = element.bounding_box()
    page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])


def read_cell(page, traced):
    """The query and the key that the map of the square site's first head reads; its number is held to the trace's."""
    expect(page.get_by_test_id("reading-value")).to_have_text(re.compile(r"\d"))
    rests(page)
    names = [piece(token) for token in traced.sides["encoder"].tokens]
    reading = page.get_by_test_id("reading")
    query, key = (names.index(reading.locator(f".{role}").inner_text()) for role in ("query", "key"))
    weight = traced[SQUARE].head[0].weight[query, key].item()
    assert says(page.get_by_test_id("reading-value").inner_text(), weight)
    return query, key


def line(page, name):
    """The result of a line of the arithmetic."""
    lines = page.get_by_test_id("cell").locator(".line")
    return lines.filter(has=page.locator("dt", has_text=re.compile(f"^{name}$"))).locator(".result")
