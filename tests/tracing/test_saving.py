"""A saved trace opens without its model, and says the same."""

import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError, TraceError
from clearhead.tracing.trace import trace_model
from tests.decoding.models import build, models
from tests.model.small import both_spec, built, decoder_spec, words
from tests.tracing.test_models import inputs


@pytest.mark.parametrize("choices", models()[::5], ids=str)
def test_every_model_s_trace_is_the_same_again(choices, tmp_path):
    model = build(choices)
    trace = trace_model(model, *inputs(model))
    trace.save(tmp_path / "a.trace")
    again = ch.Trace.load(tmp_path / "a.trace")
    for name, site in trace.sites.items():
        for head, other in zip(site.head, again[name].head, strict=True):
            for step in ("query", "key", "value", "score", "scaled", "masked", "weight", "context"):
                torch.testing.assert_close(getattr(head, step), getattr(other, step), rtol=1e-6, atol=1e-6)
    assert list(again.stream) == list(trace.stream)
    assert set(again.stream) < set(again.names) < set(trace.names)
    assert all(torch.equal(again.value(name), trace.value(name)) for name in again.stream)
    assert again.candidates == trace.candidates
    assert (again.kind, again.notes, again.sides) == (trace.kind, trace.notes, trace.sides)
    again.save(tmp_path / "b.trace")
    assert (tmp_path / "a.trace").read_bytes() == (tmp_path / "b.trace").read_bytes()


def test_it_refuses_a_model_it_was_not_made_from(tmp_path):
    model, other = built(decoder_spec()), built(decoder_spec())
    trace_model(model, words(1)).save(tmp_path / "a.trace")
    assert ch.Trace.load(tmp_path / "a.trace", model).kind == "decoder"
    with pytest.raises(TraceError, match="was not made from this model"):
        ch.Trace.load(tmp_path / "a.trace", other)


def test_changes_are_saved_with_it(tmp_path):
    model = built(both_spec())
    changes = [
        ch.Edit(at="decoder.0.cross", step="context", head=1, times=0.0),
        ch.Edit(at="encoder.1.attention", step="score", head=0, query=1, key=2, to=3.5),
        ch.Edit(at="decoder.1.attention", step="allowed", query=3, key=0, to=False),
        ch.Edit(at="decoder.1.cross", step="value", head=0, key=0, to=torch.randn(4, dtype=torch.float64)),
        ch.Swap(at="decoder.1.cross", weighting=ch.weighting.Argmax()),
        ch.Swap(at="encoder.0.attention", weighting=ch.weighting.Kernelized("random")),
    ]
    trace = trace_model(model, words(1, 7), words(1, 5), changes=changes)
    trace.save(tmp_path / "a.trace")
    again = ch.Trace.load(tmp_path / "a.trace", model)
    for name, site in trace.sites.items():
        for head, other in zip(site.head, again[name].head, strict=True):
            torch.testing.assert_close(head.weight, other.weight)
            torch.testing.assert_close(head.context, other.context)
    assert [change.at for change in again.changes] == [change.at for change in changes]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "there is no such file"),
        (b"nothing", "cannot be read as a trace"),
        ("weights", "is no trace of Clearhead"),
    ],
)
def test_what_is_no_trace_is_told(content, match, tmp_path):
    path = tmp_path / "x.trace"
    if content == "weights":
        from safetensors.torch import save_file

        save_file({"a": torch.zeros(2)}, path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=match):
        ch.Trace.load(path)


def test_a_folder_that_is_not_there_leaves_nothing_behind(tmp_path):
    trace = trace_model(built(decoder_spec()), words(1))
    with pytest.raises(TraceError, match="cannot be written"):
        trace.save(tmp_path / "nowhere" / "a.trace")
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_the_user_s_own_cannot_be_written(tmp_path):
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Own(ch.weighting.Weighting):
        def weigh(self, masked, allowed):
            return ch.weighting.softmax_rows(masked, allowed)

    spec = decoder_spec(
        blocks=tuple(
            ch.model.BlockSpec(attention=ch.model.AttentionSpec(heads=3, weighting=Own()), feed_forward=None)
            for _ in range(1)
        )
    )
    with pytest.raises(OptionError, match="Own is no part of Clearhead"):
        trace_model(built(spec), words(1)).save(tmp_path / "a.trace")
