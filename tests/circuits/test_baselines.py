"""Methods that patch nothing."""

import torch

from clearhead.circuits import (
    Contrast,
    Graph,
    InformationFlowRoutes,
    LogitDifference,
    Random,
    Texts,
    WeightSize,
    score_edges,
)
from tests.circuits.random_models import SPECS, make
from tests.circuits.test_gradients import contrast_of


def test_shares_of_the_stream_sum_to_one_at_each_receiver():
    for name in ("pre", "post", "both-pre"):
        contrast = contrast_of(make(name))
        scores = score_edges(InformationFlowRoutes(), contrast)
        for port in contrast.graph.ports.values():
            sums = scores[:, port.edges].unflatten(1, port.shape).sum(1)
            assert torch.allclose(sums, torch.ones_like(sums))


def test_padding_has_no_share():
    """The second text is padded: by itself, without the padding, its shares are the same."""
    case = make("classes")
    whole = score_edges(InformationFlowRoutes(), contrast_of(case))
    n = int(case.clean.lengths["encoder"][1])
    alone = [Texts(tokens={"encoder": texts.tokens["encoder"][1:, :n]}) for texts in (case.clean, case.other)]
    metric = LogitDifference(answer=torch.tensor([0]), other=torch.tensor([1]))
    found = score_edges(InformationFlowRoutes(), Contrast(Graph(case.model), *alone, metric))
    assert torch.allclose(whole[1:], found, atol=1e-12)


def test_a_product_of_weights_is_zero_where_a_reader_reads_nothing_of_a_writer():
    for name in SPECS:
        contrast = contrast_of(make(name))
        graph = contrast.graph
        at = next(iter(graph.names.sites))
        layer = graph.names.sites[at]
        with torch.no_grad():
            graph.matrices[f"{at}.key"].weight[0] = 0
        scores = score_edges(WeightSize(), contrast)[0]
        zero = {graph.edges[number].receiver for number in (scores == 0).nonzero().flatten().tolist()}
        assert zero == {f"{at}.key.0"}, layer


def test_chance_has_a_seed():
    contrast = contrast_of(make("pre"))
    assert torch.equal(score_edges(Random(3), contrast), score_edges(Random(3), contrast))
    assert not torch.equal(score_edges(Random(3), contrast), score_edges(Random(4), contrast))
