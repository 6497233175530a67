"""The sequence diagram: lifelines and arrows as the notes describe them, with the numbers of the steps."""

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest
import torch

from clearhead.attention.attend import explain
from clearhead.attention.masks import causal, everything
from clearhead.attention.positions import ALiBi
from clearhead.attention.weighting import Argmax, Kernelized, Softmax
from clearhead.tracing.sentence import TOKENS, creature_exchange, designed_layer, embeddings
from clearhead.tracing.sequence_diagram import (
    MOST_KEYS,
    NARROW,
    NARROW_EDGE,
    draw_sequence,
    exchange_of,
    number,
    weight_text,
)

SVG = "{http://www.w3.org/2000/svg}"


CREATURE = TOKENS.index("creature")


def drawn(exchange, **options):
    """The elements of a diagram."""
    return ElementTree.fromstring(draw_sequence(exchange, **options))


def arrows(tree):
    """The label of every arrow by its name, and whether it goes to the right."""
    return {
        group.get("data-arrow"): group.find(f"{SVG}text").text
        for group in tree.iter(f"{SVG}g")
        if group.get("data-arrow")
    }


def texts(tree):
    return [one.text for one in tree.iter(f"{SVG}text")]


def test_every_query_meets_every_key_and_the_arrows_bear_the_scores_and_weights():
    tree = drawn(creature_exchange(CREATURE))
    steps = designed_layer(Softmax(), everything()).explain(embeddings()).without_batch()
    found = arrows(tree)
    for query in range(5):
        for key in range(5):
            assert found[f"score {query} {key}"] == number(steps.score[query, key].item())
    for key in range(5):
        assert found[f"weight 4 {key}"] == f"× {weight_text(steps.weight[CREATURE, key].item())}"
    assert found["weighted sum"] == "Weighted Sum"
    assert len(found) == 25 + 5 + 1


def test_queries_keys_and_values_are_objects_with_their_numbers():
    said = texts(drawn(creature_exchange(CREATURE)))
    for role in "qkv":
        assert [text for text in said if text.startswith(f"{role}: ")] == [f"{role}: {token}" for token in TOKENS]
    assert "det       2" in said
    adjectives = ["soft  0.314", "blue  0.314", "cute  0.314"]
    assert [text for text in said if "0.314" in text] == [*["× 0.314"] * 3, *adjectives]


def test_what_is_masked_is_said_to_be_and_weighs_nothing():
    found = arrows(drawn(creature_exchange(1, Softmax(), causal())))
    assert found["score 1 4"] == "6 masked"
    assert found["weight 1 4"] == "× 0"
    assert not found["score 1 0"].endswith("masked")


def test_another_weighting_is_named_and_used():
    tree = drawn(creature_exchange(CREATURE, Argmax()))
    assert any("argmax of score" in text for text in texts(tree))
    assert sorted(label for name, label in arrows(tree).items() if name.startswith("weight 4")) == [
        *(["× 0"] * 4),
        "× 1.000",
    ]


def test_of_a_long_text_the_largest_weights_are_drawn_and_the_rest_is_summed():
    torch.manual_seed(0)
    steps = explain(torch.randn(2, 16), torch.randn(40, 16), torch.randn(40, 6))
    names = [f"t{i}" for i in range(40)]
    exchange = exchange_of("long", "", (["a", "b"], names), steps, 1, scale=0.25)
    assert len(exchange.keys) == MOST_KEYS
    assert set(exchange.keys) == set(steps.weight[1].topk(MOST_KEYS).indices.tolist())
    weight, brought = exchange.remainder
    drawn_part = steps.weight[1, exchange.keys] @ steps.value[exchange.keys]
    torch.testing.assert_close(drawn_part + brought, steps.context[1])
    found = arrows(drawn(exchange))
    assert found["weight rest"] == f"× {weight_text(weight)} in all"
    assert any(text == "… 16 in all" for text in texts(drawn(exchange)))


