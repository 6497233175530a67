"""What a head copies and looks for over the vocabulary: held to whole matrices, and to models that do it."""

import pytest
import torch

from clearhead.circuits import Graph, HeadVocabulary
from clearhead.circuits import vocabulary as vocabulary_module
from clearhead.errors import OptionError, PlaceError
from clearhead.tracing import trace_model
from tests.circuits.random_models import make

KINDS = ["none", "pre", "pre-rms-rotary-grouped", "post", "pre-qk-norm", "both-pre", "pre-sliced-cosine", "kernelized"]


def test_copied_is_the_whole_matrix_row_by_row():
    """W_E W_V W_O W_U, made whole, where no norm stands on the way."""
    model = make("none").model
    graph, at = Graph(model), "decoder.1.attention"
    weight, bias = graph.matrices[f"{at}.value"]
    table = model.embedding.table.detach() * model.embedding.factor
    whole = (table @ weight[2] + bias[2]) @ graph.matrices[at].weight[2] @ model.output.table.detach().T
    head = HeadVocabulary(model, at, 2)
    for token in range(11):
        [row] = head.logits_of(torch.tensor([token]))
        assert (row - whole[token]).abs().max() < 1e-12
    top = [found.id for found in head.copies(4, 3)]
    assert top == whole[4].topk(3).indices.tolist()
    low = [found.id for found in head.copies(4, 3, largest=False)]
    assert low == whole[4].topk(3, largest=False).indices.tolist()


@pytest.mark.parametrize("name", KINDS)
def test_sought_is_the_score_that_a_trace_has_without_positions(name, monkeypatch):
    """In the first layer of a text of all tokens, where no position is added or turned."""
    monkeypatch.setattr(vocabulary_module, "BLOCK", 36)
    case = make(name)
    sides = list(case.clean.tokens)
    tokens = torch.arange(11).unsqueeze(0)
    for part in case.model.stacks:
        part.embedding.position = None
    trace = trace_model(case.model, *(tokens for _ in sides))
    site = trace[f"{sides[-1]}.0.attention"]
    if site.position.turns:
        pytest.skip("rotary turns queries and keys")
    for head in site.head:
        scores = HeadVocabulary(case.model, site.name, head.index).scores_of(torch.tensor([3]))
        assert (scores - head.scaled[3]).abs().max() < 1e-12


def test_a_head_that_copies_has_a_copying_score_of_one():
    case = make("none")
    model, at = case.model, "decoder.0.attention"
    layer = model.stack.blocks[0].attention
    with torch.no_grad():
        model.embedding.table.copy_(torch.eye(11, 12, dtype=torch.float64))
        model.output.table.copy_(model.embedding.table)
        for parameter in (*layer.value.parameters(), *layer.output.parameters()):
            parameter.copy_(torch.eye(12, dtype=torch.float64)) if parameter.ndim == 2 else parameter.zero_()
    of_slices = [HeadVocabulary(model, at, head).copying(most=1) for head in range(3)]
    for share, own in zip(of_slices, (4, 4, 3), strict=True):  # each head has a third of the directions
        assert own / 11 <= share <= (own + 1) / 11
    assert HeadVocabulary(model, at, 0).copies(1, 1)[0].id == 1


def test_heads_and_tokens_that_are_not_there_are_refused():
    model = make("pre").model
    with pytest.raises(PlaceError, match="there is no head 3; there are 3"):
        HeadVocabulary(model, "decoder.0.attention", 3)
    with pytest.raises(OptionError, match="expected a number below 11"):
        HeadVocabulary(model, "decoder.0.attention", 0).copies(11)
    with pytest.raises(OptionError, match="no head can copy one"):
        HeadVocabulary(make("classes").model, "encoder.0.attention", 0).copies(1)
