"""T5 as `transformers` saves it, of odd configurations drawn at random, and as its older files are."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearhead.errors import OptionError
from clearhead.interop import read_hugging_face
from clearhead.interop.architectures.t5 import T5
from clearhead.interop.export import check_exportable
from clearhead.interop.tables import Config
from clearhead.model import presets
from tests.covering import few
from tests.interop.peers import same_translation, save, translator_is_read
from tests.peers import late
from tests.rounding import assert_equal_but_rounding

T5Config, T5ForConditionalGeneration = late("transformers", "T5Config", "T5ForConditionalGeneration")


def draw(seed):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    layers = rng.randint(1, 3)
    config = T5Config(
        vocab_size=rng.randint(11, 40),
        d_model=rng.choice([8, 12]),
        d_kv=rng.choice([3, 6]),
        d_ff=rng.choice([7, 30]),
        num_layers=layers,
        num_decoder_layers=rng.choice([None, 1, layers]),
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


@pytest.mark.parametrize("seed", few(range(6), 3))
def test_it_is_read_and_goes_back(seed, tmp_path):
    translator_is_read(draw(seed), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", few([7, 8], 1))
def test_two_hundred_greedy_tokens_are_theirs(seed, tmp_path):
    same_translation(draw(seed), tmp_path)


def test_a_decoder_deeper_than_the_encoder_is_read_and_not_written(tmp_path):
    """`generate` of transformers ends with an IndexError: an export is refused before it comes to that."""
    peer = draw(1)
    peer.config.num_layers, peer.config.num_decoder_layers = 1, 3
    peer = save(T5ForConditionalGeneration(peer.config), tmp_path)
    imported = read_hugging_face(tmp_path)
    source, target = torch.randint(11, (2, 5)), torch.randint(11, (2, 4))
    theirs = peer(source, decoder_input_ids=target, use_cache=False)
    assert_equal_but_rounding(imported.model(source, target).detach(), theirs.logits)
    with pytest.raises(IndexError):  # once this is gone, so may the refusal be
        peer.generate(source, max_new_tokens=3)
    with pytest.raises(OptionError, match=r"t5 cannot say this model: the decoder has 3 blocks and the encoder 1"):
        check_exportable("hf", imported.spec, "translate")


@pytest.mark.parametrize("tied", [False, True], ids=["as it was written", "as transformers 5 writes it"])
@torch.no_grad()
def test_an_output_of_its_own(tied, tmp_path):
    """T5 1.1: the tables differ, and the logits are not scaled, whatever `tie_word_embeddings` says."""
    peer = save(draw(3), tmp_path)
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    extra = {"lm_head.weight": torch.randn_like(peer.shared.weight), "encoder.embed_tokens.weight": peer.shared.weight}
    save_file({**load_file(path), **extra}, path, metadata={"format": "pt"})
    values = {**json.loads(config.read_text()), "tie_word_embeddings": tied, "scale_decoder_outputs": False}
    if not tied:
        del values["scale_decoder_outputs"]
    config.write_text(json.dumps(values))
    imported = read_hugging_face(tmp_path)
    assert imported.spec.tied == "embeddings"
    theirs = T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    source, target = torch.randint(11, (2, 5)), torch.randint(11, (2, 4))
    assert_equal_but_rounding(imported.model(source, target), theirs(source, decoder_input_ids=target).logits)
    extra["encoder.embed_tokens.weight"] = peer.shared.weight + 1
    save_file({**load_file(path), **extra}, path)
    with pytest.raises(OptionError, match=r"encoder\.embed_tokens\.weight must be shared\.weight once more"):
        read_hugging_face(tmp_path)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dense_act_fn": "silu"}, "dense_act_fn: 'silu' is not supported yet; expected 'relu'"),
        ({"is_gated_act": True}, "is_gated_act: True is not supported yet; expected False"),
    ],
)
def test_fields_that_contradict_the_network_are_refused(change, message):
    """`transformers` computes with these two, whatever `feed_forward_proj` says."""
    sizes = {"vocab_size": 9, "d_model": 4, "d_kv": 2, "d_ff": 5, "num_layers": 1, "num_heads": 2}
    assert T5.spec(Config({**sizes, "dense_act_fn": "relu", "is_gated_act": False}, "config.json"))
    with pytest.raises(OptionError, match=message):
        T5.spec(Config({**sizes, "feed_forward_proj": "relu", **change}, "config.json"))


def test_a_scale_of_null_is_none():
    sizes = {"vocab_size": 9, "d_model": 4, "d_kv": 2, "d_ff": 5, "num_layers": 1, "num_heads": 2}
    assert T5.spec(Config(sizes, "config.json")).decoder.output.scaled
    assert not T5.spec(Config({**sizes, "scale_decoder_outputs": None}, "config.json")).decoder.output.scaled
