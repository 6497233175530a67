"""The laws of the graph, over random models of every kind, in float64."""

import pytest
import torch

from clearhead import model as m
from clearhead.circuits import Graph, record
from clearhead.circuits.forward import GraphPass, Patch, run_graph, still
from clearhead.errors import OptionError
from clearhead.model.arrangements import BranchConnection
from tests.circuits.random_models import LINEAR, SPECS, make

ROUNDING = 1e-12


def run_model(case, texts):
    arguments, named = texts.arguments()
    with torch.no_grad():
        return case.model(*arguments, **named)


def off(a, b):
    """Return the largest difference, beside the size of the numbers where they are above 1."""
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


@pytest.mark.parametrize("name", SPECS)
def test_the_pass_gives_what_the_model_gives(name):
    case = make(name)
    graph = Graph(case.model)
    assert off(run_graph(graph, case.clean).logits[0], run_model(case, case.clean)) < ROUNDING
    assert off(record(graph, case.clean).logits[0], run_model(case, case.clean)) < ROUNDING


@pytest.mark.parametrize("name", SPECS)
def test_senders_sum_to_what_each_receiver_reads(name):
    """Before its norm; in post-norm each is carried through the norms between, with their statistics kept."""
    case = make(name)
    graph = Graph(case.model)
    run = record(graph, case.clean)
    for port in graph.ports.values():
        assert off(run.contribution(port).sum(0), run.inputs[port.name]) < ROUNDING, port.name


@pytest.mark.parametrize("name", LINEAR)
def test_without_norms_on_the_way_a_sender_gives_every_receiver_the_same(name):
    graph = Graph(make(name).model)
    carried = {term.vector for port in graph.ports.values() for term in port.terms if term.norms}
    assert all(vector.endswith("embedding.token") for vector in carried) or not carried


@pytest.mark.parametrize("name", SPECS)
def test_patching_nothing_is_the_clean_run_and_everything_the_other(name):
    case = make(name)
    graph = Graph(case.model)
    clean, other = record(graph, case.clean), record(graph, case.other)
    mask = torch.zeros(2, len(graph.edges))
    mask[1] = 1
    logits = run_graph(graph, case.clean, patch=Patch(mask, other)).logits
    assert off(logits[0], clean.logits[0]) < ROUNDING
    assert off(logits[1], other.logits[0]) < ROUNDING
    assert off(clean.logits, other.logits) > 1e-3


@pytest.mark.parametrize("name", SPECS)
def test_with_frozen_norms_the_pass_is_the_same_and_edges_add_up(name):
    """With all statistics those of the clean run, what an edge changes of an input does not depend on the others."""
    case = make(name)
    graph = Graph(case.model)
    clean, other = record(graph, case.clean), record(graph, case.other)
    frozen = record(graph, case.clean, statistics=clean.frozen)
    assert off(frozen.logits, clean.logits) < ROUNDING
    port = list(graph.ports.values())[-1]
    rows = torch.zeros(len(port.senders) + 1, len(graph.edges))
    for row, edge in enumerate(range(port.edges.start, port.edges.stop)):
        rows[row, edge] = rows[-1, edge] = 1
    inputs = patched_inputs(graph, case.clean, Patch(rows, other), clean.frozen)
    each, together = inputs[:-1] - clean.inputs[port.name], inputs[-1] - clean.inputs[port.name][0]
    assert off(each.sum(0), together) < ROUNDING


def patched_inputs(graph, texts, patch, statistics):
    """Return what the last port reads, by its change: the pass keeps the stream, so the patch is added again here."""
    forward = GraphPass(graph, texts, patch=patch, statistics=statistics)
    with still(graph.model):
        forward.run()
        port = list(graph.ports.values())[-1]
        x = forward.found.inputs[port.name]
        return x + forward.patched(port, x)[:, :, 0]


@pytest.mark.parametrize("name", ["pre-rms-rotary-grouped", "both-none-grouped", "post-grouped"])
def test_receivers_of_grouped_heads_are_key_value_heads(name):
    graph = Graph(make(name).model)
    for port in graph.ports.values():
        heads = {"query": 4, "key": 2, "value": 2}.get(port.name.rpartition(".")[2])
        if heads is not None and ".cross." not in port.name:
            assert len(port.receivers) == heads


def test_patching_one_head_of_a_group_leaves_the_others():
    """The query of one head is patched: only that head's context changes; the value of a group: both of its heads."""
    case = make("pre-rms-rotary-grouped")
    graph = Graph(case.model)
    clean, other = record(graph, case.clean), record(graph, case.other)
    for receiver, changed in (("query.1", {1}), ("key.1", {2, 3}), ("value.0", {0, 1})):
        edges = [edge for edge in graph.edges if edge.receiver == f"decoder.0.attention.{receiver}"]
        run = run_graph(graph, case.clean, patch=Patch(graph.select(edges).unsqueeze(0), other))
        heads = {h for h in range(4) if off(run.vectors[n := f"decoder.0.attention.head.{h}"], clean.vectors[n]) > 1e-9}
        assert heads == changed


class HalfConnection(BranchConnection):
    """A user's own: half of the stream goes on, which no step can say; and one that says its steps."""

    def forward(self, x, branch):
        return self.tap("residual", x / 2 + branch(x))


class OwnNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.ones(12))

    def forward(self, x):
        return self.gamma * x / x.abs().mean(-1, keepdim=True)


class OwnFrozenNorm(OwnNorm):
    def freeze(self, x):
        return m.FrozenNorm(self.gamma / x.abs().mean(-1, keepdim=True), centered=False)


def with_norm(case, norm):
    for block in case.model.stack.blocks:
        for around in (block.around_attention, block.around_feed_forward):
            around.norm = norm().double()
    return Graph(case.model)


def test_a_norm_of_the_users_own_needs_nothing_where_it_is_a_receivers():
    case = make("pre")
    graph = with_norm(case, OwnNorm)
    clean, other = record(graph, case.clean), record(graph, case.other)
    assert off(clean.logits[0], run_model(case, case.clean)) < ROUNDING
    patched = run_graph(graph, case.clean, patch=Patch(torch.ones(1, len(graph.edges)), other)).logits
    assert off(patched, other.logits) < ROUNDING


def test_a_norm_of_the_users_own_on_the_way_of_edges_says_what_it_is_when_frozen():
    case = make("post")
    graph = with_norm(case, OwnFrozenNorm)
    run = record(graph, case.clean)
    for port in graph.ports.values():
        assert off(run.contribution(port).sum(0), run.inputs[port.name]) < ROUNDING
    graph = with_norm(case, OwnNorm)
    with pytest.raises(OptionError, match=r"encoder\.0\.attention\.norm is a OwnNorm.*give it freeze"):
        record(graph, case.clean)


def test_a_connection_that_is_not_what_its_steps_say_is_refused():
    case = make("none")
    case.model.stack.blocks[1].around_attention = HalfConnection(0.0)
    with pytest.raises(OptionError, match=r"decoder\.1\.attention.*are not what it computes"):
        Graph(case.model)
