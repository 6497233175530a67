"""Tokenisers in GGUF: byte-level BPE and SentencePiece's BPE as a tokenizer.json, and back."""

import json

import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.interop.gguf_tokenizer import find_pre_tokenizer, tokenizer_json, tokenizer_metadata
from clearhead.interop.run import import_model
from clearhead.text.tokenizer import Tokenizer
from tests.interop.saved_models import Pair, draw_texts

TEXTS = ["the cat eats the plum", "don't 123 größer\n\n  x"] * 4
SPM = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "ab", "▁ab", "<0x0A>"],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -9.0, -8.0, -8.0, -2.0, -1.0, -3.0, 0.0],
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1, 1, 6],
}


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_a_byte_level_tokeniser_comes_back(kind):
    ours = Tokenizer.train(TEXTS, kind=kind)
    whole = json.loads(ours.to_json())
    names = [token for token, _ in sorted(whole["model"]["vocab"].items(), key=lambda pair: pair[1])]
    again = Tokenizer(tokenizer_json(tokenizer_metadata(whole, names), "x.gguf"))
    for text in (*TEXTS, "never seen: 🙂 €"):
        assert again.encode(text) == ours.encode(text)


def test_sentencepiece_merges_the_best_score_first():
    ids = Tokenizer(tokenizer_json(SPM, "x.gguf")).encode("ab a\n")
    assert [SPM["tokenizer.ggml.tokens"][i] for i in ids] == ["▁ab", "▁a", "<0x0A>"]


@pytest.mark.parametrize("kind", ["metaspace", "unigram", "word", "char"])
def test_what_llama_cpp_would_cut_in_other_ways_is_refused(kind):
    with pytest.raises(OptionError, match=r"llama\.cpp"):
        find_pre_tokenizer(json.loads(Tokenizer.train(TEXTS, kind=kind).to_json()))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.tokens": "abc"}, "tokens: expected a list"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "different texts"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type"),
        ({"tokenizer.ggml.scores": None}, "scores"),
        ({"tokenizer.ggml.model": "bert"}, "'bert' cannot be read"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "chameleon"}, "'chameleon' cannot be read"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b c"]}, "two tokens"),
    ],
)
def test_what_it_lies_about_is_named(changes, said):
    with pytest.raises(OptionError, match=said):
        tokenizer_json({**SPM, **changes}, "x.gguf")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_a_gguf_file_is_imported(tmp_path):
    pair = Pair("gpt2", tmp_path / "gpt2")
    ch.export(pair.run, to="gguf", path=tmp_path / "gguf")
    [file] = (tmp_path / "gguf").glob("*.gguf")
    run = import_model(file, tmp_path / "again", device="cpu")
    assert run.folder.origin().file_format == "GGUF"
    for name, one in run.model.named_parameters():
        assert torch.equal(one, pair.run.model.get_parameter(name))
    assert run.task.framing == pair.run.task.framing
    for text in draw_texts(4, 40, ["<|endoftext|>"]):
        ids = run.tokenizer.encode(text)
        assert ids == pair.tokenizer(text)["input_ids"]
        assert run.tokenizer.decode(ids) == pair.run.tokenizer.decode(ids)
    written = run.generate(["the cat"], max_new=10, method=ch.Greedy())
    assert written == pair.run.generate(["the cat"], max_new=10, method=ch.Greedy())
