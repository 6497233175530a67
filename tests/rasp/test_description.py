"""A compiled program in words: every predicate, head and network of it."""

import pytest

from clearhead.rasp import PROGRAMS, plan, select, selector_width, tokens
from clearhead.rasp.description import describe_layers, list_program, name_relation
from clearhead.rasp.operations import HeadCondition
from clearhead.rasp.spaces import Space


@pytest.mark.parametrize(
    ("predicate", "told"),
    [
        (lambda key, query: True, "any key"),
        (lambda key, query: key == query - 1, "key = query − 1"),
        (lambda key, query: key in (1, 3), "key is 1 3"),
        (lambda key, query: False, "none"),
        (lambda key, query: (key, query) in ((0, 3), (1, 1)), "2 of 16 pairs, such as key 0 for query 3"),
    ],
)
def test_a_predicate_is_told_in_words(predicate, told):
    numbers = Space(name="n", values=(0, 1, 2, 3))
    assert name_relation(HeadCondition(keys=numbers, queries=numbers, predicate=predicate)) == told


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.slow
def test_every_head_and_unit_of_a_plan_is_described_where_it_stands(name):
    made = PROGRAMS[name].plan()
    layers = describe_layers(made)
    heads = [head for layer in layers for head in layer["heads"]]
    assert (len(layers), len(heads)) == (made.layers, made.heads)
    assert sum(layer["units"] for layer in layers) == made.units
    model = made.build().model
    sites = {f"{side}.{number}.{slot}": layer for side, number, slot, layer in attentions(model)}
    for head in heads:
        assert head["head"] < sites[head["site"]].shape.n_heads
        assert head["words"].endswith(f" → {head['writes']}")
        assert head["site"].endswith(".cross") == head["cross"]


def attentions(model):
    from clearhead.tracing.names import Names

    return [(*name.split("."), layer) for name, layer in Names(model).sites.items()]


def test_sort_layer_by_layer():
    layers = describe_layers(PROGRAMS["sort"].plan())
    first, *_, last = [head["words"] for layer in layers for head in layer["heads"]]
    assert first == "select(tokens, tokens, key < query), then count what is selected → 1 / (1 + smaller)"
    assert last == "select(rank, indices of all, key = query), then aggregate(tokens) → in order"
    networks = [one["words"] for layer in layers for one in layer["network"]]
    assert "smaller and equal and earlier → rank" in networks


def test_the_listing_of_sort():
    tied = "select(tokens, tokens, key = query) & select(indices, indices, key < query)"
    assert list_program(PROGRAMS["sort"].plan()) == [
        "smaller = selector_width(select(tokens, tokens, key < query))",
        f"equal and earlier = selector_width({tied})",
        "rank = map(smaller, equal and earlier)",
        "in order = aggregate(select(rank, indices, key = query), tokens)",
    ]


def test_two_sequences_of_one_name_are_told_apart():
    every = select(tokens, tokens, lambda key, query: True)
    both = selector_width(every) - selector_width(every)
    lines = list_program(plan(both, "ab", length=2))
    assert [line.split(" = ")[0] for line in lines] == ["width", "width′", "width - width"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_has_a_listing_that_ends_with_its_output(name):
    made = PROGRAMS[name].plan()
    last, _ = list_program(made)[-1].split(" = ", 1)
    assert last.rstrip("′") == made.program.name
