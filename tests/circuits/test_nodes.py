"""Node patching: many patches in one batch are what one Edit at a time gives, and what all edges of a node give."""

from typing import Any

import pytest
import torch

from clearhead.circuits import Graph, LogitDifference, Texts, patch_edges, record
from clearhead.circuits import nodes as node_patching
from clearhead.circuits.nodes import KINDS, NodePatch, at_places, list_nodes, patch_nodes, read_nodes
from clearhead.errors import OptionError, ShapeError
from clearhead.tracing import trace_model
from clearhead.tracing.edits import Edit
from clearhead.tracing.recording import recording
from tests.circuits.random_models import LINEAR, SPECS, make


def one_text(texts):
    row = texts[:1]
    return Texts(tokens=row.tokens, segments=row.segments)


def traced(case, text, changes=()):
    return trace_model(case.model, *text.tokens.values(), segments=text.segments, changes=changes)


def difference(place):
    return LogitDifference(
        answer=torch.tensor([2]), other=torch.tensor([0]), place=None if place is None else torch.tensor([place])
    )


def logits_apart(model, text, place, *edits):
    tokens, named = text.arguments()
    with torch.no_grad(), recording(model, edits):
        logits = model(*tokens, **named)
    logits = logits[0] if place is None else logits[0, place]
    return (logits[2] - logits[0]).item()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_patches_is_one_edit_at_a_time(name, kind, monkeypatch):
    case = make(name)
    text, other = one_text(case.clean), one_text(case.other)
    place = None if name.startswith("classes") else 3
    lengths = {side: tokens.shape[1] for side, tokens in text.tokens.items()}
    nodes = at_places(list_nodes(case.model, kind), lengths)[::3]
    if not nodes:
        pytest.skip("this model has no feed-forward")
    values = read_nodes(traced(case, other), nodes)
    monkeypatch.setattr(node_patching, "rows_at_once", lambda model, texts: 7)
    patched = patch_nodes(case.model, text, nodes, values, difference(place))
    expected = [logits_apart(case.model, text, place, node.edit(values)) for node in nodes]
    assert patched.tolist() == pytest.approx(expected, abs=1e-12)
    assert (patched - logits_apart(case.model, text, place)).abs().max() > 1e-6


@pytest.mark.parametrize("name", LINEAR)
def test_a_node_at_all_places_is_all_edges_of_a_sender(name):
    case = make(name)
    text, other = one_text(case.clean), one_text(case.other)
    if name.startswith("classes"):
        pytest.skip("it has one row of logits")
    graph = Graph(case.model)
    nodes = list_nodes(case.model, "head")
    values = read_nodes(traced(case, other), nodes)
    patched = patch_nodes(case.model, text, nodes, values, difference(3))
    edges = torch.stack([graph.edges_of(node.row) for node in nodes])
    logits = patch_edges(graph, text, edges, record(graph, other))[:, 0, 3]
    assert patched.tolist() == pytest.approx((logits[:, 2] - logits[:, 0]).tolist(), abs=1e-12)


def test_all_of_the_stream_from_the_other_text_is_the_other_text():
    case = make("pre")
    text, other = one_text(case.clean), one_text(case.other)
    nodes = list_nodes(case.model, "layer")
    assert [node.name for node in nodes] == [
        "decoder.embedding.out",
        *(f"decoder.{layer}.feed_forward.residual" for layer in range(3)),
    ]
    patched = patch_nodes(case.model, text, nodes, read_nodes(traced(case, other), nodes), difference(3))
    assert patched.tolist() == pytest.approx([logits_apart(case.model, other, 3)] * 4, abs=1e-12)


def test_patches_stand_beside_the_edits_of_the_model():
    case = make("pre")
    text, other = one_text(case.clean), one_text(case.other)
    off = Edit(at="decoder.0.attention", step="context", head=1, times=0.0)
    nodes = at_places(list_nodes(case.model, "head"), {"decoder": 5})
    values = read_nodes(traced(case, other, [off]), nodes)
    assert values["decoder.0.attention.context"][1].abs().max() == 0
    patched = patch_nodes(case.model, text, nodes, values, difference(3), changes=[off])
    expected = logits_apart(case.model, text, 3, off)
    of_head = [
        value for node, value in zip(nodes, patched.tolist(), strict=True) if node.row.endswith("0.attention.head.1")
    ]
    assert of_head == pytest.approx([expected] * 5, abs=1e-12)


def test_progress_is_told_and_texts_of_other_lengths_are_refused():
    case = make("pre")
    text, other = one_text(case.clean), one_text(case.other)
    nodes, told = list_nodes(case.model, "layer"), []
    values = read_nodes(traced(case, other), nodes)
    patch_nodes(case.model, text, nodes, values, difference(3), progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (4, 4)
    wrong: Any = "neuron"
    short = Texts(tokens={"decoder": other.tokens["decoder"][:, :4]})
    with pytest.raises(ShapeError, match="both texts need as many tokens; came 5 and 4"):
        patch_nodes(case.model, text, nodes, read_nodes(traced(case, short), nodes), difference(3))
    with pytest.raises(OptionError, match="expected one of layer, attention, feed_forward, head"):
        list_nodes(case.model, wrong)
    with pytest.raises(OptionError, match="the two models must be alike"):
        read_nodes(traced(case, other), [NodePatch("decoder.9.attention.out")])
