"""The views made for the notes: three spaces, the sequence diagram, and learned positions of a run that has them."""

import re

import pytest
from playwright.sync_api import expect

import clearhead as ch
from clearhead.tracing.sequence_diagram import weight_text
from clearhead.tracing.spaces import compare_spaces
from tests.browser.looking import serving
from tests.browser.watching import SOURCE, Tabs, comes_to, eventually, rests, says, shown
from tests.training import small_runs

pytestmark = pytest.mark.slow

OWN = "encoder.1.attention"


class TestSpaces:
    def test_the_tables_hold_the_traces_numbers(self, tabs, demo):
        page = tabs.open("spaces", site=OWN, head=2, places="0,2,3", pair="1,0")
        spaces = compare_spaces(ch.trace(demo, SOURCE), OWN, 2, [0, 2, 3])
        for name in ("embedding", "query_key", "value"):
            cells = page.get_by_test_id(f"spaces-{name}").locator("tbody td button")
            expect(cells).to_have_count(9)
            for told, value in zip(cells.all_inner_texts(), getattr(spaces, name).flatten().tolist(), strict=True):
                assert says(told, value)
        rows = page.get_by_test_id("spaces-pairs").locator("tbody tr")
        for place in range(3):
            told = rows.nth(place).locator("td b").all_inner_texts()
            numbers = [getattr(spaces, name)[1, place].item() for name in ("embedding", "query_key", "value", "score")]
            assert all(says(text, number) for text, number in zip(told, numbers, strict=True))

    def test_a_pair_and_the_tokens_are_chosen(self, tabs):
        page = tabs.open("spaces", site=OWN)
        page.get_by_test_id("spaces-value").locator("tbody tr").nth(1).locator("td button").nth(2).click()
        comes_to(page, pair="1,2")
        before = page.get_by_test_id("spaces-value").locator("tbody tr").count()
        page.get_by_test_id("spaces-token-0").click()
        expect(page.get_by_test_id("spaces-token-0")).to_have_attribute("aria-pressed", "false")
        expect(page.get_by_test_id("spaces-value").locator("tbody tr")).to_have_count(before - 1)

    def test_on_a_desk_no_column_of_eight_is_out_of_sight(self, tabs):
        page = tabs.open("spaces", site="decoder.1.attention", head=1, window={"width": 1440})
        for name in ("embedding", "query_key", "value"):
            table = page.get_by_test_id(f"spaces-{name}")
            expect(table.locator("tbody tr")).to_have_count(8)
            assert table.evaluate("table => table.parentElement.scrollWidth <= table.parentElement.clientWidth"), name

    def test_from_a_cross_attention_it_goes_to_a_self_attention(self, tabs):
        page = tabs.open("spaces", site="decoder.1.cross")
        comes_to(page, site="decoder.1.attention")
        expect(page.get_by_test_id("spaces-pairs")).to_be_visible()


class TestSequence:
    def test_the_arrows_bear_the_traces_weights(self, tabs, demo):
        page = tabs.open("sequence", site=OWN, head=1, query=2)
        head = ch.trace(demo, SOURCE)[OWN].head[1]
        arrows = page.get_by_test_id("sequence-drawing").locator("[data-arrow^='weight ']")
        expect(arrows.first).to_be_visible()
        rests(page)
        for arrow in arrows.all():
            key = arrow.get_attribute("data-arrow").split()[-1]
            if key != "rest":
                weight = weight_text(head.weight[2, int(key)].item())
                assert arrow.locator("text").text_content() == f"× {weight}"

    def test_on_a_desk_all_of_it_is_in_sight(self, tabs):
        page = tabs.open("sequence", site="decoder.1.attention", head=1, window={"width": 1440})
        drawing = page.get_by_test_id("sequence-drawing")
        expect(drawing.locator("[data-arrow='weighted sum']")).to_be_visible()
        rests(page)
        assert drawing.evaluate("box => box.scrollWidth <= box.clientWidth")

    def test_the_notes_sentence(self, tabs):
        page = tabs.open("sequence")
        page.get_by_test_id("sequence-notes").click()
        comes_to(page, of="notes")
        drawing = page.get_by_test_id("sequence-drawing")
        expect(drawing.locator("text.title")).to_have_text("Attention as a sequence: a fluffy blue cute creature")
        assert drawing.locator("[data-arrow='weight 4 1'] text").text_content() == "× 0.314"
        assert drawing.locator("[data-arrow='weighted sum'] text").text_content() == "Weighted Sum"
        page.get_by_role("group", name="query").get_by_role("button", name="cute").click()
        expect(drawing.locator("text.said")).to_contain_text("Followed: cute")


def test_learned_positions_are_shown_on_a_run_that_has_them(chromium, tmp_path_factory):
    run = small_runs.trained(small_runs.documents, tmp_path_factory)
    table = run.model.embedding.position.table
    with serving(run) as address:
        tabs = Tabs(chromium, address)
        page = tabs.open("positions", source="the cat eats")
        expect(page.get_by_role("button", name="Learned", exact=True)).to_have_attribute("aria-pressed", "true")
        picture = page.get_by_role("img", name=re.compile("^Learned: numbers"))

        def told():
            picture.hover(position={"x": 60, "y": 40})
            rests(page)
            return re.search(r"position (\d+), dimension (\d+): (\S+)", picture.locator(".tell").text_content())

        place, dimension, value = eventually(page, told).groups()
        assert says(value, table[int(place), int(dimension)].item())
        shown(page, "positions")
        tabs.check()
        tabs.close()
