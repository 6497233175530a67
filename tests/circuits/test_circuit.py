"""Circuits and their cards: the ends of every figure, and MIB's areas by hand."""

from itertools import pairwise

import pytest
import torch

from clearhead.circuits import Circuit, Contrast, Graph, find_circuit, make_card
from clearhead.circuits.circuit import SIZES, Faithfulness, area, jaccard, stability, top
from clearhead.errors import OptionError
from tests.circuits.random_models import make
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
    assert int(circuit.chosen.sum()) == 12
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
    assert card.minimality == needed / 12


def test_the_edges_come_in_order_of_size():
    contrast = contrast_of(make("none"))
    found = find_circuit(contrast, method="eap", edges=5).edges
    assert [abs(score) for _, score in found] == sorted((abs(score) for _, score in found), reverse=True)
    with pytest.raises(OptionError, match="this graph has"):
        find_circuit(contrast, edges=10**6)


def test_stability_is_one_where_all_pairs_agree_and_unknown_for_one_pair():
    scores = torch.arange(10.0).expand(6, -1)
    assert stability(scores, 4) == 1.0
    assert stability(scores[:1], 4) is None
    apart = torch.eye(6).repeat_interleave(2, 1)
    assert stability(apart, 4) < 0.9


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
