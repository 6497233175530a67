"""Checkpoints of shards: the files of a single process, whole or not at all. test_parallel.py compares tensors."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file

from clearhead.errors import RunError
from clearhead.training.checkpoints import UNTRAINED, Checkpoints
from clearhead.training.distributed import Processes
from clearhead.training.sharded_checkpoints import WholeSaver, fix_scalars, restore_tensors, root_of
from tests.training.together import kill_again_and_again


def test_only_the_first_process_writes_whole_weights(tmp_path):
    checkpoints = Checkpoints(tmp_path / "saved", run="a", model="b")
    checkpoints.create()
    weights, training = {"w": torch.ones(3)}, {"model.w": torch.ones(3), "nll": torch.tensor(2.0)}
    for rank in (1, 0):
        saver = WholeSaver(checkpoints, Processes(rank=rank, count=2))
        saver.save(4, weights, training, UNTRAINED)
        saver.wait()
        assert (saver.take_finished() is None) is (rank == 1)
        assert saver.take_finished() is None
        assert len(checkpoints.all()) == 1 - rank
    found = {"model.w": torch.zeros(3), "nll": torch.zeros(())}
    restore_tensors(found, checkpoints.newest())
    assert found["model.w"].tolist() == [1, 1, 1]
    assert found["nll"] == 2
    with pytest.raises(RunError, match="its tensors are not this model's"):
        restore_tensors({"model.w": torch.zeros(3)}, checkpoints.newest())


def test_a_number_alone_gets_its_shape_back(tmp_path):
    """As Distributed Checkpoint joins files: a header without padding, numbers as rows of one."""
    header = {
        "step": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "row": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "joined.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<ff", 7, 8))
    fix_scalars(path, {"step", "elsewhere"})
    found = load_file(path)
    assert found["step"].shape == ()
    assert found["step"] == 7
    assert found["row"].tolist() == [8]


def test_the_cause_of_a_failed_save_is_told():
    wrapped = RuntimeError("many lines")
    wrapped.failures = {1: (OSError("No space left on device"), None)}
    assert root_of(wrapped) == "No space left on device"
    assert root_of(ValueError()) == "ValueError"


@pytest.mark.slow
@pytest.mark.thorough
def test_killed_processes_lose_nothing(tmp_path):
    """In float64: in float32 the sums of 1, 2 and 4 processes differ in their last bits, and Adam makes more of it."""
    assert kill_again_and_again(tmp_path, 3, steps=14, seed=1) < 1e-9
