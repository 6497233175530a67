"""The views made for the notes: Meaning, the sequence diagram, and learned positions of a run that has them."""

import re

import pytest
import torch
from playwright.sync_api import expect

import clearhead as ch
from clearhead.tracing.head_metrics import compare_spaces
from clearhead.tracing.sequence_diagram import weight_text
from tests.browser.looking import serving
from tests.browser.watching import SITE, SOURCE, Tabs, comes_to, eventually, rests, says, shown, steady
from tests.training import small_runs

pytestmark = pytest.mark.slow

OWN = "encoder.1.attention"


class TestMeaning:
    def test_the_tables_hold_the_traces_numbers(self, tabs, demo):
        page = tabs.open("meaning", site=OWN, head=2, places="0,2,3", pair="1,0")
        spaces = compare_spaces(ch.trace(demo, SOURCE), OWN, 2, [0, 2, 3])
        for name in ("embedding", "query_key", "value"):
            page.get_by_test_id(f"space-{name}").click()
            cells = page.get_by_test_id(f"spaces-{name}").locator("tbody td button")
            expect(cells).to_have_count(9)
            for told, value in zip(cells.all_inner_texts(), getattr(spaces, name).flatten().tolist(), strict=True):
                assert says(told, value)
        rows = page.get_by_test_id("spaces-pairs").locator("tbody tr")
        for place in range(3):
            told = rows.nth(place).locator("td b").all_inner_texts()
            numbers = [getattr(spaces, name)[1, place].item() for name in ("embedding", "query_key", "value", "score")]
            assert all(says(text, number) for text, number in zip(told, numbers, strict=True))

    def test_the_plane_after_a_layer_is_that_of_the_stream(self, tabs, demo):
        page = tabs.open("meaning", site=OWN, space="layer.0")
        trace = ch.trace(demo, SOURCE)
        name = [name for name in trace.stream if name.startswith("encoder.0.")][-1]
        vectors = torch.nn.functional.normalize(trace.stream[name].double(), dim=-1)
        values = torch.linalg.svdvals(vectors - vectors.mean(0)) ** 2
        note = steady(page, "meaning")
        told = re.search(r"This plane shows ([\d.]+ %)", note)[1]
        assert says(told, (values[:2].sum() / values.sum()).item())
        cosines = (vectors @ vectors.T).flatten().tolist()
        cells = page.get_by_test_id("spaces-layer.0").locator("tbody td button").all_inner_texts()
        assert all(says(text, value) for text, value in zip(cells, cosines, strict=True))

    def test_tokens_glide_from_plane_to_plane_and_a_key_comes_out_of_its_token(self, tabs):
        page = tabs.open("meaning", site=OWN)
        marks = page.get_by_test_id("meaning-plane").locator("[data-mark]:not(.hidden)")
        expect(marks.and_(page.locator("[data-mark^=key]"))).to_have_count(0)
        expect(marks.and_(page.locator("[data-mark^=near]")).first).to_be_visible()
        page.get_by_test_id("space-query_key").click()
        comes_to(page, space="query_key")
        keys = marks.and_(page.locator("[data-mark^=key]"))
        expect(keys).to_have_count(marks.and_(page.locator("[data-mark^=token]")).count())
        keys.nth(2).click()
        comes_to(page, pair="0,2")

    def test_neighbours_are_those_of_the_cosine(self, tabs, demo):
        page = tabs.open("meaning", site=OWN, pair="0,1")
        table = demo.model.encoder.embedding.table.detach().double()
        token = demo.task.tokenizers["source"].encode(SOURCE)[0]
        cosine = torch.nn.functional.cosine_similarity(table, table[token], dim=-1)
        steady(page, "meaning")
        for one in page.locator("[data-neighbour]").all():
            assert says(one.locator(".number").inner_text(), cosine[int(one.get_attribute("data-neighbour"))].item())

    def test_a_pair_and_the_tokens_are_chosen(self, tabs):
        page = tabs.open("meaning", site=OWN, space="value")
        page.get_by_test_id("spaces-value").locator("tbody tr").nth(1).locator("td button").nth(2).click()
        comes_to(page, pair="1,2")
        before = page.get_by_test_id("spaces-value").locator("tbody tr").count()
        page.get_by_test_id("spaces-token-0").click()
        expect(page.get_by_test_id("spaces-token-0")).to_have_attribute("aria-pressed", "false")
        expect(page.get_by_test_id("spaces-value").locator("tbody tr")).to_have_count(before - 1)

    def test_from_a_cross_attention_it_goes_to_a_self_attention(self, tabs):
        page = tabs.open("meaning", site="decoder.1.cross")
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

    def test_all_keys_up_to_twelve_are_drawn_and_those_of_a_short_text_in_sight(self, tabs):
        for source in (SOURCE, "vierundzwanzig"):
            page = tabs.open("sequence", source=source, site=SITE, head=1, query=2, window={"width": 1440})
            drawing = page.get_by_test_id("sequence-drawing")
            arrows = drawing.locator("[data-arrow^='weight ']")
            expect(drawing.locator("[data-arrow='weighted sum']")).to_be_visible()
            rests(page)
            names = [one.get_attribute("data-arrow").split()[-1] for one in arrows.all()]
            assert "rest" not in names
        assert drawing.evaluate("box => box.scrollWidth <= box.clientWidth")

    def test_the_notes_sentence(self, tabs):
        page = tabs.open("sequence")
        page.get_by_test_id("sequence-notes").click()
        comes_to(page, of="notes")
        drawing = page.get_by_test_id("sequence-drawing")
        expect(drawing.get_by_role("img", name="a fluffy blue cute creature")).to_be_visible()
        assert drawing.locator("[data-arrow='weight 4 1'] text").text_content() == "× 0.314"
        assert drawing.locator("[data-arrow='weighted sum'] text").text_content() == "Weighted Sum"
        page.get_by_role("group", name="query").get_by_role("button", name="cute").click()
        expect(drawing.get_by_role("img", name="Followed: cute")).to_be_visible()


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
