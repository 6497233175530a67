"""The pooler of a bare BERT: kept in the run folder bit by bit, or refused where it does not fit."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearhead.errors import RunError
from clearhead.interop.pooler import FILE, is_pooler, read_pooler, write_pooler
from clearhead.interop.run import import_model
from tests.interop import saved_models

pytestmark = pytest.mark.usefixtures("one_thread")
POOLER = {"pooler.dense.weight": torch.randn(6, 6), "pooler.dense.bias": torch.randn(6)}


def test_it_is_read_as_it_was_written(tmp_path):
    assert read_pooler(tmp_path, 6) == {}
    write_pooler(tmp_path, POOLER)
    again = read_pooler(tmp_path, 6)
    assert all(again[name].equal(tensor) for name, tensor in POOLER.items())


@pytest.mark.parametrize(
    "tensors", [{"pooler.dense.weight": POOLER["pooler.dense.weight"]}, {**POOLER, "other": torch.zeros(6)}, {}]
)
def test_another_file_is_refused(tensors, tmp_path):
    save_file(tensors, tmp_path / FILE)
    with pytest.raises(RunError, match="is no pooler of 6 numbers"):
        read_pooler(tmp_path, 6)
    with pytest.raises(RunError, match="is no pooler of 7 numbers"):
        read_pooler(tmp_path, 7)


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / FILE).write_bytes(b"\xff" * 40)
    with pytest.raises(RunError, match="cannot be read"):
        read_pooler(tmp_path, 6)


def test_its_names():
    assert is_pooler("bert.pooler.dense.weight")
    assert is_pooler("pooler.dense.bias")
    assert not is_pooler("classifier.dense.weight")


def test_what_the_task_has_no_use_for_is_told(tmp_path):
    saved_models.save("bert", tmp_path / "source")
    path, told = tmp_path / "source" / "model.safetensors", []
    tensors = load_file(path)
    extra = {"bert.embeddings.position_ids": torch.arange(70)[None], "cls.seq_relationship.bias": torch.zeros(2)}
    pooler = {f"bert.{name}": torch.zeros([24] * one.ndim) for name, one in POOLER.items()}
    save_file({**tensors, **extra, **pooler}, path)
    import_model(tmp_path / "source", tmp_path / "run", device="cpu", log=told.append)
    [line] = told
    assert line.endswith(
        "to fill takes no bert.pooler.dense.bias, bert.pooler.dense.weight, cls.seq_relationship.bias: left out"
    )
    assert not (tmp_path / "run" / FILE).exists()
