"""Folders that `transformers` saved are read, and what does not fit is refused; each family has a file of its own."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearhead.errors import OptionError, RunError
from clearhead.interop import read_hugging_face
from clearhead.interop.huggingface import FILE, is_pooler, read_pooler, write_pooler
from clearhead.interop.run import import_model
from tests.interop import saved_models
from tests.interop.peers import NO_TOKENS, save
from tests.peers import late

GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM = late(
    "transformers", "GPT2Config", "GPT2LMHeadModel", "LlamaConfig", "LlamaForCausalLM"
)


def draw_llama(seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=30,
            max_position_embeddings=300,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=40,
            **NO_TOKENS,
        )
    )


def draw_gpt2(**options):
    return GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=9, n_embd=8, n_layer=1, n_head=2, **options))


def test_a_model_in_shards_and_a_bare_body_are_read(tmp_path):
    peer = save(draw_llama(2), tmp_path / "whole")
    peer.save_pretrained(tmp_path / "shards", max_shard_size="2KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    whole, shards = (read_hugging_face(tmp_path / name).model.state_dict() for name in ("whole", "shards"))
    assert all(torch.equal(whole[name], shards[name]) for name in whole)
    gpt = save(draw_gpt2(), tmp_path / "gpt")
    gpt.transformer.save_pretrained(tmp_path / "bare")
    whole, bare = (read_hugging_face(tmp_path / name).model.state_dict() for name in ("gpt", "bare"))
    assert all(torch.equal(whole[name], bare[name]) for name in whole)


def test_what_the_model_is_for_is_told(tmp_path):
    peer = draw_gpt2(bos_token_id=3, eos_token_id=[4, 5])
    peer.generation_config.eos_token_id = [5, 7]
    save(peer, tmp_path)
    imported = read_hugging_face(tmp_path)
    assert imported[2:7] == ("generate", 9, (), 3, (5, 7))
    (tmp_path / "generation_config.json").unlink()
    assert read_hugging_face(tmp_path).end == (4, 5)


def test_a_tied_output_may_be_there_twice_and_is_its_own_where_it_differs(tmp_path):
    save(draw_gpt2(), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = tensors["transformer.wte.weight"]
    save_file({**tensors, "lm_head.weight": table.clone()}, path)
    assert read_hugging_face(tmp_path).spec.output.tied
    save_file({**tensors, "lm_head.weight": table + 1}, path)
    imported = read_hugging_face(tmp_path)
    assert not imported.spec.output.tied
    assert torch.equal(imported.model.output.table, table + 1)


@pytest.fixture
def folder(tmp_path):
    save(draw_llama(3), tmp_path)
    return tmp_path


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, r"config\.json: model_type 'mamba' cannot be read; there are gpt2, llama"),
        ({"hidden_act": "relu"}, "hidden_act: 'relu' is not supported; there are silu, swish"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "low_freq_factor: expected a number above 0"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers: expected a whole number from 1 to"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a whole number from 1 to"),
        ({"num_hidden_layers": 9}, "is missing"),
        ({"intermediate_size": 41}, "is .*, and in this model"),
        ({"vocab_size": 2**30}, "config.json describes a larger model than the tensors are of"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: expected a number above 0; came 'small'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false; came 1"),
        ({"num_key_value_heads": 7}, "kv must divide"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: .* is not supported yet; expected none"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(OptionError, match=message):
        read_hugging_face(folder)


def test_files_that_do_not_fit_are_refused(folder):
    path = folder / "model.safetensors"
    tensors, whole = load_file(path), path.read_bytes()
    save_file({**tensors, "model.extra": torch.zeros(2)}, path)
    with pytest.raises(OptionError, match=r"1 tensors have no place in this model: model\.extra"):
        read_hugging_face(folder)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OptionError, match=r"model\.safetensors: cannot be read"):
        read_hugging_face(folder)
    path.unlink()
    with pytest.raises(OptionError, match=r"has neither model\.safetensors nor .*, nor pytorch_model\.bin"):
        read_hugging_face(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(OptionError, match=r"pytorch_model\.bin: is no archive as torch has written since"):
        read_hugging_face(folder)
    (folder / "config.json").unlink()
    with pytest.raises(OptionError, match=r"has no config\.json; give a folder as save_pretrained writes it"):
        read_hugging_face(folder)


def test_an_adapter_beside_a_model_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(OptionError, match=r"has adapter_config\.json, an adapter of PEFT's .* merge the two first"):
        read_hugging_face(tmp_path)


POOLER = {"pooler.dense.weight": torch.randn(6, 6), "pooler.dense.bias": torch.randn(6)}


def test_it_is_read_as_it_was_written(tmp_path):
    assert read_pooler(tmp_path, 6) == {}
    write_pooler(tmp_path, POOLER)
    again = read_pooler(tmp_path, 6)
    assert all(again[name].equal(tensor) for name, tensor in POOLER.items())


@pytest.mark.parametrize(
    "tensors", [{"pooler.dense.weight": POOLER["pooler.dense.weight"]}, {**POOLER, "other": torch.zeros(6)}, {}]
)
def test_another_file_is_refused(tensors, tmp_path):
    save_file(tensors, tmp_path / FILE)
    with pytest.raises(RunError, match="is no pooler of 6 numbers"):
        read_pooler(tmp_path, 6)
    with pytest.raises(RunError, match="is no pooler of 7 numbers"):
        read_pooler(tmp_path, 7)


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / FILE).write_bytes(b"\xff" * 40)
    with pytest.raises(RunError, match="cannot be read"):
        read_pooler(tmp_path, 6)


def test_its_names():
    assert is_pooler("bert.pooler.dense.weight")
    assert is_pooler("pooler.dense.bias")
    assert not is_pooler("classifier.dense.weight")


def test_what_the_task_has_no_use_for_is_told(tmp_path):
    saved_models.save("bert", tmp_path / "source")
    path, told = tmp_path / "source" / "model.safetensors", []
    tensors = load_file(path)
    extra = {"bert.embeddings.position_ids": torch.arange(70)[None], "cls.seq_relationship.bias": torch.zeros(2)}
    pooler = {f"bert.{name}": torch.zeros([24] * one.ndim) for name, one in POOLER.items()}
    save_file({**tensors, **extra, **pooler}, path)
    import_model(tmp_path / "source", tmp_path / "run", device="cpu", log=told.append)
    [line] = told
    assert line.endswith(
        "to fill takes no bert.pooler.dense.bias, bert.pooler.dense.weight, cls.seq_relationship.bias: left out"
    )
    assert not (tmp_path / "run" / FILE).exists()
