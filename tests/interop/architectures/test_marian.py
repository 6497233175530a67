"""Marian, Pegasus, BART, mBART and M2M100 as `transformers` saves them, of odd configurations drawn at random."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearhead.errors import OptionError
from clearhead.interop import read_hugging_face
from clearhead.interop.architectures import ARCHITECTURES
from clearhead.model import presets
from tests.covering import few
from tests.interop.peers import same_translation, save, translator_is_read
from tests.peers import transformers

KINDS = {
    "marian": ("Marian", "MarianMTModel"),
    "pegasus": ("Pegasus", "PegasusForConditionalGeneration"),
    "bart": ("Bart", "BartForConditionalGeneration"),
    "mbart": ("MBart", "MBartForConditionalGeneration"),
    "m2m_100": ("M2M100", "M2M100ForConditionalGeneration"),
}
TIES = [(True, True), (False, True), (False, False)]


def draw(kind, seed, ties=None, **changes):
    torch.manual_seed(seed)
    rng = random.Random(f"{kind} {seed}")
    config_class, model_class = (getattr(transformers, name) for name in (f"{KINDS[kind][0]}Config", KINDS[kind][1]))
    vocabulary, own = rng.randint(11, 40), {}
    if kind == "marian":
        shared, tied = rng.choice(TIES) if ties is None else ties
        own = {"share_encoder_decoder_embeddings": shared, "tie_word_embeddings": tied}
        own["decoder_vocab_size"] = vocabulary if shared else rng.randint(11, 40)
    padding = rng.randint(0, 3) if kind == "m2m_100" else None
    config = config_class(
        vocab_size=vocabulary,
        max_position_embeddings=rng.randint(45, 60),
        d_model=12,
        encoder_layers=rng.randint(1, 3),
        decoder_layers=rng.randint(1, 3),
        encoder_attention_heads=rng.choice([1, 2, 3]),
        decoder_attention_heads=rng.choice([1, 2, 3]),
        encoder_ffn_dim=rng.choice([7, 30]),
        decoder_ffn_dim=rng.choice([7, 30]),
        activation_function=rng.choice(["gelu", "relu", "swish", "gelu_new"]),
        scale_embedding=rng.random() < 0.5,
        pad_token_id=padding,
        bos_token_id=None,
        eos_token_id=None,
        forced_eos_token_id=None,
        decoder_start_token_id=rng.randint(4, 10),
        **own,
    )
    config.update(changes)
    peer = model_class(config)
    if kind != "m2m_100":
        peer.final_logits_bias.normal_()
    return peer


@pytest.mark.parametrize("seed", few(range(4), 2))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_it_is_read_and_goes_back(kind, seed, tmp_path):
    translator_is_read(draw(kind, seed), tmp_path)


@pytest.mark.parametrize("ties", TIES, ids=str)
def test_every_way_to_share_tables(ties, tmp_path):
    translator_is_read(draw("marian", 7, ties), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", few([*KINDS][::-1], 1))
def test_two_hundred_greedy_tokens_are_theirs(kind, tmp_path):
    same_translation(draw(kind, 9, max_position_embeddings=210), tmp_path)


def test_files_may_hold_tied_tables_again_and_lack_the_bias(tmp_path):
    save(draw("bart", 1), tmp_path)
    expected = read_hugging_face(tmp_path).model.state_dict()
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = tensors["model.shared.weight"]
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = table.clone()
    del tensors["final_logits_bias"]
    save_file(tensors, path)
    again = read_hugging_face(tmp_path).model.state_dict()
    assert not again["decoder.output.bias"].any()
    assert all(torch.equal(again[name], one) for name, one in expected.items() if name != "decoder.output.bias")


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("marian", {"normalize_before": True}, "normalize_before: True is not supported yet; expected False"),
        ("pegasus", {"normalize_before": False}, "normalize_before: False is not supported yet; expected True"),
        ("m2m_100", {"decoder_start_token_id": 2, "pad_token_id": 2}, "is the padding token, to which M2M100 gives no"),
        ("m2m_100", {"d_model": 2}, "d_model: expected an even number of 4 or more; came 2"),
        ("marian", {"normalize_embedding": True}, "normalize_embedding: True is not supported yet"),
        ("pegasus", {"tie_word_embeddings": False}, "tie_word_embeddings: False is not supported yet"),
        ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings: False is not supported yet"),
        ("bart", {"activation_function": "tanh"}, "activation_function: 'tanh' is not supported"),
        ("bart", {"vocab_size": 400_000_000}, "config.json describes a larger model than the tensors are of"),
    ],
)
def test_a_field_that_is_not_supported_is_named(kind, changes, message, tmp_path):
    save(draw(kind, 0, ties=(True, True)), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(OptionError, match=message):
        read_hugging_face(tmp_path)


def test_what_it_cannot_say_is_named():
    spec = presets.tiny(9)
    with pytest.raises(OptionError, match=r"marian cannot say spec.encoder.embedding.position.layout = 'interleaved'"):
        ARCHITECTURES["marian"].config_of(spec)
    with pytest.raises(OptionError, match=r"pegasus cannot say spec.encoder.blocks\[0\].arrangement = PostNorm"):
        ARCHITECTURES["pegasus"].config_of(spec)
    with pytest.raises(OptionError, match=r"bart cannot say this model: embedding.position is Sinusoidal"):
        ARCHITECTURES["bart"].config_of(spec)


def test_positions_that_were_trained_are_refused(tmp_path):
    """Pegasus has them in its files, and `transformers` reads them there."""
    peer = draw("pegasus", 0)
    peer.save_pretrained(tmp_path)
    read_hugging_face(tmp_path)
    with torch.no_grad():
        peer.model.encoder.embed_positions.weight[3] += 0.01
    peer.save_pretrained(tmp_path)
    with pytest.raises(OptionError, match=r"model\.encoder\.embed_positions\.weight was changed in training"):
        read_hugging_face(tmp_path)
