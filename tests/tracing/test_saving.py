"""A saved trace opens without its model, and says the same."""

import math
import shutil
from dataclasses import asdict, replace

import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError, TraceError
from clearhead.files import seal
from clearhead.serialization import load_tensors, save_tensors
from clearhead.tracing.saving import HEADER, checksum_of
from clearhead.tracing.trace import Answers, Candidate, trace_model
from tests.covering import few
from tests.decoding.models import build, models
from tests.model.small import both_spec, built, decoder_spec, words
from tests.rounding import ROUNDING
from tests.tracing.test_trace import inputs


@pytest.mark.parametrize("choices", few(models()[::5], 12), ids=str)
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


def test_how_a_rotary_position_turned_its_vectors_is_saved(tmp_path):
    model = ch.presets.llama("tiny", vocabulary=50).build().eval()
    trace = trace_model(model, torch.randint(50, (1, 6)))
    trace.save(tmp_path / "a.trace")
    again = ch.Trace.load(tmp_path / "a.trace")
    head, other = trace.decoder[1].attention.head[1], again.decoder[1].attention.head[1]
    wanted, found = (asdict(one.cell(4, 2)) for one in (head, other))
    assert wanted["turn"] is not None
    assert found.pop("turn") == wanted.pop("turn")
    assert found == {name: pytest.approx(number, abs=ROUNDING[torch.float32]) for name, number in wanted.items()}


def test_it_refuses_a_model_it_was_not_made_from(tmp_path):
    model, other = built(decoder_spec()), built(decoder_spec())
    trace_model(model, words(1)).save(tmp_path / "a.trace")
    assert ch.Trace.load(tmp_path / "a.trace", model).kind == "decoder"
    with pytest.raises(TraceError, match="was not made from this model"):
        ch.Trace.load(tmp_path / "a.trace", other)


@pytest.mark.slow
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
    with pytest.raises(OptionError, match=r"Own is not registered; put @clearhead.register above its class"):
        trace_model(built(spec), words(1)).save(tmp_path / "a.trace")


def rewrite(path, change, *, reseal=True):
    """Change the JSON in the header of a trace."""
    told, tensors = load_tensors(path, header=HEADER)
    told = change(told)
    if reseal:
        told = seal({name: one for name, one in told.items() if name not in ("format", "sha256")})
    save_tensors(path, tensors, told, header=HEADER)


def put(*names, value):
    def change(told):
        inner = told
        for name in names[:-1]:
            inner = inner[name]
        inner[names[-1]] = value
        return told

    return change


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "a.trace"
    changes = [ch.Edit(at="decoder.0.cross", step="context", head=1, times=0.0)]
    trace_model(built(both_spec()), words(1, 7), words(1, 5), changes=changes).save(path)
    return path


SITE = "decoder.0.attention"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("kind", value="mixer"), "kind: expected 'encoder' or 'decoder' or 'encoder-decoder'; came 'mixer'"),
        (put("notes", value=3), "notes: expected a list; came 3"),
        (put("colour", value=3), "there is no field 'colour'"),
        (lambda told: {name: one for name, one in told.items() if name != "names"}, "the field 'names' is missing"),
        (put("sites", "decoder.x.cross", value={}), "'decoder.x.cross' is no name of an attention"),
        (put("sites", SITE, "kernel", value=None), "kernel: expected text; came None"),
        (put("sites", SITE, "spec", value={"is": "Causal"}), "Causal is no attention"),
        (put("sites", SITE, "mask", value={"is": "Softmax", "temperature": 1.0}), "expected a Mask; came Softmax"),
        (put("sides", "decoder", "n_layers", value=10**9), "and not one for each of 1000000002 layers"),
        (put("sides", "decoder", "ids", value=[]), "the decoder has 0 ids and 5 tokens"),
        (put("stream", value=["gone"]), "'stream/gone' is missing"),
        (put("candidates", value=[[[1, "a"]]]), "candidates: expected a list of 3"),
        (put("changes", 0, "head", value="first"), "head: expected a whole number or null; came 'first'"),
    ],
)
def test_a_header_that_is_not_what_a_trace_has_is_told(saved, change, message, tmp_path):
    """108 of 600 changed traces gave KeyError or TypeError."""
    path = shutil.copy(saved, tmp_path / "b.trace")
    rewrite(path, change)
    with pytest.raises(TraceError, match=rf"^{path}: .*{message}"):
        ch.Trace.load(path)


def test_a_trace_that_was_changed_is_told(saved, tmp_path):
    path = shutil.copy(saved, tmp_path / "b.trace")
    rewrite(path, put("task", value="other"), reseal=False)
    with pytest.raises(TraceError, match="was changed since it was written: its checksum is wrong"):
        ch.Trace.load(path)
    shutil.copy(saved, path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(TraceError, match="was changed since it was written: the checksum of its tensors is wrong"):
        ch.Trace.load(path)


def bend(tensors, name, change):
    return {**tensors, name: change(tensors[name])}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("query", lambda one: one[0]),
        ("key", lambda one: one[:, :, :-1]),
        ("value", lambda one: one.long()),
        ("context", lambda one: one[:, :-1]),
        ("query", lambda one: one[..., :-1]),
    ],
)
def test_vectors_that_do_not_fit_together_are_told(saved, name, change, tmp_path):
    told, tensors = load_tensors(saved, header=HEADER)
    tensors = bend(tensors, f"{SITE}/{name}", change)
    content = {key: one for key, one in told.items() if key not in ("format", "sha256")}
    path = tmp_path / "b.trace"
    save_tensors(path, tensors, seal({**content, "tensors": checksum_of(tensors)}), header=HEADER)
    with pytest.raises(TraceError, match="lacks something or is damaged"):
        ch.Trace.load(path)


def test_a_size_that_is_not_in_the_file_is_not_built(saved, tmp_path):
    path = shutil.copy(saved, tmp_path / "b.trace")
    random = {"is": "RandomFeatures", "count": 10**12, "factor": None, "seed": 0}
    kernelized = {"is": "Kernelized", "features": random, "normalised": True}
    rewrite(path, put("sites", SITE, "spec", "weighting", value=kernelized))
    with pytest.raises(TraceError, match="has a count of 1,000,000,000,000, and no tensor so large"):
        ch.Trace.load(path)


def test_a_probability_of_zero_is_saved(tmp_path):
    trace = trace_model(built(decoder_spec()), words(1))
    answers = [[Candidate(1, "a", -math.inf)]]
    replace(trace, answers=Answers(lambda: answers)).save(tmp_path / "a.trace")
    assert ch.Trace.load(tmp_path / "a.trace").candidates == answers
