"""Circuits and their cards: the ends of every figure, and MIB's areas by hand."""

import re
from itertools import pairwise

import pytest
import torch

from clearhead.circuits import Circuit, CircuitCard, Contrast, Graph, find_circuit, make_card
from clearhead.circuits.circuit import (
    SIZES,
    Faithfulness,
    area,
    choose,
    jaccard,
    on_a_path,
    order_from_output,
    stability,
    top,
)
from clearhead.errors import OptionError
from tests.circuits.random_models import LINEAR, SPECS, make
from tests.circuits.test_gradients import METRIC, contrast_of


def circuit_of(contrast, chosen):
    scores = torch.randn(2, len(contrast.graph.edges), dtype=torch.float64)
    return Circuit(graph=contrast.graph, scores=scores, chosen=chosen)


def test_all_edges_are_the_model_and_none_the_other_text():
    contrast = contrast_of(make("pre"))
    none = torch.zeros(len(contrast.graph.edges), dtype=torch.bool)
    assert Faithfulness(contrast)(torch.stack([~none, none])) == pytest.approx([1, 0], abs=1e-12)
    card = make_card(contrast, circuit_of(contrast, ~none))
    assert (card.faithfulness, card.completeness) == pytest.approx((1, 1), abs=1e-12)
    assert card.edges == card.of == len(none)


def test_the_figures_are_what_they_say():
    """Each by another way: one patched pass at a time, and MIB's sums written out."""
    contrast = contrast_of(make("pre"))
    circuit = find_circuit(contrast, method="eap", edges=12)
    assert 0 < int(circuit.chosen.sum()) <= 12
    card = make_card(contrast, circuit)
    nothing = contrast.other_value.mean()

    def faithfulness(kept):
        value = contrast.patched(~kept.unsqueeze(0)).mean()
        return float((value - nothing) / (contrast.clean_value.mean() - nothing))

    own = faithfulness(circuit.chosen)
    assert card.faithfulness == pytest.approx(own, abs=1e-12)
    assert card.completeness == pytest.approx(1 - faithfulness(~circuit.chosen), abs=1e-12)
    mean = circuit.scores.mean(0)
    cpr = cmd = 0.0
    for low, high in pairwise(SIZES):
        for share in (low, high):
            count = int(share * len(mean))
            helpful, large = torch.zeros_like(circuit.chosen), torch.zeros_like(circuit.chosen)
            helpful[sorted(range(len(mean)), key=lambda n: float(mean[n]))[:count]] = True
            large[sorted(range(len(mean)), key=lambda n: -abs(float(mean[n])))[:count]] = True
            cpr += (high - low) / 2 * faithfulness(helpful)
            cmd += (high - low) / 2 * abs(1 - faithfulness(large))
    assert (card.cpr, card.cmd) == pytest.approx((cpr, cmd), abs=1e-9)
    needed = 0
    for number in circuit.chosen.nonzero().flatten().tolist():
        fewer = circuit.chosen.clone()
        fewer[number] = False
        needed += abs(faithfulness(fewer) - own) >= 0.01
    assert card.minimality == needed / int(circuit.chosen.sum())


def test_the_edges_come_in_order_of_size():
    contrast = contrast_of(make("none"))
    found = find_circuit(contrast, method="eap", edges=5).edges
    assert [abs(score) for _, score in found] == sorted((abs(score) for _, score in found), reverse=True)
    with pytest.raises(OptionError, match="this graph has"):
        find_circuit(contrast, edges=10**6)


def test_stability_is_one_where_all_pairs_agree_and_unknown_for_one_pair():
    contrast = contrast_of(make("none"))
    chosen = top(torch.arange(len(contrast.graph.edges), dtype=torch.float32), 30)
    alike = torch.rand(len(chosen), generator=torch.manual_seed(0)).expand(6, -1)
    apart = torch.rand(6, len(chosen), generator=torch.manual_seed(0))
    one, many, unlike = (Circuit(graph=contrast.graph, scores=s, chosen=chosen) for s in (alike[:1], alike, apart))
    assert stability(one) is None
    assert stability(many) == 1.0
    assert stability(unlike) < 0.9


