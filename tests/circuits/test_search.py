"""Exact patching, nodes, ACDC and learned masks."""

import torch

from clearhead.circuits import ACDC, EAP, EdgePruning, Exact, NodeAttribution, NodePatching, patch_edges, score_edges
from tests.circuits.random_models import make
from tests.circuits.test_gradients import contrast_of, off


def test_exact_patching_is_one_edge_after_another(monkeypatch):
    contrast = contrast_of(make("both-pre"))
    graph = contrast.graph
    monkeypatch.setattr("clearhead.circuits.methods.MOST_NUMBERS", 50_000)  # so that it takes several passes
    scores = score_edges(Exact(), contrast)
    for number in range(0, len(graph.edges), 23):
        logits = patch_edges(graph, contrast.clean, [graph.edges[number]], contrast.source)
        assert off(scores[:, number], contrast.metric(logits.unsqueeze(0))[0] - contrast.clean_value) < 1e-12


def test_a_node_is_all_edges_of_a_sender():
    contrast = contrast_of(make("pre"))
    scores, attributed, eap = (score_edges(method, contrast) for method in (NodePatching(), NodeAttribution(), EAP()))
    for sender in contrast.graph.senders:
        edges = contrast.graph.edges_of(sender)
        change = contrast.patched(edges.unsqueeze(0))[0] - contrast.clean_value
        assert off(scores[:, edges], change.unsqueeze(1).expand(-1, int(edges.sum()))) < 1e-12
        assert off(attributed[:, edges][:, 0], eap[:, edges].sum(1)) < 1e-12


def test_acdc_keeps_fewer_edges_at_higher_thresholds_and_the_metric():
    contrast = contrast_of(make("pre"))
    scores = score_edges(ACDC(thresholds=(0.01, 0.2)), contrast)[0]
    assert set(scores.tolist()) == {0.0, 0.01, 0.2}
    kept = scores >= 0.01
    patched = contrast.patched(~kept.unsqueeze(0))[0]
    # Each edge may change the metric by a hundredth of the difference, so all of them by so many hundredths at most.
    bound = 0.01 * (contrast.clean_value - contrast.other_value).abs().mean() * (~kept).sum()
    assert (patched - contrast.clean_value).abs().mean() <= bound


def test_learned_masks_keep_what_matters_and_are_seeded():
    contrast = contrast_of(make("pre"))
    scores = score_edges(EdgePruning(steps=60, sparsity=4.0), contrast)[0]
    assert torch.equal(scores, score_edges(EdgePruning(steps=60, sparsity=4.0), contrast)[0])
    exact = score_edges(Exact(), contrast).abs().mean(0)
    top = exact.topk(20).indices
    assert scores[top].mean() > scores.mean() + 0.1
