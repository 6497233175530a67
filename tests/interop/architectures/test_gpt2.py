"""GPT-2 as `transformers` saves it, of odd configurations drawn at random."""

import random

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.interop.architectures.gpt2 import GPT2
from clearhead.model import presets
from tests.interop.peers import NO_TOKENS, decoder_is_read, same_greedy
from tests.peers import late

GPT2Config, GPT2LMHeadModel = late("transformers", "GPT2Config", "GPT2LMHeadModel")


def draw(seed, **changes):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    heads = rng.choice([1, 2, 3, 5])
    config = GPT2Config(
        vocab_size=rng.randint(11, 60),
        n_positions=rng.randint(23, 30),
        n_embd=heads * rng.choice([4, 6, 8]),
        n_layer=rng.randint(1, 3),
        n_head=heads,
        n_inner=rng.choice([None, 7, 40]),
        activation_function=rng.choice(["gelu_new", "gelu", "relu"]),
        layer_norm_epsilon=rng.choice([1e-5, 1e-3]),
        scale_attn_weights=rng.random() < 0.7,
        tie_word_embeddings=rng.random() < 0.6,
        **NO_TOKENS,
    )
    config.update(changes)
    return GPT2LMHeadModel(config)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_read_and_goes_back(seed, tmp_path):
    decoder_is_read(draw(seed), tmp_path)


@pytest.mark.slow
def test_two_hundred_greedy_tokens_are_theirs(tmp_path):
    same_greedy(draw(9, n_positions=210), tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (presets.llama("tiny", vocabulary=9), "gpt2 cannot say this model: embedding.position is None, and its models"),
        (presets.tiny(9), "gpt2 cannot say this model: the model is EncoderDecoderSpec.*have DecoderSpec"),
    ],
    ids=["llama", "both sides"],
)
def test_what_it_cannot_say_is_named(spec, message):
    with pytest.raises(OptionError, match=message):
        GPT2.config_of(spec)


def test_a_preset_is_written():
    assert GPT2.config_of(presets.gpt2("tiny", vocabulary=50))["vocab_size"] == 50
