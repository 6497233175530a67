"""The units of a feed-forward: what they add up to, and what they promote, held against autograd of the whole model."""

from dataclasses import replace

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.lora import Lora, add_adapters
from clearhead.tracing.edits import Edit
from clearhead.tracing.names import Names
from clearhead.tracing.neurons import feed_forwards, read_units, why_no_units
from clearhead.tracing.recording import recording
from clearhead.tracing.trace import trace_model

N, VOCABULARY = 7, 50


def models():
    gpt2 = presets.gpt2("tiny", vocabulary=VOCABULARY)
    yield "gelu, pre-norm", gpt2
    yield "swiglu", presets.llama("tiny", vocabulary=VOCABULARY)
    yield "translator", presets.tiny(vocabulary=VOCABULARY)
    yield "bert", presets.bert("tiny", vocabulary=VOCABULARY)


@pytest.fixture(params=[name for name, _ in models()])
def case(request):
    model = dict(models())[request.param].build().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # a norm that has learned, and maps that all differ
            parameter.add_(0.05 * torch.randn_like(parameter))
    rows = [torch.randint(VOCABULARY, (1, N)) for _ in Names(model).sides]
    return model, rows


@torch.no_grad()
@pytest.mark.slow
def test_units_and_the_bias_add_up_to_the_output(case):
    model, rows = case
    made = trace_model(model, *rows)
    for at in feed_forwards(Names(model)):
        everything = read_units(made, at, token=2, most=10_000)
        assert sorted(one.unit for one in everything.units) == list(range(everything.d_ff))
        assert sum(one.share for one in everything.units) + everything.bias == pytest.approx(1, abs=1e-4)
        hidden, out = (made.value(f"{at}.{step}")[2] for step in ("hidden", "out"))
        down = Names(model).maps[f"{at}.out"].apply
        vectors = {one.unit: one.steps["hidden"] * down.weight[:, one.unit] for one in everything.units}
        bias = 0 if down.bias is None else down.bias
        assert torch.allclose(sum(vectors.values()) + bias, out, atol=1e-4)
        for one in everything.units[:5]:
            assert one.steps["hidden"] == pytest.approx(hidden[one.unit].item(), abs=1e-5)
            assert one.norm == pytest.approx(vectors[one.unit].norm().item(), rel=1e-4)
            assert one.share == pytest.approx((vectors[one.unit] @ out / (out @ out)).item(), abs=1e-4)
        assert [one.norm for one in everything.units] == sorted((one.norm for one in everything.units), reverse=True)
        assert everything.active == int((hidden > 0).sum())
        norms = [one.norm for one in everything.units]
        assert sum(norms[: everything.half]) >= sum(norms) / 2 > sum(norms[: everything.half - 1]) - 1e-4


def test_in_the_last_layer_what_a_unit_promotes_is_the_derivative_of_the_logits(case):
    """There is no other way from there to the logits, so the whole model's derivative is the same."""
    model, rows = case
    at, token = feed_forwards(Names(model))[-1], 4
    made = trace_model(model, *rows)
    found = read_units(made, at, token=token, most=4, answers=VOCABULARY)
    down, seen = Names(model).maps[f"{at}.out"].apply, {}

    def scale_unit(_, given):
        factor = seen["factor"] = torch.ones(given[0].shape[-1], requires_grad=True)
        mask = torch.zeros(given[0].shape[1], 1)
        mask[token] = 1
        return (given[0] * (1 + mask * (factor - 1)),)

    hook = down.register_forward_pre_hook(scale_unit)
    logits = model(*rows)[0, token]
    hook.remove()
    for one in found.units:
        wanted = torch.stack(
            [torch.autograd.grad(logit, seen["factor"], retain_graph=True)[0][one.unit] for logit in logits]
        )
        changes = {effect.id: effect.change for effect in (*one.promotes, *one.suppresses)}
        assert [changes.get(i, 0.0) for i in range(VOCABULARY)] == pytest.approx(wanted.tolist(), abs=2e-4)
        assert [effect.change for effect in one.promotes] == sorted(
            (effect.change for effect in one.promotes), reverse=True
        )
        assert one.promotes[0].id == int(wanted.argmax())


def test_an_encoders_units_promote_no_token():
    model = presets.tiny(vocabulary=VOCABULARY).build().eval()
    made = trace_model(model, *(torch.randint(VOCABULARY, (1, N)) for _ in range(2)))
    [unit] = read_units(made, "encoder.0.feed_forward", token=0, most=1).units
    assert (unit.promotes, unit.suppresses) == ((), ())


def test_steps_are_those_of_the_kind():
    model = presets.llama("tiny", vocabulary=VOCABULARY).build().eval()
    made = trace_model(model, torch.randint(VOCABULARY, (1, N)))
    [unit] = read_units(made, "decoder.1.feed_forward", token=3, most=1).units
    assert list(unit.steps) == ["gate", "activated_gate", "up", "hidden"]
    assert unit.steps["activated_gate"] * unit.steps["up"] == pytest.approx(unit.steps["hidden"], rel=1e-4)


def test_an_adapter_is_part_of_the_map():
    model = presets.gpt2("tiny", vocabulary=VOCABULARY).build().eval()
    rows = torch.randint(VOCABULARY, (1, N))
    add_adapters(model, Lora(rank=2, maps=("down",)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "adapter_up" in name:
                parameter.normal_()
    found = read_units(trace_model(model.eval(), rows), "decoder.0.feed_forward", token=1, most=10_000)
    assert sum(one.share for one in found.units) + found.bias == pytest.approx(1, abs=1e-4)
    assert abs(found.bias) < 0.05


def test_a_unit_switched_off_adds_nothing_and_the_output_follows(case):
    model, rows = case
    at, token = feed_forwards(Names(model))[0], 3
    unit = read_units(trace_model(model, *rows), at, token=token, most=1).units[0].unit
    off = Edit(at=at, step="hidden", unit=unit, times=0.0)
    changed = trace_model(model, *rows, changes=[off])
    [found] = read_units(changed, at, token=token, most=0, also=[unit]).units
    assert (found.steps["hidden"], found.norm, found.share, found.promotes) == (0, 0, 0, ())
    down = Names(model).maps[f"{at}.out"].apply
    kept = down.weight[:, unit].clone()
    with torch.no_grad():
        down.weight[:, unit] = 0
        wanted = model(*rows)
        down.weight[:, unit] = kept
        with recording(model, [off]):
            assert torch.allclose(model(*rows), wanted, atol=1e-5)
        assert not torch.allclose(model(*rows), wanted, atol=1e-5)


def test_what_is_not_there_is_told(case):
    model, rows = case
    made = trace_model(model, *rows)
    with pytest.raises(OptionError, match=r"no feed-forward with units called 'decoder\.9\.x'"):
        read_units(made, "decoder.9.x", token=0, most=1)
    with pytest.raises(OptionError, match="no unit 100000"):
        read_units(made, feed_forwards(Names(model))[0], token=0, most=1, also=[100_000])


def test_a_model_without_feed_forward_says_so():
    spec = presets.gpt2("tiny", vocabulary=VOCABULARY)
    assert why_no_units(Names(spec.build())) is None
    bare = replace(spec, blocks=tuple(replace(block, feed_forward=None) for block in spec.blocks))
    assert "no feed-forward" in why_no_units(Names(bare.build()))
