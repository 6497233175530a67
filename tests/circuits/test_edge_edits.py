"""Edits of edges: a trace and a decoding with them are the patched pass, for models of every kind."""

import pytest
import torch

import clearhead as ch
from clearhead.circuits import ConstantSource, EdgeEdit, Graph, MeanSource, Texts, ZeroSource, patch_edges, record
from clearhead.decoding import Greedy
from clearhead.decoding.generating import decode
from clearhead.decoding.request import check_request
from clearhead.decoding.rules import Rules
from clearhead.errors import OptionError
from clearhead.tracing.decoding import EditedSession
from clearhead.tracing.recording import recording
from clearhead.tracing.trace import trace_model
from tests.circuits.random_models import SPECS, make


def one_text(case):
    """Return the first pair of a case, without padding."""
    return [
        Texts(
            tokens={side: rows[:1] for side, rows in texts.tokens.items()},
            segments=None if texts.segments is None else texts.segments[:1],
        )
        for texts in (case.clean, case.other)
    ]


def some_edges(graph, seed=0, share=0.15):
    chosen = torch.rand(len(graph.edges), generator=torch.Generator().manual_seed(seed)) < share
    return [graph.edges[number] for number in chosen.nonzero().flatten().tolist()]


def changed_logits(model, edit, texts):
    tokens = list(texts.tokens.values())
    changes = edit.edits_for(model, tokens, texts.segments)
    segments = {} if texts.segments is None else {"segments": texts.segments}
    with torch.no_grad(), recording(model, changes):
        return model(*tokens, **segments)


@pytest.mark.parametrize("name", SPECS)
def test_the_edited_model_is_the_patched_pass(name):
    case = make(name)
    clean, other = one_text(case)
    graph = Graph(case.model)
    source = record(graph, other)
    inner = [edge for edge in graph.edges if not edge.receiver.endswith(".output")]  # else the end hides the rest
    networks = [edge for edge in inner if edge.receiver.endswith("feed_forward")]
    for edges in (some_edges(graph), inner, networks or inner, graph.edges):
        expected = patch_edges(graph, clean, edges, source)
        found = changed_logits(case.model, EdgeEdit(graph=graph, edges=edges, source=source), clean)
        assert torch.allclose(found, expected, rtol=0, atol=1e-12 * max(1, float(expected.abs().max())))
    assert not torch.allclose(expected, record(graph, clean).logits[0])


def test_every_source_can_be_carried():
    case = make("pre")
    clean, _ = one_text(case)
    graph = Graph(case.model)
    edges = some_edges(graph)
    constant = {sender: torch.randn(12, dtype=torch.float64) for sender in graph.senders}
    for source in (ZeroSource(), MeanSource(record(graph, case.other)), ConstantSource(constant)):
        expected = patch_edges(graph, clean, edges, source)
        found = changed_logits(case.model, EdgeEdit(graph=graph, edges=edges, source=source), clean)
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_a_trace_has_the_edited_values():
    case = make("pre")
    clean, other = one_text(case)
    graph = Graph(case.model)
    [tokens] = clean.tokens.values()
    edges = [
        "decoder.0.feed_forward -> decoder.1.attention.value.1",
        "decoder.embedding.token -> decoder.2.feed_forward",
    ]
    edit = EdgeEdit(graph=graph, edges=edges, source=record(graph, other))
    traced, plain = trace_model(case.model, tokens, changes=[edit]), trace_model(case.model, tokens)
    assert {change.name for change in traced.changes} == {
        "decoder.1.attention.value",
        "decoder.2.feed_forward.pre_activation",
    }
    value = traced.decoder[1].attention.head[1].value
    assert not torch.allclose(value, plain.decoder[1].attention.head[1].value)
    assert torch.equal(traced.decoder[1].attention.head[0].value, plain.decoder[1].attention.head[0].value)
    best = patch_edges(graph, clean, edges, record(graph, other))[0].argmax(-1).tolist()
    assert [row[0].id for row in traced.candidates] == best


def test_decoding_with_an_edge_edit_is_the_patched_pass_of_every_step():
    """By brute force: the text grows, and the other text's three places are patched at every step."""
    case = make("pre")
    graph = Graph(case.model)
    prompt, other = [3, 1, 4], torch.tensor([[7, 8, 2]])
    source = record(graph, Texts(tokens={"decoder": other}))
    edges = some_edges(graph, share=0.5)
    text = list(prompt)
    for _ in range(4):
        n = min(len(text), 3)
        clean = Texts(tokens={"decoder": torch.tensor([text])})
        mine = record(graph, clean)
        vectors = {
            name: torch.cat([source.vectors[name][..., :n, :], vector[..., n:, :]], -2)
            if vector.shape[-2] > 1
            else vector
            for name, vector in mine.vectors.items()
        }
        mixed = type(mine)(vectors=vectors, norms=mine.norms)
        text.append(int(patch_edges(graph, clean, edges, mixed)[0, -1].argmax()))
    edit = EdgeEdit(graph=graph, edges=edges, source=source)
    rules = Rules(max_new=4)
    request = check_request(case.model, [prompt], None, rules, 0)
    session = lambda model, size: EditedSession([edit], model, size)  # noqa: E731
    [[hypothesis]] = decode(request, Greedy(), rules, 0, make_session=session)
    assert list(hypothesis.tokens) == text[3:]


def test_what_cannot_be_edited_is_refused():
    case, another = make("pre"), make("pre", seed=1)
    graph = Graph(case.model)
    [tokens] = case.clean.tokens.values()
    edge = graph.edges[-1]
    edit = EdgeEdit(graph=graph, edges=[edge], source=ZeroSource())
    with pytest.raises(OptionError, match="of another model"):
        trace_model(another.model, tokens[:1], changes=[edit])
    with pytest.raises(OptionError, match="give it alone"):
        trace_model(
            case.model, tokens[:1], changes=[edit, ch.Edit(at="decoder.0.attention", step="context", times=0.0)]
        )
    with pytest.raises(OptionError, match="came none"):
        EdgeEdit(graph=graph, edges=[], source=ZeroSource())
    with pytest.raises(OptionError, match="there is no"):
        EdgeEdit(graph=graph, edges=["decoder.0.attention.head.9 -> decoder.output"], source=ZeroSource())
