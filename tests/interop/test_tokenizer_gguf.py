"""A GGUF file is imported as a run: the same weights, ids and text as the run it was written from."""

import pytest
import torch

import clearhead as ch
from clearhead.interop.run import import_model
from tests.interop.saved_models import Pair, draw_texts

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
