"""The views of one idea each: similarity, context, positions. Their numbers are the trace's, or plain arithmetic."""

import json
import math
import re
from itertools import combinations

import pytest
import torch
from playwright.sync_api import expect

import clearhead as ch
from tests.browser.watching import SITE, SOURCE, comes_to, eventually, number_in, rests, says, shown, state, tab_to

pytestmark = pytest.mark.slow

TEXTS = ("achthundertneunundneunzigtausendsieben", "siebenhundertdreitausendacht", "neunhundertsieben")


class TestSimilarity:
    def test_a_vector_is_dragged(self, tabs):
        page = tabs.open("similarity")
        handle = page.get_by_test_id("similarity-a")
        box = handle.bounding_box()
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(*middle)
        page.mouse.down()
        page.mouse.move(middle[0] - 80, middle[1] + 40, steps=5)
        page.mouse.up()
        expect(handle).not_to_have_attribute("aria-label", re.compile(r"^a: 2, 3\."))
        rests(page)
        a, b = placed(page, "a"), placed(page, "b")
        assert (a[0] < 2, a[1] < 3, b) == (True, True, (1, 4))
        held_to_be(page, a, b)

    def test_by_keyboard(self, tabs):
        page = tabs.open("similarity", a="2,3", b="1,4")
        tab_to(page, page.get_by_test_id("similarity-a"))
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("ArrowDown")
        expect(page.get_by_test_id("similarity-a")).to_have_attribute("aria-label", re.compile(r"^a: 3, 2\.90\."))
        held_to_be(page, (3, 2.9), (1, 4))
        comes_to(page, a="3,2.9")

    def test_an_example_at_a_right_angle(self, tabs):
        page = tabs.open("similarity")
        page.get_by_role("button", name="Right angle").click()
        expect(page.get_by_test_id("similarity-angle")).to_have_text("90.0°")
        expect(page.get_by_test_id("similarity-dot")).to_have_text("0")

    def test_two_tokens_have_the_traces_score(self, tabs, demo):
        page = tabs.open("similarity", site=SITE, head=2, query=4, key=1)
        cell = ch.trace(demo, SOURCE)[SITE].head[2].cell(4, 1)
        figure = page.locator("figure", has=page.get_by_role("heading", name=re.compile("asks")))
        told = dict(zip(figure.locator("dt").all_inner_texts(), figure.locator("dd b").all_inner_texts(), strict=True))
        lengths = [math.hypot(*vector) for vector in (cell.query, cell.key)]
        assert says(told["dot product"], cell.score)
        assert says(told["scaled"], cell.scaled)
        assert says(told["length of query"], lengths[0])
        assert says(told["length of key"], lengths[1])
        assert says(told["cosine"], cell.score / lengths[0] / lengths[1])
        angle = math.degrees(math.acos(cell.score / lengths[0] / lengths[1]))
        assert says(told["angle"], angle)

    def test_without_its_scale_softmax_saturates(self, tabs, demo):
        page = tabs.open("similarity", site=SITE, head=2, query=4, key=1)
        score = ch.trace(demo, SOURCE)[SITE].head[2].score[4].double()
        figure = page.locator("figure", has=page.get_by_role("heading", name="Why the scores are scaled"))
        bits = figure.locator("tspan.value").first
        assert says(bits.text_content(), entropy(score / 32**0.5))
        page.get_by_test_id("similarity-scale").fill("1")
        expect(figure.locator("label b")).to_have_text("÷ 1")
        rests(page)
        assert says(bits.text_content(), entropy(score))


def placed(page, name):
    """Where the tip of a vector is said to be."""
    told = page.get_by_test_id(f"similarity-{name}").get_attribute("aria-label").split(":")[1]
    x, y = told.split(". ")[0].split(",")
    return number_in(x)[0], number_in(y)[0]


def held_to_be(page, a, b):
    """The numbers beside the plane are those of the two vectors in it."""
    dot, lengths = a[0] * b[0] + a[1] * b[1], math.hypot(*a) * math.hypot(*b)
    angle = math.degrees(math.acos(dot / lengths))
    for name, value in (("dot", dot), ("scaled", dot / 2**0.5), ("cosine", dot / lengths), ("angle", angle)):
        assert says(page.get_by_test_id(f"similarity-{name}").inner_text(), value), name


def entropy(scores):
    return torch.special.entr(torch.softmax(scores, -1)).sum().item() / math.log(2)


@pytest.fixture(scope="module")
def common(demo):
    """A word that is one whole token in two texts, and its place in each."""
    for one, other in combinations(TEXTS, 2):
        tokens = [ch.trace(demo, text, []).sides["encoder"].tokens[:-1] for text in (one, other)]
        word = next((token for token in tokens[0] if token in tokens[1] and len(token) > 3), None)
        if word:
            return word, (one, other), [row.index(word) for row in tokens]
    raise AssertionError("no two texts share a token; choose others")


