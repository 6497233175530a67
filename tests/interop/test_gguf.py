"""Models in GGUF files that the gguf package wrote, read as transformers reads them or refused; tables of names."""

import gguf
import numpy as np
import pytest
import torch

from clearhead.errors import OptionError
from clearhead.interop.gguf import FAMILIES, find_family, interleave_rotary, read_gguf, split_rotary, tensor_names
from tests.peers import transformers

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
CONFIGS = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}


def write_theirs(path, name, *, tied=False, leave_out=(), said=None):
    """Write a random model of transformers' as a GGUF file, as llama.cpp's converter does; return the model."""
    sizes = {key: value for key, value in SIZES.items() if key != "head_dim" or name != "qwen2"}
    config = getattr(transformers, CONFIGS[name])(**sizes, tie_word_embeddings=tied, rms_norm_eps=1e-5)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    family, writer = FAMILIES[name], gguf.GGUFWriter(path, name)
    values = {f"{name}.{key}": SIZES[field] for key, field in family.counts.items()}
    for key, value in {**values, **(said or {})}.items():
        writer.add_uint32(key, value)
    writer.add_float32(f"{name}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    rename = tensor_names(family, 2)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.1 * torch.randn_like(one))
    for key, tensor in model.state_dict().items():
        if key in leave_out or (tied and key == "lm_head.weight"):
            continue
        heads = {"q_proj": 4, "k_proj": 2}.get(key.split(".")[-2])
        turned = interleave_rotary(tensor, heads) if heads and family.interleaved else tensor
        writer.add_tensor(rename(key), turned.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_it_computes_what_transformers_computes(name, tied, tmp_path):
    theirs = write_theirs(tmp_path / "model.gguf", name, tied=tied)
    found, tokens = read_gguf(tmp_path / "model.gguf"), torch.randint(40, (2, 9))
    with torch.no_grad():
        assert torch.allclose(found.model(tokens), theirs(tokens).logits, atol=1e-5)
    assert (found.task, found.context, found.end) == ("generate", 64, (2,))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"leave_out": ("model.layers.1.mlp.up_proj.weight",)}, r"up_proj.weight is missing"),
        ({"said": {"llama.embedding_length": 64}}, "in this model|larger model"),
        ({"said": {"llama.block_count": 3}}, "missing"),
        ({"said": {"llama.block_count": 2**30}}, "blocks, and has"),
        ({"said": {"llama.block_count": 1}}, "have no place"),
        ({"said": {"llama.feed_forward_length": 2**30}}, "larger model"),
        ({"said": {"llama.rope.dimension_count": 4}}, r"llama\.rope\.dimension_count: 4 is not supported yet"),
        ({"said": {"llama.rope.scaling.factor": 4}}, r"llama\.rope\.scaling\.factor: 4 is not supported yet"),
        ({"said": {"llama.expert_count": 8}}, r"llama\.expert_count: 8 is not supported yet"),
        ({"said": {"llama.attention.sliding_window": 7}}, r"llama\.attention\.sliding_window: 7 is not supported"),
        ({"said": {"llama.logit_scale": 2}}, r"llama\.logit_scale: 2 is not supported yet"),
    ],
)
def test_what_does_not_fit_is_refused(changes, said, tmp_path):
    write_theirs(tmp_path / "model.gguf", "llama", **changes)
    with pytest.raises(OptionError, match=said):
        read_gguf(tmp_path / "model.gguf")


def test_another_architecture_is_refused_by_name(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "mamba")
    writer.add_tensor("x", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(OptionError, match="the architecture 'mamba' cannot be read; there are llama"):
        read_gguf(tmp_path / "model.gguf")


def test_keys_that_say_nothing_new_are_read_over(tmp_path):
    said = {"rope.dimension_count": 8, "attention.value_length": 8, "vocab_size": 40, "expert_count": 0}
    said |= {"attention.sliding_window": 4096, "rope.scaling.factor": 1}
    theirs = write_theirs(tmp_path / "model.gguf", "llama", said={f"llama.{key}": value for key, value in said.items()})
    tokens = torch.randint(40, (2, 9))
    with torch.no_grad():
        assert torch.allclose(read_gguf(tmp_path / "model.gguf").model(tokens), theirs(tokens).logits, atol=1e-5)


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