@pytest.mark.parametrize("name", SPECS)
def test_a_circuit_is_made_of_paths_and_the_rest_changes_nothing(name):
    """Edges on no path may be patched or not; the order is that of always taking the largest edge that leads on."""
    contrast = contrast_of(make(name))
    graph = contrast.graph
    torch.manual_seed(0)
    some = torch.rand(4, len(graph.edges)) < 0.3
    paths = torch.stack([on_a_path(graph, mask) for mask in some])
    assert (some & ~paths).any(), "nothing was pruned"
    if name in LINEAR and name != "pre-qk-norm":  # norms on the way, or over all heads, mix edges
        assert torch.allclose(contrast.patched(~some), contrast.patched(~paths), rtol=0, atol=1e-11)
    sizes = torch.rand(len(graph.edges))
    order = order_from_output(graph, sizes)
    assert len(order) == len(set(order))
    reached = set(graph.last)
    for number in order[:40]:
        best = max(
            (
                n
                for n, edge in enumerate(graph.edges)
                if edge.receiver in reached and n not in order[: order.index(number)]
            ),
            key=lambda n: float(sizes[n]),
        )
        assert number == best
        reached.update(graph.inputs[graph.edges[number].sender])
    chosen = choose(graph, sizes, 40)
    assert 0 < int(chosen.sum()) <= 40
    assert torch.equal(on_a_path(graph, chosen), chosen)


def test_so_many_edges_as_make_paths_and_no_more_than_asked():
    contrast = contrast_of(make("pre"))
    counts = [int(choose(contrast.graph, torch.rand(len(contrast.graph.edges)), n).sum()) for n in (10, 60, 10**4)]
    assert counts[0] <= 10
    assert 50 <= counts[1] <= 60
    assert counts[2] == len(contrast.graph.edges)
    with pytest.raises(OptionError, match=r"ask for [0-9]+ or more") as raised:
        find_circuit(contrast, method="random(seed=1)", edges=1)
    least = int(re.findall("ask for ([0-9]+)", str(raised.value))[0])
    assert int(find_circuit(contrast, method="random(seed=1)", edges=least).chosen.sum()) == least


def test_edges_that_do_nothing_are_not_taken():
    graph = contrast_of(make("classes-ngrams")).graph
    sizes = torch.zeros(len(graph.edges))
    assert not choose(graph, sizes, 5).any()
    sizes[graph.find("encoder.ngrams -> encoder.logits")] = 1
    assert choose(graph, sizes, 5).nonzero().tolist() == [[graph.find("encoder.ngrams -> encoder.logits")]]


@pytest.mark.parametrize(
    ("faithfulness", "completeness", "said"),
    [
        (0.0, 0.85, "lost, but by themselves they do not make it"),
        (0.9, 0.2, "a backup"),
        (0.9, 0.9, "and without them it is lost"),
        (0.1, 0.1, "neither"),
        (1.5, 0.9, "work against it"),
    ],
)
def test_a_card_says_in_words_what_its_figures_mean(faithfulness, completeness, said):
    card = CircuitCard(
        edges=6, of=60, cpr=0, cmd=0, minimality=0, stability=None, faithfulness=faithfulness, completeness=completeness
    )
    assert said in card.says


def test_circuits_are_specific_where_they_share_nothing():
    contrast = contrast_of(make("none"))
    one, two = (torch.zeros(len(contrast.graph.edges), dtype=torch.bool) for _ in range(2))
    one[:4], two[2:8] = True, True
    assert jaccard(one, two) == 2 / 8
    card = make_card(contrast, circuit_of(contrast, one), unlike=circuit_of(contrast, two))
    assert card.specificity == 1 - 2 / 8
    assert [name for name, *_ in card.rows()][-1] == "specificity"


def test_texts_with_the_same_value_are_refused():
    case = make("pre")
    contrast = Contrast(Graph(case.model), case.clean, case.clean, METRIC)
    with pytest.raises(OptionError, match="is the same"):
        Faithfulness(contrast)


def test_the_area_is_one_for_a_constant_one():
    assert area([1.0] * len(SIZES)) == pytest.approx(SIZES[-1] - SIZES[0])
    assert top(torch.tensor([1.0, 3.0, 2.0]), 2).tolist() == [False, True, True]