class TestContext:
    def test_typed_sentences_part_by_layer_as_the_trace_says(self, tabs, demo, common):
        word, texts, places = common
        page = tabs.open("context")
        expect(page.locator("[data-line]")).not_to_have_count(0)
        drop_others(page, len(texts))
        page.get_by_test_id("context-word").fill(word)
        for index, text in enumerate(texts):
            page.get_by_test_id(f"context-text-{index}").fill(text)
        page.get_by_role("button", name="Compare", exact=True).click()
        comes_to(page, word=word, texts=json.dumps(texts, separators=(",", ":"), ensure_ascii=False))
        pair = page.locator("[data-line='A–B']")
        expect(page.locator("[data-line]")).to_have_count(1)
        expect(page.locator("figure svg").first).to_be_visible()
        for layer, cosine in enumerate(cosines(demo, texts, places)):
            page.get_by_test_id("context-slider").fill(str(layer))
            comes_to(page, layer=layer)
            assert says(pair.locator(".value").text_content(), cosine)
            assert float(pair.get_attribute("data-value")) == pytest.approx(cosine, abs=1e-5)

    def test_the_tokens_most_responsible(self, tabs, demo, common):
        word, texts, places = common
        page = tabs.open("context", word=word, texts=json.dumps(texts), layer=2)
        rows = page.locator("li", has=page.locator(".letter"))
        expect(rows).to_have_count(2)
        rests(page)
        for row, text, place in zip(rows.all(), texts, places, strict=True):
            made = ch.trace(demo, text, [])
            heads = made["encoder.1.attention"].head
            weight = torch.stack([head.weight[place] for head in heads]).mean(0)
            best = weight.topk(min(3, len(weight)))
            told = row.locator(".found span").all_inner_texts()
            assert len(told) == len(best.indices)
            for words, index, value in zip(told, best.indices.tolist(), best.values.tolist(), strict=True):
                assert words.startswith(made.sides["encoder"].tokens[index])
                assert says(words.split()[-2] + " %", value)

    def test_by_keyboard(self, tabs, common):
        word, texts, _ = common
        page = tabs.open("context", word=word, texts=json.dumps(texts), layer=2)
        tab_to(page, page.get_by_test_id("context-slider"))
        page.keyboard.press("ArrowLeft")
        comes_to(page, layer=1)
        expect(page.get_by_test_id("context-slider")).to_have_attribute("aria-valuetext", re.compile("After"))

    def test_played_to_the_last_layer(self, tabs, common):
        word, texts, _ = common
        page = tabs.open("context", word=word, texts=json.dumps(texts), layer=1)
        page.get_by_test_id("context-play").click()
        comes_to(page, layer=2)

    def test_a_word_that_is_not_there_is_told(self, tabs, common):
        page = tabs.open("context", word=common[0], texts=json.dumps(common[1]))
        tabs.provoked.append("status of 400")
        page.get_by_test_id("context-word").fill("einundzwanzigste")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("'einundzwanzigste' does not stand in")

    def test_it_begins_with_a_word_of_the_runs_own_examples(self, tabs):
        page = tabs.open("context")
        expect(page.locator("[data-line]")).not_to_have_count(0)
        assert page.get_by_test_id("context-word").input_value()


def drop_others(page, kept):
    """Take sentences away until so many are left."""
    fields = page.get_by_role("button", name=re.compile("^Remove sentence"))
    for left in range(fields.count() - 1, kept - 1, -1):
        fields.nth(kept).click()
        expect(fields).to_have_count(left)
        rests(page)


def cosines(demo, texts, places):
    """Of a token in two texts: how alike it is as an embedding, and after each layer."""
    made = [ch.trace(demo, text, []) for text in texts]
    layers = [[name for name in made[0].stream if name.startswith(f"encoder.{layer}.")][-1] for layer in range(2)]
    for name in ("encoder.embedding.token", *layers):
        one, other = (trace.value(name)[place] for trace, place in zip(made, places, strict=True))
        yield torch.cosine_similarity(one, other, dim=0).item()


class TestPositions:
    def test_waves_are_sines_of_the_position(self, tabs):
        page = tabs.open("positions", kind="sinusoidal", position=9, waves="0,10,40")
        told = page.locator("figure", has=page.locator("h2", has_text="The waves")).locator("figcaption").text_content()
        values = told.split("they are ")[1].split(", ")
        expected = [math.sin(9 / 10_000 ** (2 * pair / 128)) for pair in (0, 10, 40)]
        assert all(says(value, sine) for value, sine in zip(values, expected, strict=True))

    def test_similarity_falls_with_distance(self, tabs):
        page = tabs.open("positions")
        lines = page.locator("figure", has=page.locator("h2", has_text="against distance")).locator("[data-line]")
        expect(lines).to_have_count(3)
        told = {line.get_attribute("data-line"): line.locator(".value").text_content() for line in lines.all()}
        sinusoidal = sum(math.cos(63 / 10_000 ** (2 * pair / 128)) for pair in range(64)) / 64
        rotary = sum(math.cos(63 / 10_000 ** (2 * pair / 32)) for pair in range(16)) / 16
        assert says(told["Sinusoidal"], sinusoidal)
        assert says(told["Rotary"], rotary)

    def test_a_number_of_the_table_is_pointed_at(self, tabs):
        page = tabs.open("positions")
        picture = page.get_by_role("img", name=re.compile("^Sinusoidal: numbers"))

        def told():
            picture.hover(position={"x": 120, "y": 100})
            rests(page)
            return re.search(r"position (\d+), dimension (\d+): (\S+)", picture.locator(".tell").text_content())

        place, dimension, value = eventually(page, told).groups()
        angle = int(place) / 10_000 ** (2 * (int(dimension) // 2) / 128)
        assert says(value, math.cos(angle) if int(dimension) % 2 else math.sin(angle))
        picture.click(position={"x": 120, "y": 100})
        comes_to(page, position=place)

    def test_by_keyboard(self, tabs):
        page = tabs.open("positions", position=5)
        tab_to(page, page.get_by_role("button", name="Rotary", exact=True))
        page.keyboard.press("Enter")
        comes_to(page, kind="rotary")
        tab_to(page, page.get_by_test_id("positions-slider"))
        page.keyboard.press("ArrowRight")
        comes_to(page, position=6)
        shown(page, "positions")

    def test_the_positions_play(self, tabs):
        page = tabs.open("positions", position=5)
        page.get_by_test_id("positions-play").click()
        eventually(page, lambda: int(state(page)["position"]) > 6)
        page.get_by_test_id("positions-play").click()
