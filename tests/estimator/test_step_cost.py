"""What a pass costs, counted without data, is what a real pass takes: by autograd's own hooks, and by what lives."""

import pytest
import torch

from clearhead.model import presets
from clearhead.model.blocks import Block
from clearhead.model.presets import Size
from estimator import step_cost
from estimator.step_cost import LiveBytes, example_inputs, measure_pass, run_pass

DECODER = presets.gpt2(Size(4, 32, 4, 4, 64), vocabulary=301, length=16, dropout=0.1)
BOTH = presets.classic(203, size=Size(3, 24, 4, 4, 48), dropout=0.1)


def quiet(spec):
    return step_cost.without_attention_dropout(spec)


def saved_until_the_last_block(model, inputs, lengths):
    """The bytes that autograd saves until the last block ends, parameters left out."""
    *_, last = (one for one in model.modules() if isinstance(one, Block))
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    found, done = {}, []
    last.register_forward_hook(lambda *_: done.append(True))

    def pack(tensor):
        place = tensor.untyped_storage().data_ptr()
        if not done and place not in own:
            found[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*inputs, **lengths)
    return sum(one.untyped_storage().nbytes() for one in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("spec", [DECODER, BOTH], ids=["decoder", "encoder-decoder"])
def test_activations_are_what_autograd_saves(spec, monkeypatch):
    monkeypatch.setattr("clearhead.attention.kernels.fused.FEW_KEYS", 0)  # a CPU keeps the weights of few keys
    inputs, lengths = example_inputs(spec, 5, 11, 13)
    saved = saved_until_the_last_block(quiet(spec).build().train(), inputs, lengths)
    counted = measure_pass(spec, batch=5, source=11, target=13, arithmetic="float32").activations
    # The last block's output lives beside what is saved. On a CPU joined maps keep a copy of their weights.
    assert abs(counted - saved) <= 0.05 * saved


@pytest.mark.slow
@pytest.mark.parametrize(("arithmetic", "checkpointing"), [("float32", False), ("autocast", True)])
def test_the_peak_without_data_is_that_of_a_real_pass(arithmetic, checkpointing, monkeypatch):
    model = quiet(DECODER).build().train()
    # Real numbers are not read either, so that attention takes the same way; and maps are not joined.
    monkeypatch.setattr("clearhead.attention.modes.PLAIN", ())
    monkeypatch.setattr("clearhead.attention.heads.alike", lambda tensors: False)
    real = run_pass(
        model,
        *example_inputs(DECODER, 5, 1, 13),
        missing=[0] * 4,
        arithmetic=arithmetic,
        checkpointing=checkpointing,
    )
    counted = measure_pass(DECODER, batch=5, source=1, target=13, arithmetic=arithmetic, checkpointing=checkpointing)
    assert counted == real


@pytest.mark.slow
def test_two_blocks_tell_of_all(monkeypatch):
    asked = {"batch": 3, "source": 11, "target": 13, "arithmetic": "rounded"}
    short = measure_pass(BOTH, **asked)
    monkeypatch.setattr(step_cost, "distinct_blocks", lambda blocks: [(one, 1) for one in blocks])
    whole = measure_pass(BOTH, **asked)
    assert (short.activations, short.peak, short.copies) == (whole.activations, whole.peak, whole.copies)
    assert short.traffic == pytest.approx(whole.traffic, rel=0.02)
    parameters = sum(one.numel() for one in BOTH.build().parameters())
    assert short.copies == 2 * parameters


def test_bytes_live_until_they_are_freed_and_views_make_none():
    given = torch.ones(10)
    with LiveBytes([given]) as live:
        doubled = given * 2
        view = doubled.view(2, 5)
        assert live.now == 40
        more = torch.cat([view, view])
        assert (live.now, live.most) == (120, 120)
        del more
        given.add_(1)
    assert (live.now, live.most) == (40, 120)
    assert live.traffic == (40 + 40) + (40 + 80) + (40 + 40)
