"""GGUF's names and layouts beside Hugging Face's."""

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.interop.gguf import FAMILIES, find_family, interleave_rotary, split_rotary, tensor_names


def test_halves_and_pairs_are_each_other_s_inverse():
    tensor = torch.arange(48.0).reshape(24, 2)
    assert split_rotary(interleave_rotary(tensor, 3), 3).equal(tensor)
    head = interleave_rotary(torch.arange(8.0), 1)
    assert head.tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_names_are_those_of_the_gguf_package():
    rename = tensor_names(FAMILIES["llama"], 2)
    assert rename("model.layers.1.self_attn.q_proj.weight") == "blk.1.attn_q.weight"
    assert rename("model.layers.7.self_attn.q_proj.weight") is None


def test_a_family_that_is_not_there_is_refused_by_name():
    with pytest.raises(OptionError, match=r"x.gguf: the architecture 'bert' cannot be read"):
        find_family("bert", "x.gguf")
