"""The margin, the scale softmax needs and what it does with less: held to softmax itself, over every text."""

import functools
import itertools
import math

import pytest
import torch

import clearhead as ch
from clearhead.craft.designs import by_content, by_position, combine
from clearhead.craft.inputs import inputs
from clearhead.craft.sharpness import HardestQuery, least_scale, measure_sharpness, scale_for
from tests.covering import few

WORDS = ["a", "b", "c"]


def texts(n, words=WORDS):
    return [list(text) for text in itertools.product(words, repeat=n)]


def margins(design, n):
    """The least margin over every text, by looking at each."""
    found = []
    for text in texts(n):
        score, wanted = design.scaled(1.0).explain(text).score[0].double(), design.targets(text)
        allowed = design.allowed(n)
        for row in range(n):
            others = allowed[row] & ~wanted[row]
            if wanted[row].any() and others.any():
                found.append((score[row][wanted[row]].min() - score[row][others].max()).item())
    return min(found)


def needed(design, n, epsilon):
    """The least scale that is enough for every text, by softmax itself."""
    plain, blocked = design.scaled(1.0), ~design.allowed(n)
    scores = torch.cat([plain.explain(text).score[0].masked_fill(blocked, -math.inf) for text in texts(n)])
    return least_scale(scores, torch.cat([design.targets(text) for text in texts(n)]), epsilon=epsilon)


@functools.cache
def designs():
    read, waves = inputs(WORDS, 5), inputs(WORDS, 5, waves=8)
    asks = {"a": ["b"], "b": ["a", "c"]}
    content, back = by_content(read, asks), by_position(read, offset=-1)
    first = by_content(read, {"a": ["b"], "b": ["b"]})
    return {
        "content": content,
        "graded": by_content(read, torch.tensor([[0.0, 2.0, 1.0], [0.0, 0.0, 3.0], [1.0, 1.0, 1.0]])),
        "correlated": by_content(read, asks, keys=torch.eye(3) + 0.3),
        "back": back,
        "first": by_position(read, absolute=0),
        "two places": by_position(read, function=lambda i, n: [i, i - 1]),
        "both": combine(content, back),
        "content first": combine(content, back, weights=(2.0, 0.5)),
        "not itself": combine(by_content(read, lambda x, y: x == y), by_position(read, offset=0), weights=(1.0, -1.0)),
        "latest": combine(first, by_position(read, scores=lambda i, j: (j - 4) / 5)),
        "causal content": content.seeing(ch.masks.causal()),
        "causal back": back.seeing(ch.masks.causal()),
        "waves": by_position(waves, offset=-1),
        "waves and content": combine(by_content(waves, asks), by_position(waves, offset=-1)),
    }


OFTEN = ("graded", "correlated", "both", "not itself", "latest", "causal back", "waves and content")
"""Each kind of score, of sum and of mask, alone or together; `make test-all` has every design."""
every_design = pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.thorough) for name in designs()]
)


@every_design
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.slow
def test_the_margin_is_the_least_of_any_text(name, n):
    design = designs()[name]
    assert design.sharpness(n).margin == pytest.approx(margins(design, n), abs=1e-6)


@every_design
@pytest.mark.parametrize("epsilon", few([0.001, 0.3], 1))
def test_the_scale_is_enough_and_where_all_others_score_alike_no_less_is(name, epsilon):
    design = designs()[name]
    sharp = design.sharpness(4, epsilon)
    found = needed(design, 4, epsilon)
    assert found <= sharp.needed * (1 + 1e-6) + 1e-9
    if name in ("content", "back", "first", "two places", "not itself", "causal content", "causal back"):
        assert found == pytest.approx(sharp.needed, rel=1e-6)


@every_design
@pytest.mark.parametrize("scale", few([3.0, 0.5], 1))
@pytest.mark.slow
def test_softmax_never_leaves_less_than_it_says(name, scale):
    design = designs()[name].scaled(scale)
    least = min(
        (design.weights(text) * design.targets(text)).sum(-1)[design.targets(text).any(-1)].min().item()
        for text in texts(4)
        if design.targets(text).any()
    )
    said = design.sharpness(4).weight()
    assert least >= said - 1e-6
    if name in ("content", "back", "first", "not itself", "causal back"):
        assert least == pytest.approx(said, abs=1e-6)


@every_design
@pytest.mark.slow
def test_argmax_is_exact(name):
    design = designs()[name]
    assert design.sharpness(4).exact
    for text in texts(4):
        wanted = design.targets(text)
        rows = wanted.any(-1)
        found = design.weights(text, ch.weighting.Argmax(ties="average"))[rows]
        share = wanted[rows].float() / wanted[rows].sum(-1, keepdim=True)
        assert torch.allclose((found * wanted[rows]).sum(-1), torch.ones(len(found)))
        assert name == "waves and content" or torch.allclose(found, share)  # there one wanted key may beat another


