"""How layers differ in configurations of SmolLM3, OLMo 2, Gemma 2 and Gemma 3; test_llama.py compares the models."""

import json

import pytest

from clearhead.errors import OptionError
from clearhead.interop.architectures import find_architecture
from clearhead.interop.config import Config
from clearhead.interop.tensor_files import read_object
from tests.interop.architectures.test_llama import SCALINGS, draw
from tests.peers import transformers


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers: expected 3 of 0"),
        ("smollm3", {"layer_types": ["sliding_attention"] * 3}, "there is no sliding_window in use"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation: 'gelu' is not supported"),
        ("gemma2", {"rope_parameters": {**SCALINGS[3]}, "attn_logit_softcapping": 9.0}, "yarn is not supported yet wh"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention: True is not supported yet"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 is not supported yet"),
        ("gemma3_text", {"rope_parameters": {"full_attention": 3}}, "expected an object with full_attention"),
        ("olmo2", {"model_type": "olmo"}, "model_type 'olmo' cannot be read"),
    ],
    ids=str,
)
def test_a_field_of_a_later_member_that_is_not_supported_is_named(kind, changes, message, tmp_path):
    peer = draw(kind, 1)
    fields = {**peer.config.to_dict(), "num_hidden_layers": 3, "layer_types": None, "no_rope_layers": None, **changes}
    (tmp_path / "config.json").write_text(json.dumps({**fields, "use_sliding_window": False}))
    with pytest.raises(OptionError, match=message):
        read_spec(tmp_path)


def read_spec(folder):
    config = Config(read_object(folder, "config.json"), "config.json")
    return find_architecture(config).spec(config)


@pytest.mark.parametrize("older", [{}, {"rope_theta": 99.0, "rope_local_base_freq": 7.0}], ids=["default", "older"])
def test_positions_of_an_older_gemma3(older, tmp_path):
    """By `rope_theta`, `rope_local_base_freq` and `rope_scaling`; or by the default of each kind of layer."""
    fields = {**draw("gemma3_text", 1).config.to_dict(), "rope_parameters": None, **older}
    fields |= {"num_hidden_layers": 7, "layer_types": None, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    fields.pop("_sliding_window_pattern", None)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    for block, kind in zip(read_spec(tmp_path).blocks, theirs.layer_types, strict=True):
        rope = theirs.rope_parameters[kind]
        position = block.attention.position
        assert (position.base, getattr(position.scaling, "factor", None)) == (rope["rope_theta"], rope.get("factor"))
        assert (block.attention.mask is None) == (kind == "full_attention")
