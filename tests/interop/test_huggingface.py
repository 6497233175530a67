"""Models that `transformers` saved are read: logits and hidden states are its own, and what does not fit is refused."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from clearhead import Rules, generate
from clearhead.errors import OptionError
from clearhead.interop import read_hugging_face
from clearhead.interop.architectures import find_architecture
from clearhead.interop.config import Config
from clearhead.interop.huggingface import table_rows
from clearhead.interop.tables import gather
from clearhead.taps import watching
from tests.model.copying import close, randomised

pytestmark = pytest.mark.usefixtures("one_thread")

NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def draw_gpt2(draw):
    heads = draw.choice([1, 2, 3, 5])
    config = GPT2Config(
        vocab_size=draw.randint(11, 60),
        n_positions=draw.randint(23, 30),
        n_embd=heads * draw.choice([4, 6, 8]),
        n_layer=draw.randint(1, 3),
        n_head=heads,
        n_inner=draw.choice([None, 7, 40]),
        activation_function=draw.choice(["gelu_new", "gelu", "relu"]),
        layer_norm_epsilon=draw.choice([1e-5, 1e-3]),
        scale_attn_weights=draw.random() < 0.7,
        tie_word_embeddings=draw.random() < 0.6,
        **NO_TOKENS,
    )
    return GPT2LMHeadModel(config)


def draw_llama(draw, config_class=LlamaConfig, model_class=LlamaForCausalLM, **extra):
    kv, group, d_head = draw.choice([1, 2, 3]), draw.choice([1, 2, 4]), draw.choice([4, 8, 10])
    config = config_class(
        vocab_size=draw.randint(11, 60),
        max_position_embeddings=300,
        hidden_size=kv * group * draw.choice([2, d_head]),
        num_hidden_layers=draw.randint(1, 3),
        num_attention_heads=kv * group,
        num_key_value_heads=kv,
        head_dim=d_head,
        intermediate_size=draw.choice([7, 40]),
        rms_norm_eps=draw.choice([1e-6, 1e-3]),
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice([100.0, 10_000.0, 500_000.0])},
        tie_word_embeddings=draw.random() < 0.5,
        **extra,
        **NO_TOKENS,
    )
    return model_class(config)


KINDS = {
    "gpt2": draw_gpt2,
    "llama": lambda draw: draw_llama(draw, attention_bias=draw.random() < 0.5),
    "mistral": lambda draw: draw_llama(
        draw, MistralConfig, MistralForCausalLM, sliding_window=draw.choice([None, 1, 3, 7])
    ),
}


def saved(kind, folder, seed):
    torch.manual_seed(seed)
    peer = randomised(KINDS[kind](random.Random(f"{kind} {seed}")), torch.float32)
    peer.save_pretrained(folder)
    return peer


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_logits_and_hidden_states_are_theirs(kind, seed, tmp_path):
    peer = saved(kind, tmp_path, seed)
    model = read_hugging_face(tmp_path).model
    tokens = torch.randint(peer.config.vocab_size, (2, 11))
    theirs = peer(tokens, output_hidden_states=True, use_cache=False)
    blocks = {}
    with watching(model, blocks.setdefault):
        mine = model(tokens)
    close(mine, theirs.logits)
    for i, states in enumerate(theirs.hidden_states[1:-1]):
        close(blocks[f"stack.blocks.{i}.out"], states, f"block {i}")


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_two_hundred_greedy_tokens_are_theirs(kind, tmp_path):
    """In float64, where no tie is decided by rounding; Llama's own norms and angles are float32 all the same."""
    peer = saved(kind, tmp_path, 9)
    count = 20 if kind == "gpt2" else 200  # GPT-2 has a vector for each position, and no more positions
    model = read_hugging_face(tmp_path).model.double()
    prompt = torch.tensor([[3, 1, 4]])
    made = peer.double().generate(prompt, max_new_tokens=count, do_sample=False, use_cache=True)
    [[mine]] = generate(model, prompt.tolist(), rules=Rules(max_new=count))
    assert list(mine.tokens) == made[0, 3:].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_back_again_every_tensor_is_bit_equal(kind, tmp_path):
    saved(kind, tmp_path, 1)
    there = load_file(tmp_path / "model.safetensors")
    config = Config(json.loads((tmp_path / "config.json").read_text()), "config.json")
    architecture = find_architecture(config)
    imported = read_hugging_face(tmp_path)
    rows = table_rows(architecture, config, architecture.prefix, len(imported.spec.blocks))
    again = gather(dict(imported.model.named_parameters()), rows)
    assert again.keys() == there.keys()
    for name, tensor in again.items():
        assert torch.equal(tensor, there[name]), name


def test_a_model_in_shards_and_a_bare_body_are_read(tmp_path):
    peer = saved("llama", tmp_path / "whole", 2)
    peer.save_pretrained(tmp_path / "shards", max_shard_size="2KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    whole, shards = (read_hugging_face(tmp_path / name).model.state_dict() for name in ("whole", "shards"))
    assert all(torch.equal(whole[name], shards[name]) for name in whole)
    gpt = saved("gpt2", tmp_path / "gpt", 0)
    if gpt.config.tie_word_embeddings:
        gpt.transformer.save_pretrained(tmp_path / "bare")
        read_hugging_face(tmp_path / "bare")


@pytest.fixture
def folder(tmp_path):
    saved("llama", tmp_path, 3)
    return tmp_path


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, r"config\.json: model_type 'mamba' cannot be read; there are gpt2, llama"),
        ({"hidden_act": "relu"}, "hidden_act: 'relu' is not supported yet; expected 'silu' or 'swish'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rope_type: 'llama3' is not supported yet"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers: expected a whole number from 1 to"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a whole number from 1 to"),
        ({"num_hidden_layers": 9}, "is missing"),
        ({"intermediate_size": 41}, "is .*, and config.json says"),
        ({"vocab_size": 2**30}, "config.json describes a larger model than the tensors are of"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: expected a number above 0; came 'small'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false; came 1"),
        ({"num_key_value_heads": 7}, "kv must divide"),
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
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(OptionError, match=r"pytorch_model\.bin is a pickle: save it again"):
        read_hugging_face(folder)
    (folder / "config.json").unlink()
    with pytest.raises(OptionError, match=r"has no config\.json; give a folder as save_pretrained writes it"):
        read_hugging_face(folder)
