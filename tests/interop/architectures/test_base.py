"""What all architectures share: a spec is held to the one that is read again, and the first difference is named."""

from dataclasses import replace

import pytest

from clearhead.attention.heads import Heads
from clearhead.attention.positions import LinearScaling, NoPosition, Rotary, RotaryScaling, YaRNScaling
from clearhead.attention.similarity import ScaledDot
from clearhead.attention.weighting import Softmax
from clearhead.errors import OptionError
from clearhead.interop.architectures import ARCHITECTURES
from clearhead.interop.architectures.base import differences, expect, name_activation, plain, read_rope, write_rope
from clearhead.interop.tables import Config
from clearhead.model import GELU, AttentionSpec, ReLU, SiLU, SwiGLU, presets
from tests.interop.architectures.test_llama import SCALINGS


def test_what_is_left_to_a_default_is_no_difference():
    spec = presets.gpt2("tiny", vocabulary=9)
    block = spec.blocks[0]
    heads = Heads(block.attention.heads.count, kv=block.attention.heads.count, bias=True, output_bias=True)
    written = AttentionSpec(
        heads=heads,
        similarity=ScaledDot(),
        weighting=Softmax(),
        position=NoPosition(),
        dropout=0.3,
        kernel="reference",
    )
    other = replace(spec, blocks=(replace(block, attention=written, dropout=0.9),) * len(spec.blocks))
    assert list(differences(plain(spec), plain(other), "spec")) == []


def test_the_first_difference_is_named_with_both_values():
    spec = presets.gpt2("tiny", vocabulary=9)
    longer = replace(spec, blocks=spec.blocks[:-1])
    [(path, ours, theirs)] = differences(plain(spec), plain(longer), "spec")
    assert path == "spec.blocks"
    assert (len(ours), len(theirs)) == (len(spec.blocks), len(spec.blocks) - 1)
    [found] = differences(plain(spec), plain(replace(spec, vocabulary=8)), "spec")
    assert found == ("spec.vocabulary", 9, 8)


def test_a_bias_that_ours_lacks_is_zeros_and_one_that_theirs_lacks_is_a_difference():
    without = presets.gpt2("tiny", vocabulary=9)
    without = replace(without, blocks=tuple(replace(one, feed_forward=GELU(9, bias=False)) for one in without.blocks))
    have = replace(without, blocks=tuple(replace(one, feed_forward=GELU(9)) for one in without.blocks))
    assert list(differences(plain(without), plain(have), "spec")) == []
    assert next(differences(plain(have), plain(without), "spec")) == ("spec.blocks[0].feed_forward.bias", True, False)


@pytest.mark.parametrize(
    "make", [ReLU, SiLU, GELU, lambda d_ff: GELU(d_ff, form="tanh"), lambda d_ff: ReLU(d_ff, bias=False)]
)
def test_activations_have_names(make):
    from clearhead.interop.architectures.base import ACTIVATIONS

    again = ACTIVATIONS[name_activation(make(7))](7)
    assert replace(again, bias=True) == replace(make(7), bias=True)


def test_a_part_of_another_kind_is_named_shortly():
    with pytest.raises(OptionError, match=r"feed_forward is SwiGLU\(3\), and its models have gelu"):
        name_activation(SwiGLU(3))
    with pytest.raises(OptionError, match="x is 3, and its models have Heads or AttentionSpec"):
        expect(3, (Heads, AttentionSpec), "x")
    with pytest.raises(OptionError) as raised:
        expect(presets.tiny(9), Heads, "the model")
    assert len(str(raised.value)) < 150


def test_every_class_is_read_by_one_architecture_alone():
    named = [name for one in ARCHITECTURES.values() for name in one.classes]
    assert len(named) == len(set(named))
    assert {task for one in ARCHITECTURES.values() for task in one.classes.values()} == {
        "generate",
        "fill",
        "classify",
        "embed",
        "translate",
    }


def read(**values):
    return read_rope(Config(values, "config.json"))


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_it_comes_back(scaling):
    rope = read(rope_parameters={"rope_theta": 300.0, **scaling}, max_position_embeddings=99)
    layer = AttentionSpec(position=rope.position, weighting=rope.weighting)
    again = read(**write_rope(layer))
    assert again.position == rope.position
    if rope.weighting is None:
        assert again.weighting is None
    else:
        assert again.weighting.temperature == pytest.approx(rope.weighting.temperature, rel=1e-12)


def test_the_context_is_the_original_where_none_is_given():
    rope = read(max_position_embeddings=77, rope_scaling={"type": "yarn", "factor": 4.0}, rope_theta=50.0)
    assert rope.position == Rotary(pairing="halves", base=50.0, scaling=YaRNScaling(4.0, original=77))
    assert read().position == Rotary(pairing="halves")
    assert read(rope_theta=9.0, rope_scaling={"type": "linear", "factor": 2}).position.scaling == LinearScaling(2.0)


def test_what_no_configuration_has_a_name_for_is_refused():
    class Own(RotaryScaling):
        def scale(self, frequency, base):
            return frequency

    with pytest.raises(OptionError, match=r"config.json has no name for the scaling .*there are default, linear"):
        write_rope(AttentionSpec(position=Rotary(scaling=Own())))
    with pytest.raises(OptionError, match=r"attention\.position is None, and its models have Rotary"):
        write_rope(AttentionSpec(weighting=Softmax()))
