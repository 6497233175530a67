"""Rotary positions of configurations: every way to say them, and back. Whole models are compared in test_llama."""

import pytest

from clearhead.attention.positions import LinearScaling, Rotary, RotaryScaling, YaRNScaling
from clearhead.attention.weighting import Softmax
from clearhead.errors import OptionError
from clearhead.interop.architectures.rope import read_rope, write_rope
from clearhead.interop.config import Config
from clearhead.model import AttentionSpec
from tests.interop.architectures.test_llama import SCALINGS


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
