"""QK attribution: pairs of senders sum to the score that the model has, for every bilinear similarity."""

import pytest

from clearhead.attention import reference
from clearhead.circuits import Graph, Texts, qk_attribution
from clearhead.circuits.edge_edits import KeptCalls
from clearhead.circuits.forward import run_graph
from clearhead.errors import OptionError
from tests.circuits.random_models import SPECS, make

REFUSED = ("pre-sliced-cosine", "kernelized")


@pytest.mark.parametrize("name", [name for name in SPECS if name not in REFUSED])
def test_pairs_sum_to_the_score(name):
    case = make(name)
    graph = Graph(case.model)
    kept = KeptCalls()
    segments = None if case.clean.segments is None else case.clean.segments[:1]
    texts = Texts(tokens={side: rows[:1] for side, rows in case.clean.tokens.items()}, segments=segments)
    run_graph(graph, texts, listener=kept)
    for at, call in kept.calls.items():
        masked = reference.steps(call).masked.detach()
        for head, query, key in ((0, 3, 1), (1, 4, 0), (call.n_heads - 1, 2, 2)):
            found = qk_attribution(graph, texts, at=at, head=head, query=query, key=key)
            assert found.total == pytest.approx(float(masked[0, head, query, key]), rel=0, abs=1e-12)
            assert found.pairs.abs().max() > 1e-6


def test_the_largest_pairs_come_first():
    case = make("pre")
    found = qk_attribution(Graph(case.model), case.clean, at="decoder.2.attention", head=1, query=3, key=2)
    ranked = found.ranked(3)
    assert [abs(pair.value) for pair in ranked] == sorted((abs(pair.value) for pair in ranked), reverse=True)
    first = ranked[0]
    row, column = found.query_senders.index(first.query), found.key_senders.index(first.key)
    assert float(found.pairs[row, column]) == first.value
    assert abs(first.value) == float(found.pairs.abs().max())


@pytest.mark.parametrize(("name", "part"), [("pre-sliced-cosine", "Cosine"), ("kernelized", "")])
def test_what_is_not_bilinear_is_refused_by_name(name, part):
    case = make(name)
    side = "encoder" if "encoder" in case.clean.tokens else "decoder"
    with pytest.raises(OptionError, match=f"{part}.* is not bilinear"):
        qk_attribution(Graph(case.model), case.clean, at=f"{side}.0.attention", head=0, query=1, key=0)


def test_a_place_that_is_not_there_is_named():
    case = make("pre")
    with pytest.raises(OptionError, match="there are 3 of head"):
        qk_attribution(Graph(case.model), case.clean, at="decoder.0.attention", head=3, query=1, key=0)