def test_a_bias_of_the_position_is_part_of_what_is_weighed():
    torch.manual_seed(0)
    steps = explain(torch.randn(1, 4, 8), torch.randn(1, 4, 8), torch.randn(1, 4, 8), position=ALiBi(), mask=causal())
    steps = steps.without_batch()
    tree = drawn(exchange_of("biased", "", (list("abcd"), list("abcd")), steps, 2, scale=8**-0.5))
    assert "3  Weights: softmax of score × 0.354 + bias, for “c”" in texts(tree)
    found = arrows(tree)
    logits = []
    for key in range(3):
        bias, weight = found[f"weight 2 {key}"].removeprefix("bias ").split(": × ")
        logits.append(steps.score[2, key].item() * 8**-0.5 + float(bias.replace("−", "-")))
        assert weight == weight_text(steps.weight[2, key].item())
    torch.testing.assert_close(torch.tensor(logits).softmax(0), steps.weight[2, :3], atol=1e-3, rtol=0)
    assert "bias" not in "".join(texts(drawn(creature_exchange(CREATURE))))


def test_what_a_kernel_may_not_see_is_masked_too_and_its_score_is_called_what_it_is():
    torch.manual_seed(0)
    options = {"weighting": Kernelized(), "mask": causal()}
    steps = explain(torch.randn(3, 8), torch.randn(3, 8), torch.randn(3, 8), **options)
    allowed = torch.ones(3, 3).tril().bool()
    tokens = (list("abc"), list("abc"))
    tree = drawn(exchange_of("k", "", tokens, steps, 1, scale=1.0, allowed=allowed, formula="φ(query) · φ(key)"))
    assert arrows(tree)["score 1 2"].endswith(" masked")
    assert not arrows(tree)["score 1 1"].endswith("masked")
    assert "2  Scores: each query meets each key, score = φ(query) · φ(key)" in texts(tree)
    assert "bias" not in "".join(filter(None, texts(tree)))


@pytest.mark.parametrize(
    ("room", "queries", "lifelines"), [(1700, 5, 17), (1600, 1, 13), (1300, 1, 13), (1200, 1, 7), (300, 1, 7)]
)
def test_in_a_narrow_room_the_followed_query_is_drawn_and_keys_stand_above_their_values(room, queries, lifelines):
    steps = designed_layer(Softmax(), everything()).explain(embeddings()).without_batch()
    exchange = exchange_of("", "", (TOKENS, TOKENS), steps, 3, scale=0.5, room=room)
    assert (len(exchange.queries), len(exchange.keys)) == (queries, 5)
    tree = drawn(exchange)
    assert len([one for one in tree.iter(f"{SVG}path") if one.get("class") == "life"]) == lifelines
    assert float(tree.get("width")) <= max(room, 7 * NARROW + 2 * NARROW_EDGE)
    found = arrows(tree)
    assert [found[f"weight 3 {key}"] for key in range(5)] == [
        f"× {weight_text(weight)}" for weight in steps.weight[3].tolist()
    ]
    assert found["weighted sum"] == "Weighted Sum"
    boxes = [tuple(float(one.get(name)) for name in ("x", "y", "width", "height")) for one in objects(tree)]
    assert all(apart(one, other) for one, other in combinations(boxes, 2))


def objects(tree):
    return [one.find(f"{SVG}rect") for one in tree.iter(f"{SVG}g") if not one.get("data-arrow")]


def apart(one, other):
    (x, y, wide, tall), (x2, y2, wide2, tall2) = one, other
    return x + wide <= x2 or x2 + wide2 <= x or y + tall <= y2 or y2 + tall2 <= y


def test_a_query_is_drawn_without_the_others_where_fewer_are_asked_for():
    steps = designed_layer(Softmax(), everything()).explain(embeddings()).without_batch()
    assert exchange_of("", "", (TOKENS, TOKENS), steps, 3, scale=0.5, most_queries=4).queries == (3,)


@pytest.mark.parametrize("standalone", [True, False])
def test_tokens_are_escaped_and_only_a_file_of_its_own_follows_the_machine(standalone):
    steps = designed_layer(Softmax(), everything()).explain(embeddings()).without_batch()
    odd = ["<b>", "&amp", "\x07\n", 'say "hi"', "a very long token indeed"]
    text = draw_sequence(exchange_of('"<t>"', "&", (odd, odd), steps, 0, scale=0.5), standalone=standalone)
    ElementTree.fromstring(text)
    assert ("prefers-color-scheme" in text) == standalone
    assert "<b>" not in text
    assert not re.search("[\x00-\x09\x0b-\x1f]", text)
