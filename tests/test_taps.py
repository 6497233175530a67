"""Taps: every inner value is seen once by its name, can be replaced, and is none the worse for being watched."""

import pytest
import torch

from clearhead.model import presets
from clearhead.taps import watching
from tests.model.small import SIZE, WORDS, both_spec, decoder_spec, words

pytestmark = pytest.mark.usefixtures("one_thread")


TAPPED = {
    "encoder-decoder": both_spec(),
    "gpt2": presets.gpt2(SIZE, vocabulary=WORDS),
    "llama": presets.llama(SIZE, vocabulary=WORDS),
    "bert": presets.bert(SIZE, vocabulary=WORDS),
}


def run(model, tokens):
    return model(tokens, tokens) if hasattr(model, "decoder") else model(tokens)


@pytest.mark.parametrize("spec", TAPPED.values(), ids=TAPPED)
def test_watching_changes_nothing_and_sees_every_name_once(spec):
    model, tokens, names = spec.build().eval(), words(), []
    wanted = run(model, tokens)
    with watching(model, lambda name, value: (names.append(name), value)[1]):
        watched = run(model, tokens)
    assert torch.equal(watched, wanted)
    assert len(names) == len(set(names))
    assert torch.equal(run(model, tokens), wanted)
    seen = len(names)
    run(model, tokens)
    assert len(names) == seen  # nobody watches any more


def test_every_inner_value_has_its_name():
    model, names = both_spec().build(), []
    with watching(model, lambda name, value: (names.append(name), value)[1]):
        model(words(), words())
    attention = ["query", "key", "value", "context", "concat", "out"]
    own = ["around_attention.normed", *(f"attention.{name}" for name in attention), "around_attention.residual"]
    cross = ["around_cross.normed", *(f"cross.{name}" for name in attention), "around_cross.residual"]
    forward = [
        "around_feed_forward.normed",
        "feed_forward.pre_activation",
        "feed_forward.hidden",
        "feed_forward.out",
        "around_feed_forward.residual",
        "out",
    ]
    embedding = ["embedding.token", "embedding.position", "embedding.out"]
    wanted = []
    for side, block in (("encoder", [*own, *forward]), ("decoder", [*own, *cross, *forward])):
        wanted += [f"{side}.{name}" for name in embedding]
        wanted += [f"{side}.stack.blocks.{index}.{name}" for index in range(2) for name in block]
        wanted.append(f"{side}.stack.normed")
    assert names == [*wanted, "decoder.output.logits"]


@pytest.mark.parametrize("spec", TAPPED.values(), ids=TAPPED)
def test_replacing_any_value_changes_the_output(spec):
    model, tokens, names = spec.build().eval().double(), words(), []
    with watching(model, lambda name, value: (names.append(name), value)[1]):
        wanted = run(model, tokens)
    for chosen in names:
        with watching(
            model,
            lambda name, value, chosen=chosen: value + torch.randn_like(value) if name == chosen else value,
        ):
            assert not torch.allclose(run(model, tokens), wanted), chosen


def test_a_watcher_that_fails_leaves_nobody_watching():
    model, tokens = decoder_spec().build(), words()
    wanted = model(tokens)

    def failing(name, value):
        raise KeyError(name)

    with pytest.raises(KeyError), watching(model, failing):
        model(tokens)
    assert torch.equal(model(tokens), wanted)


def test_gradients_flow_through_what_is_watched():
    model, tokens, seen = decoder_spec().build(), words(), {}

    def keep(name, value):
        if value.requires_grad:
            value.retain_grad()
            seen[name] = value
        return value

    with watching(model, keep):
        model(tokens).square().sum().backward()
    assert len(seen) > 20
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in seen.values())
