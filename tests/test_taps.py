"""Taps: every inner value is seen once by its name and can be replaced; watching changes nothing, and contexts nest."""

import pytest
import torch

import clearhead as ch
from clearhead.errors import ClearheadError
from clearhead.model import presets
from clearhead.taps import replacing, watching
from tests.model.small import SIZE, WORDS, both_spec, decoder_spec, words

TAPPED = {
    "encoder-decoder": both_spec(),
    "gpt2": presets.gpt2(SIZE, vocabulary=WORDS),
    "llama": presets.llama(SIZE, vocabulary=WORDS),
    "bert": presets.bert(SIZE, vocabulary=WORDS),
}


def run(model, tokens):
    return model(tokens, tokens) if len(model.stacks) > 1 else model(tokens)


@pytest.mark.parametrize("spec", TAPPED.values(), ids=TAPPED)
def test_watching_changes_nothing_and_sees_every_name_once(spec):
    model, tokens, names = spec.build().eval(), words(), []
    wanted = run(model, tokens)
    with watching(model, lambda name, value: names.append(name)):
        watched = run(model, tokens)
    assert torch.equal(watched, wanted)
    assert len(names) == len(set(names))
    assert torch.equal(run(model, tokens), wanted)
    seen = len(names)
    run(model, tokens)
    assert len(names) == seen  # nobody watches any more


def test_every_inner_value_has_its_name():
    model, names = both_spec().build(), []
    with watching(model, lambda name, value: names.append(name)):
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
@pytest.mark.slow
def test_replacing_any_value_changes_the_output(spec):
    model, tokens, names = spec.build().eval().double(), words(), []
    with watching(model, lambda name, value: names.append(name)):
        wanted = run(model, tokens)
    for chosen in names:
        with replacing(
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

    with watching(model, keep):
        model(tokens).square().sum().backward()
    assert len(seen) > 20
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in seen.values())


def test_what_an_observer_returns_changes_nothing():
    """The idiom `seen.setdefault` returns the first pass's values: the second pass must not run on them."""
    model, seen = decoder_spec().build().eval(), {}
    first, second = words(), words().flip(0)
    wanted = model(second)
    with watching(model, seen.setdefault):
        model(first)
        torch.testing.assert_close(model(second), wanted, rtol=0, atol=0)
    for nothing in (lambda name, value: None, lambda name, value: value * 0):
        with watching(model, nothing):
            torch.testing.assert_close(model(second), wanted, rtol=0, atol=0)


def test_an_inner_context_ends_by_itself_and_the_outer_goes_on():
    layer, x, outer, inner = ch.Attention(8, heads=2), torch.randn(1, 3, 8), [], []
    names = ["query", "key", "value", "context", "concat", "out"]
    with watching(layer, lambda name, value: outer.append(name)):
        with watching(layer, lambda name, value: inner.append(name)):
            layer(x)
        layer(x)
    layer(x)
    assert (outer, inner) == (names * 2, names)
    assert not layer.tapped
    assert "observers" not in vars(layer)


def test_contexts_may_end_in_any_order():
    layer, x, first, second = ch.Attention(8, heads=2), torch.randn(1, 3, 8), [], []
    one, other = (watching(layer, lambda name, value, to=to: to.append(name)) for to in (first, second))
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    layer(x)
    other.__exit__(None, None, None)
    layer(x)
    assert (len(first), len(second)) == (0, 6)


def test_replacements_compose_in_order_and_every_observer_sees_what_goes_on():
    layer, x = ch.Attention(8, heads=2).double(), torch.randn(1, 3, 8, dtype=torch.float64)
    before, after = {}, {}

    def doubled(name, value):
        return 2 * value if name == "context" else value

    def one_more(name, value):
        return value + 1 if name == "context" else value

    plain = {}
    with watching(layer, plain.setdefault):
        layer(x)
    inner = watching(layer, after.setdefault)
    with watching(layer, before.setdefault), replacing(layer, doubled), replacing(layer, one_more), inner:
        out = layer(x)
    for seen in (before, after):
        torch.testing.assert_close(seen["context"], 2 * plain["context"] + 1)
        torch.testing.assert_close(seen["out"], out)
    torch.testing.assert_close(layer(x), plain["out"])


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, r"replacing 'query': the function must return the tensor that goes on.*returned None.*use watching"),
        (1.0, "returned float"),
        (torch.zeros(1), r"replacing 'query': expected a tensor of shape \(1, 2, 3, 4\); the function returned \(1,\)"),
    ],
)
def test_a_replacement_that_is_no_tensor_of_that_shape_is_refused_by_name(returned, words):
    layer = ch.Attention(8, heads=2)
    with pytest.raises(ClearheadError, match=words), replacing(layer, lambda name, value: returned):
        layer(torch.randn(1, 3, 8))
    assert not layer.tapped
