"""Direct logit attribution: the parts of a model sum to the logit, and each is what the model's own maps make of it."""

import pytest
import torch

import clearhead as ch
from clearhead.circuits import Graph, attribute_logits, record
from clearhead.errors import OptionError, PlaceError
from clearhead.tracing import trace_model
from tests.circuits.random_models import SPECS, make


def trace_of(case, changes=()):
    tokens = [rows[:1] for rows in case.clean.tokens.values()]
    segments = None if case.clean.segments is None else case.clean.segments[:1]
    return trace_model(case.model, *tokens, segments=segments, changes=changes)


def output_of(case):
    return [*case.model.stacks][-1].output


def logits_of(trace, place):
    logits = trace.value(f"{trace.answer_side}.output.logits")
    return logits[place] if len(logits) > 1 else logits[0]


@pytest.mark.parametrize("name", SPECS)
def test_the_parts_sum_to_the_logit_difference(name):
    trace = trace_of(make(name))
    for place, answer, other in ((-1, 2, 0), (1, 0, 1), (2, 1, None)):
        found = attribute_logits(trace, place=place, answer=answer, other=other)
        logits = logits_of(trace, place)
        expected = logits[answer] - (0 if other is None else logits[other])
        assert abs(found.total - expected.item()) < 1e-12
        assert abs(sum(found.parts.values()) - found.total) < 1e-12


@pytest.mark.parametrize("name", [name for name in SPECS if not name.startswith("classes")])
def test_a_linear_output_adds_its_bias_alone(name):
    """So the sum is no sum by definition: all but the bias comes from what the parts wrote."""
    case = make(name)
    output, bias = output_of(case), output_of(case).bias
    if output.transform is not None:
        pytest.skip("BERT's transform is not linear")
    trace = trace_of(case)
    rest = attribute_logits(trace, answer=2, other=0).parts[f"{trace.answer_side}.output"]
    assert abs(rest - (0.0 if bias is None else (bias[2] - bias[0]).item())) < 1e-12


@pytest.mark.parametrize("name", ["pre", "post", "sandwich", "both-post", "pre-rms-rotary-grouped"])
def test_a_part_is_what_the_frozen_norms_make_of_what_it_wrote(name):
    """By another way: the graph's own pass, and the last norm written out."""
    case = make(name)
    trace, graph = trace_of(case), Graph(case.model)
    side = trace.answer_side
    text = case.clean[:1].map(lambda rows: rows)
    whole = record(graph, type(text)(tokens=text.tokens, segments=text.segments))
    port = graph.ports[f"{side}.output"]
    parts = whole.contribution(port)[:, 0, 0, 2]
    stack = [*case.model.stacks][-1].stack
    if stack.norm is not None:
        frozen = stack.norm.freeze(parts.sum(0))
        parts = torch.stack([frozen.carry(part) for part in parts])
    output = output_of(case)
    x = parts.sum(0) + (0 if stack.norm is None or getattr(stack.norm, "beta", None) is None else stack.norm.beta)
    x = x.detach().requires_grad_()
    logits = output(x[None, None])[0, 0]
    [gradient] = torch.autograd.grad(logits[4] - logits[5], x)
    found = attribute_logits(trace, place=2, answer=4, other=5)
    for sender, part in zip(port.senders, parts, strict=True):
        if not sender.endswith(".constant"):
            assert abs(found.parts[sender] - (part @ gradient).item()) < 1e-12, sender


def test_a_head_that_is_ablated_adds_nothing():
    case = make("pre")
    off = ch.Edit(at="decoder.1.attention", step="context", head=2, times=0.0)
    found = attribute_logits(trace_of(case, [off]), answer=1)
    assert found.parts["decoder.1.attention.head.2"] == 0
    assert found.parts["decoder.1.attention.head.1"] != 0
    assert abs(found.parts["edits"]) < 1e-12
    assert abs(sum(found.parts.values()) - found.total) < 1e-12


def test_what_an_edit_of_the_stream_adds_has_a_part_of_its_own():
    case = make("pre")
    add = ch.Edit(at="decoder.0.feed_forward", step="residual", query=4, to=torch.randn(12, dtype=torch.float64))
    found = attribute_logits(trace_of(case, [add]), answer=1, other=0)
    assert abs(found.parts["edits"]) > 1e-3
    assert abs(sum(found.parts.values()) - found.total) < 1e-12
    inside = ch.Edit(at="decoder.output", step="logits", times=2.0)
    with pytest.raises(OptionError, match="an edit changes the output itself"):
        attribute_logits(trace_of(case, [inside]), answer=1)


def test_layers_and_heads_are_sums_and_rows_of_the_parts():
    found = attribute_logits(trace_of(make("both-pre")), answer=1, other=0)
    assert list(found.heads) == [f"decoder.{layer}.{slot}" for layer in (0, 1) for slot in ("attention", "cross")]
    layer = [value for name, value in found.parts.items() if name.startswith("decoder.1.")]
    assert found.layers["decoder.1"] == pytest.approx(sum(layer), abs=1e-12)
    assert "d1.cross" in found.show()._repr_html_()
    assert f"{found.total:+.3f}" in str(found)


def test_places_and_answers_that_are_not_there_are_refused():
    trace = trace_of(make("pre"))
    with pytest.raises(PlaceError, match="there are 5 tokens"):
        attribute_logits(trace, place=5, answer=0)
    with pytest.raises(OptionError, match="one of 11 answers"):
        attribute_logits(trace, answer=11)
