"""The container: tensors are gguf's own bit by bit, and no header is believed beyond what the file holds."""

import json
import random
import struct

import gguf
import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.interop.gguf_file import GGUF, find_pre_tokenizer, tokenizer_json, tokenizer_metadata
from clearhead.interop.run import import_model
from clearhead.text.tokenizer import Tokenizer
from tests.interop.saved_models import Pair, draw_texts

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")


def write_file(path, kinds=("F32",)):
    """Write a small file with a tensor of each kind, of random bytes where gguf cannot quantise to it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_string("general.name", "größer")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "▁c"])
    writer.add_array("tokenizer.ggml.scores", [0.0, -1.0, 2.5])
    draw = np.random.default_rng(0)
    for name in kinds:
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if name == "F32":
            data = draw.normal(size=(3, 256)).astype(np.float32)
        else:
            data = draw.integers(0, 60, (3, 256 // block * size), dtype=np.uint8)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_tensors_and_values_are_gguf_s_own(tmp_path):
    path = write_file(tmp_path / "model.gguf", KINDS)
    reader = gguf.GGUFReader(path)
    with GGUF(path) as file:
        assert file.metadata["general.name"] == "größer"
        assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b", "▁c"]
        assert file.metadata["tokenizer.ggml.scores"] == [0.0, -1.0, 2.5]
        assert list(file) == list(KINDS)
        for tensor in reader.tensors:
            theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert file[tensor.name].numpy().tobytes() == np.asarray(theirs, np.float32).tobytes(), tensor.name


def open_all(path):
    """Read everything there is; what is wrong must be an OptionError."""
    with GGUF(path) as file:
        for name in file:
            file[name]


def fuzz(path, count, seed):
    whole, draw = path.read_bytes(), random.Random(seed)
    refused = 0
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(min(len(data), 700))
            kind = draw.randrange(4)
            if kind == 0:
                data[place] = draw.randrange(256)
            elif kind == 1:
                data[place : place + 8] = struct.pack("<Q", draw.choice([0, 1, 2**31, 2**40, 2**63, 2**64 - 1]))
            elif kind == 2:
                del data[place : place + draw.randint(1, 9)]
            else:
                data = data[: draw.randrange(len(data) + 1)]
            if not data:
                break
        path.with_name("bad.gguf").write_bytes(data)
        try:
            open_all(path.with_name("bad.gguf"))
        except OptionError as error:
            assert "bad.gguf" in str(error)  # noqa: PT017 - most, not all, must fail
            refused += 1
    return refused


@pytest.mark.slow
def test_damaged_headers_are_refused(tmp_path):
    assert fuzz(write_file(tmp_path / "model.gguf", ("F32", "Q8_0")), 400, seed=0) > 250


@pytest.mark.slow
@pytest.mark.thorough
def test_thousands_of_damaged_headers_are_refused(tmp_path):
    assert fuzz(write_file(tmp_path / "model.gguf", KINDS), 8_000, seed=1) > 5_000


def header(*parts, n_tensors=0, n_values=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_values) + b"".join(parts)


def text(value):
    return struct.pack("<Q", len(value)) + value


def tensor(name=b"x", shape=(4,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


VALUE = text(b"key") + struct.pack("<I", 8)
LIST = text(b"key") + struct.pack("<II", 9, 4)
HOSTILE = {
    "another file": (b"PK\x03\x04 and so on", "does not begin with GGUF"),
    "empty": (b"", "does not begin with GGUF"),
    "version": (header(version=9), "version 9 is not supported"),
    "tensors": (header(n_tensors=2**60), "have no room"),
    "values": (header(n_values=2**60), "have no room"),
    "text": (header(VALUE, struct.pack("<Q", 2**62), b"x" * 40, n_values=1), "should have"),
    "list": (header(LIST, struct.pack("<Q", 2**61), b"x" * 40, n_values=1), "should have"),
    "texts": (header(text(b"k"), struct.pack("<IIQ", 9, 8, 2**60), b"x" * 40, n_values=1), "no room"),
    "lists in lists": (header(text(b"k"), struct.pack("<IIQ", 9, 9, 1), b"x" * 40, n_values=1), "not supported"),
    "kind of value": (header(text(b"k"), struct.pack("<I", 77), b"x" * 40, n_values=1), "that there is not"),
    "twice": (header(VALUE, text(b"a"), VALUE, text(b"a"), b"x" * 40, n_values=2), "twice"),
    "huge tensor": (header(tensor(shape=(2**40, 2**40)), b"\0" * 64, n_tensors=1), "do not lie"),
    "no numbers": (header(tensor(shape=(0,)), b"\0" * 64, n_tensors=1), "no shape"),
    "kind": (header(tensor(kind=99), b"\0" * 64, n_tensors=1), "does not know"),
    "far": (header(tensor(offset=2**40), b"\0" * 64, n_tensors=1), "do not lie"),
    "unaligned": (header(tensor(offset=3), b"\0" * 64, n_tensors=1), "do not lie"),
    "dimensions": (header(tensor(shape=(1,) * 9), b"\0" * 64, n_tensors=1), "9 dimensions"),
    "shared bytes": (header(*(tensor(b"%d" % i, (16,)) for i in range(9)), b"\0" * 128, n_tensors=9), "in all"),
    "not UTF-8": (header(text(b"\xff\xfe"), b"\0" * 40, n_values=1), "not UTF-8"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_a_header_lies_about_is_named(kind, tmp_path):
    data, said = HOSTILE[kind]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(OptionError, match=said):
        open_all(path)


def test_a_folder_and_nothing_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(OptionError, match="cannot be read"):
            GGUF(path)


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