def test_the_formula():
    assert scale_for(margin=2.0, wanted=1, unwanted=9, epsilon=0.1) == pytest.approx(math.log(81) / 2)
    assert scale_for(margin=2.0, wanted=3, unwanted=9, epsilon=0.1) == pytest.approx(math.log(27) / 2)
    assert scale_for(margin=2.0, wanted=9, unwanted=1, epsilon=0.5) == 0
    assert scale_for(margin=0.0, wanted=1, unwanted=1, epsilon=0.1) == math.inf
    for wanted, unwanted, epsilon in itertools.product((1, 3), (4, 50), (0.2, 1e-6)):
        scores = torch.tensor([[0.7] * wanted + [0.0] * unwanted], dtype=torch.float64)
        found = least_scale(scores, scores > 0.5, epsilon=epsilon)
        said = scale_for(margin=0.7, wanted=wanted, unwanted=unwanted, epsilon=epsilon)
        assert found == pytest.approx(said, rel=1e-9)
        assert HardestQuery(0.7, wanted, unwanted).weight(said) == pytest.approx(1 - epsilon)


def test_the_longer_the_text_the_more_it_needs():
    head = by_position(inputs(WORDS, 40), offset=-1)
    found = [head.sharpness(n).needed for n in (2, 10, 40)]
    assert found == pytest.approx([math.log((n - 1) * 99) for n in (2, 10, 40)])


def test_waves_are_less_sharp_than_one_hot_positions():
    found = {waves: by_position(inputs(["a"], 24, waves=waves), offset=-1).sharpness(24).margin for waves in (8, 32)}
    for waves, margin in found.items():
        table = ch.positions.Sinusoidal().embed(waves).at(torch.arange(-1, 24)).double()
        scores = 2 / waves * table @ table.T
        assert margin == pytest.approx(1 - scores.fill_diagonal_(0).max().item(), abs=1e-5)
        assert 0 < margin < 0.2


def test_a_design_that_cannot_be_sharp_says_so():
    read = inputs(WORDS, 4)
    same = by_content(read, {"a": ["b"]}, keys=torch.ones(3, 2))
    assert not same.sharpness(4).exact
    assert same.sharpness(4).needed == math.inf
    assert "no scale is enough" in str(same.sharpness(4))
    with pytest.raises(ch.ClearheadError, match="no scale is enough at 4 tokens"):
        same.sharpened(4)


def test_it_prints_what_it_found():
    assert str(by_position(inputs(WORDS, 10), offset=-1).sharpness(10)) == (
        "at 10 tokens the score of a target is at least 1 above the others\n"
        "softmax puts 0.99 of the weight on the target from scale 6.792 on\n"
        "at least on the target: 0.232 at scale 1, 0.378 at scale 1.698, 0.768 at scale 3.396, 0.990 at scale 6.792\n"
        "argmax is exact"
    )


def test_a_design_of_which_nothing_is_wanted_says_so():
    nothing = by_content(inputs(WORDS, 4), {}).sharpness(4)
    assert str(nothing) == "at 4 tokens no query wants a key, so there is no margin"
    assert not nothing.exact
    first = by_position(inputs(WORDS, 4), offset=-1).sharpness(1)
    assert "no query wants a key" in str(first)


def test_a_design_whose_queries_see_nothing_else_says_so():
    alone = by_content(inputs(WORDS, 4), {word: list(WORDS) for word in WORDS}).sharpness(3)
    assert str(alone) == "at 3 tokens a query that wants a key sees no other: its weight is 1 at any scale"
    assert (alone.exact, alone.needed, alone.weight()) == (True, 0.0, 1.0)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -1.0])
def test_epsilon_is_a_share(epsilon):
    with pytest.raises(ch.ClearheadError, match="between 0 and 1"):
        by_content(WORDS, {}).sharpness(3, epsilon)


def test_measured_counts_queries_that_want_something():
    masked = torch.tensor([[1.0, 0.0, -math.inf], [0.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    wanted = torch.tensor([[True, False, False], [False, True, False], [False, False, False]])
    found = measure_sharpness([(masked, torch.softmax(masked, -1), wanted)])
    weights = [1 / (1 + math.exp(-1)), math.exp(2) / (1 + math.exp(2) + math.exp(3))]
    assert (found.queries, found.right) == (2, 0.5)
    assert found.weight == pytest.approx(sum(weights) / 2)
    assert found.least == pytest.approx(weights[1])
    assert "best key is a target 50.0% of the time" in str(found)
    with pytest.raises(ch.ClearheadError, match="no query"):
        measure_sharpness([(masked, masked, torch.zeros(3, 3, dtype=torch.bool))])
