"""Every reader of a stranger's file is linear: four times the file is four times the calls, and what goes through the
whole file in one call is called no more often.
"""

import json
import sys
from collections import Counter

import gguf
import numpy as np
import pytest
import tokenizers as library
import torch
from safetensors.torch import save_file

from clearhead.files import parse_json
from clearhead.interop.gguf_file import GGUF, LONGEST, tokenizer_json
from clearhead.interop.tables import Config
from clearhead.interop.tensor_files import Tensors
from clearhead.interop.tokenizer import with_special_tokens
from clearhead.text.lines import Problems
from clearhead.text.sources import Documents, Table
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.vectors import read_vectors

pytestmark = pytest.mark.plain
THROUGH_ALL = ("keys", "add_tokens", "add_special_tokens", "get_vocab", "get_vocab_size", "get_added_tokens_decoder")


def count_calls(work):
    """Return how often each function was called, of C and Rust too."""
    calls = Counter()

    def hear(frame, event, what):
        if event == "call":
            calls[frame.f_code.co_name] += 1
        elif event == "c_call":
            calls[what.__name__] += 1

    sys.setprofile(hear)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def index_of_shards(folder, n):
    tensors = {f"t{i}": torch.zeros(1) for i in range(n)}
    for shard in "ab":
        save_file(tensors, folder / f"{shard}.safetensors")
    file_of = {name: f"{'ab'[i % 2]}.safetensors" for i, name in enumerate(tensors)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))

    def read():
        with Tensors(folder) as found:
            assert sum(found.shape(name)[0] for name in found) == n

    return read


def one_file(folder, n):
    save_file({f"t{i}": torch.zeros(1) for i in range(n)}, folder / "model.safetensors")

    def read():
        with Tensors(folder) as found:
            assert sum(len(found[name]) for name in found) == n

    return read


def added_tokens(folder, n):
    listed = {str(i): {"content": f"<x{i}>", "special": i % 2 == 0} for i in range(n)}
    settings = Config({"added_tokens_decoder": listed}, "tokenizer_config.json")
    tokenizer = library.Tokenizer.from_str(Tokenizer.train(["the cat"], "char").to_json())
    return lambda: with_special_tokens(tokenizer, settings, {}, 10**6)


def gguf_file(folder, n):
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(n)])
    for i in range(n):
        writer.add_tensor(f"t{i}", np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    def read():
        with GGUF(folder / "m.gguf") as found:
            assert sum(len(found[name]) for name in found) == 8 * n

    return read


def sentencepiece(folder, n):
    tokens = [f"t{i:03}" for i in range(n)]
    named = {"model": "llama", "tokens": tokens, "scores": [0.0] * n}
    metadata = {f"tokenizer.ggml.{name}": value for name, value in named.items()}
    return lambda: tokenizer_json(metadata, "m.gguf")


def json_values(folder, n):
    text = json.dumps({"names": {str(i): [i] for i in range(n)}})
    return lambda: parse_json(text)


def lines(folder, n):
    (folder / "t.txt").write_text("the cat eats\n" * n)
    source = Documents(paths=(str(folder / "t.txt"),), unit="line")
    return lambda: [*source.records(Problems())]


def unclosed_quotes(folder, n):
    (folder / "t.csv").write_text("text\n" + '"the cat" eats\n' * n)
    source = Table(paths=(str(folder / "t.csv"),), columns=("text",), fields=("text",))
    return lambda: [*source.records(Problems(skip=True))]


def vectors(folder, n):
    (folder / "v.txt").write_text("".join(f"w{i} 1 2\n" for i in range(n)))
    return lambda: read_vectors(str(folder / "v.txt"), [f"w{i}" for i in range(n)])


READERS = (
    *(index_of_shards, one_file, added_tokens, gguf_file, sentencepiece),
    *(json_values, lines, unclosed_quotes, vectors),
)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_four_times_the_file_is_four_times_the_work(tmp_path, reader):
    found = []
    for n in (50, 200):
        folder = tmp_path / str(n)
        folder.mkdir()
        found.append(count_calls(reader(folder, n)))
    small, large = found
    assert large.total() < 4.5 * small.total() + 100
    assert [large[name] for name in THROUGH_ALL] == [small[name] for name in THROUGH_ALL]


def test_a_token_that_is_too_long_to_be_cut_everywhere_is_refused():
    metadata = {"model": "llama", "tokens": ["a" * (LONGEST + 1), "b"], "scores": [0.0, 0.0]}
    with pytest.raises(ValueError, match=r"m\.gguf: a token has 513 characters"):
        tokenizer_json({f"tokenizer.ggml.{name}": value for name, value in metadata.items()}, "m.gguf")
