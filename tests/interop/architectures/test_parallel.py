"""GPT-NeoX and Phi as `transformers` saves them, of odd configurations drawn at random."""

import json
import random

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.interop import read_hugging_face
from clearhead.interop.architectures import ARCHITECTURES
from clearhead.model import presets
from tests.covering import few
from tests.interop.peers import decoder_is_read, same_greedy, save
from tests.peers import transformers

KINDS = {"gpt_neox": "GPTNeoX", "phi": "Phi"}


def draw(kind, seed):
    torch.manual_seed(seed)
    rng = random.Random(f"{kind} {seed}")
    heads, width = rng.choice([1, 2, 3]), rng.choice([8, 10, 14])
    turned = rng.choice([2, 4, 6, width])
    scaling = rng.choice([{}, {"rope_type": "linear", "factor": 3.0}])
    own = {"use_parallel_residual": rng.random() < 0.7, "attention_bias": rng.random() < 0.5}
    if kind == "phi":
        own = {"num_key_value_heads": rng.choice([1, heads]), "qk_layernorm": rng.random() < 0.5}
    config = getattr(transformers, f"{KINDS[kind]}Config")(
        vocab_size=rng.randint(11, 60),
        max_position_embeddings=rng.randint(20, 230),
        hidden_size=heads * width,
        num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=heads,
        intermediate_size=rng.choice([7, 40]),
        hidden_act=rng.choice(["gelu", "relu", "gelu_new", "silu"]),
        layer_norm_eps=rng.choice([1e-5, 1e-3]),
        tie_word_embeddings=rng.random() < 0.3,
        rope_parameters={
            "rope_theta": rng.choice([100.0, 10_000.0]),
            "partial_rotary_factor": (turned + 0.1) / width if turned < width else 1.0,
            "rope_type": "default",
            **scaling,
        },
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **own,
    )
    return getattr(transformers, f"{KINDS[kind]}ForCausalLM")(config)


@pytest.mark.parametrize("seed", few(range(6), 3))
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_and_goes_back(kind, seed, tmp_path):
    decoder_is_read(draw(kind, seed), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_greedy_tokens_are_theirs(kind, tmp_path):
    same_greedy(draw(kind, 7), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_older_names_and_defaults_of_rotary_positions(kind, tmp_path):
    """Pythia has rotary_pct and rotary_emb_base; a field that lacks is a quarter, and in Phi a half."""
    save(draw(kind, 0), tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    del values["rope_parameters"]
    values |= {"hidden_size": 64, "num_attention_heads": 4}
    named = {"rotary_pct": 0.5, "rotary_emb_base": 99.0}
    older = named if kind == "gpt_neox" else {"partial_rotary_factor": 0.5, "rope_theta": 99.0}
    for fields in ({}, older):
        path.write_text(json.dumps({**values, **fields}))
        theirs = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
        config = read_config(path)
        position = ARCHITECTURES[kind].spec(config).blocks[0].attention.position
        assert (position.width, position.base) == (16 * theirs["partial_rotary_factor"], theirs["rope_theta"])


def read_config(path):
    from clearhead.interop.tables import Config

    return Config(json.loads(path.read_text()), "config.json")


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gpt_neox", {"hidden_act": "tanh"}, "hidden_act: 'tanh' is not supported"),
        ("gpt_neox", {"head_dim": 5}, "head_dim: 5 is not supported yet"),
        ("gpt_neox", {"num_attention_heads": 7}, "expected a number that divides"),
        ("phi", {"rope_parameters": {"partial_rotary_factor": 0.01}}, "partial_rotary_factor: turns 0 of"),
        (
            "phi",
            {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_type": "yarn", "factor": 2.0}},
            "yarn is not supported yet where a part of each head is turned",
        ),
    ],
)
def test_a_field_that_is_not_supported_is_named(kind, changes, message, tmp_path):
    save(draw(kind, 1), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "hidden_size": 24, "num_attention_heads": 3, **changes})
    )
    with pytest.raises(OptionError, match=message):
        read_hugging_face(tmp_path)


def test_what_it_cannot_say_is_named():
    spec = presets.llama("tiny", vocabulary=9)
    for kind in KINDS:
        with pytest.raises(OptionError, match=f"{kind} cannot say this model: feed_forward is SwiGLU"):
            ARCHITECTURES[kind].config_of(spec)
