"""T5 as `transformers` saves it, of odd configurations drawn at random, and as its older files are."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5ForConditionalGeneration

from clearhead.errors import OptionError
from clearhead.interop import read_hugging_face
from clearhead.interop.architectures.t5 import T5
from clearhead.model import presets
from tests.interop.peers import same_translation, save, translator_is_read
from tests.model.copying import close

pytestmark = pytest.mark.usefixtures("one_thread")


def draw(seed):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    config = T5Config(
        vocab_size=rng.randint(11, 40),
        d_model=rng.choice([8, 12]),
        d_kv=rng.choice([3, 6]),
        d_ff=rng.choice([7, 30]),
        num_layers=rng.randint(1, 3),
        num_decoder_layers=rng.choice([None, 1, 3]),
        num_heads=rng.choice([1, 2, 3]),
        relative_attention_num_buckets=rng.choice([8, 32]),
        relative_attention_max_distance=rng.choice([20, 128]),
        feed_forward_proj=rng.choice(["relu", "gated-gelu", "gated-silu"]),
        layer_norm_epsilon=rng.choice([1e-6, 1e-3]),
        tie_word_embeddings=rng.random() < 0.5,  # transformers ties in any case, and scales the logits only if so
        decoder_start_token_id=rng.randint(0, 10),
        pad_token_id=None,
        eos_token_id=None,
    )
    return T5ForConditionalGeneration(config)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_read_and_goes_back(seed, tmp_path):
    translator_is_read(draw(seed), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 8])
def test_greedy_translations_are_theirs(seed, tmp_path):
    same_translation(draw(seed), tmp_path)


@torch.no_grad()
def test_an_output_of_its_own_as_in_older_files(tmp_path):
    """T5 1.1: `tie_word_embeddings` is false, and the logits are not scaled."""
    peer = save(draw(3), tmp_path)
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    table = torch.randn_like(peer.shared.weight)
    save_file({**load_file(path), "lm_head.weight": table, "encoder.embed_tokens.weight": peer.shared.weight}, path)
    values = json.loads(config.read_text())
    del values["scale_decoder_outputs"]
    config.write_text(json.dumps({**values, "tie_word_embeddings": False}))
    model = read_hugging_face(tmp_path).model
    source, target = torch.randint(11, (2, 5)), torch.randint(11, (2, 4))
    states = peer(source, decoder_input_ids=target, output_hidden_states=True).decoder_hidden_states[-1]
    close(model(source, target), states @ table.T)


def test_what_does_not_fit_is_named(tmp_path):
    save(draw(0), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "feed_forward_proj": "gated-tanh"}))
    with pytest.raises(
        OptionError, match="feed_forward_proj: 'gated-tanh' is not supported; there are relu, gated-gelu"
    ):
        read_hugging_face(tmp_path)
    with pytest.raises(
        OptionError, match=r"t5 cannot say this model: attention.position is None, and its models have T5"
    ):
        T5.config_of(presets.tiny(9))
