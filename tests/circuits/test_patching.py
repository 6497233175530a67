"""Edges that carry another text's, a mean, nothing or a constant; and paths of edges."""

import pytest
import torch

from clearhead.circuits import ConstantSource, Edge, Graph, MeanSource, ZeroSource, patch_edges, patch_path, record
from clearhead.errors import OptionError
from clearhead.taps import replacing
from tests.circuits.random_models import SPECS, make


def test_zeroing_a_head_is_ablating_it():
    case = make("pre")
    graph = Graph(case.model)
    site, head = "decoder.1.attention", 2

    def ablate(path, value):
        if path != "stack.blocks.1.attention.context":
            return value
        value = value.clone()
        value[:, head] = 0
        return value

    with torch.no_grad(), replacing(case.model, ablate):
        ablated = case.model(case.clean.tokens["decoder"])
    patched = patch_edges(graph, case.clean, graph.edges_of(f"{site}.head.{head}"), ZeroSource())
    assert (patched - ablated).abs().max() < 1e-12
    assert (patched - record(graph, case.clean).logits[0]).abs().max() > 1e-3


def test_the_mean_over_copies_of_a_text_is_that_text():
    case = make("post")
    graph = Graph(case.model)
    row = case.other[:1]
    mean = MeanSource(record(graph, row.repeat(3)))
    from_text = patch_edges(graph, case.clean[:1], graph.edges[3:40], record(graph, row))
    assert (patch_edges(graph, case.clean[:1], graph.edges[3:40], mean) - from_text).abs().max() < 1e-12


def test_a_constant_is_sent_at_every_place():
    case = make("none")
    graph = Graph(case.model)
    vector = torch.randn(12, dtype=torch.float64)
    sender, receiver = "decoder.0.feed_forward", "decoder.output"
    run = record(graph, case.clean)
    out = run.inputs[receiver][0] - run.vectors[sender][0] + vector
    expected = case.model.output(out)
    patched = patch_edges(graph, case.clean, [Edge(sender, receiver)], ConstantSource({sender: vector}))
    assert (patched - expected).abs().max() < 1e-12


@pytest.mark.parametrize("name", SPECS)
def test_patching_a_node_is_patching_the_edges_to_all_its_receivers(name):
    """By another way: the sender itself is replaced, where the model makes it."""
    case = make(name)
    graph = Graph(case.model)
    sender = "decoder.0.feed_forward" if "decoder" in case.clean.tokens else "encoder.0.feed_forward"
    if sender not in graph.senders:
        pytest.skip("this model has no feed-forward")
    other = record(graph, case.other)
    path = ("decoder." if len(case.clean.tokens) > 1 else "") + "stack.blocks.0.feed_forward.out"
    arguments, named = case.clean.arguments()
    with torch.no_grad(), replacing(case.model, lambda at, value: other.vectors[sender][0] if at == path else value):
        expected = case.model(*arguments, **named)
    if graph.ports and any(term.norms and term.sender == sender for p in graph.ports.values() for term in p.terms):
        return  # on the way of its edges stand norms, whose statistics are the other text's
    patched = patch_edges(graph, case.clean, graph.edges_of(sender), other)
    assert (patched - expected).abs().max() < 1e-12


def test_a_path_carries_the_change_along_itself_alone():
    """embedding -> value of a head -> output: by hand, with the head computed from the changed input."""
    case = make("none")
    graph = Graph(case.model)
    clean, other = record(graph, case.clean), record(graph, case.other)
    first = Edge("decoder.embedding.token", "decoder.0.attention.value.1")
    second = Edge("decoder.0.attention.head.1", "decoder.output")
    changed = (
        case.model.embedding(case.clean.tokens["decoder"]) - clean.vectors[first[0]][0] + other.vectors[first[0]][0]
    )
    layer = case.model.stack.blocks[0].attention
    stream = case.model.embedding(case.clean.tokens["decoder"])
    with torch.no_grad():
        weight = layer.explain(stream).weight[:, 1]
        head = weight @ layer.value(changed)[:, 1] @ graph.matrices["decoder.0.attention"].weight[1]
        at_output = clean.inputs["decoder.output"][0] - clean.vectors[second[0]][0] + head
        expected = case.model.output(at_output)
    assert (patch_path(graph, case.clean, [first, second], other) - expected).abs().max() < 1e-12


def test_a_path_with_a_gap_is_refused():
    case = make("pre")
    graph = Graph(case.model)
    path = [graph.edges[0], Edge("decoder.1.attention.head.1", "decoder.output")]
    with pytest.raises(OptionError, match="a path goes on from where it came"):
        patch_path(graph, case.clean, path, record(graph, case.other))


def test_an_edge_that_is_not_there_is_refused_with_the_nearest_name():
    graph = Graph(make("pre").model)
    with pytest.raises(OptionError, match=r"the nearest is decoder\.0\.attention\.head\.1"):
        graph.find("decoder.0.attention.heads.1 -> decoder.output")
    with pytest.raises(OptionError, match="does not read what this sender writes"):
        graph.find("decoder.2.feed_forward -> decoder.0.feed_forward")
    with pytest.raises(OptionError, match="an edge is written"):
        graph.find("decoder.output")
