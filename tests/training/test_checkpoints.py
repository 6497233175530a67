"""Checkpoints: whole or not there at all, whatever goes wrong and wherever it stops."""

import errno
import json
import os
import shutil

import pytest
import torch
from torch import nn

from clearhead.errors import RunError
from clearhead.training import checkpoints
from clearhead.training.checkpoints import Checkpoints, copy_into, named_tensors, write_text, writing

FILES = ("model.safetensors", "training.safetensors", "state.json")
STAGES = ["model.safetensors", "training.safetensors", "state.json", "rename"]
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def kept(tmp_path):
    """Checkpoints of steps 5 and 10."""
    found = Checkpoints(tmp_path / "checkpoints")
    save(found, 5)
    save(found, 10)
    return found


def save(kept, step, **state):
    model = {"a": torch.full((2, 3), float(step)), "b": torch.arange(step)}
    kept.save(step, model, {"model.a": model["a"].t(), "nll": torch.zeros(())}, {"tokens": step, **state})


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def steps(kept):
    return [one.step for one in kept.all()]


def test_what_is_saved_is_what_is_loaded(kept):
    newest = kept.newest()
    assert newest.step == newest.state["step"] == 10
    assert newest.state["tokens"] == 10
    assert torch.equal(newest.model()["a"], torch.full((2, 3), 10.0))
    assert torch.equal(newest.model()["b"], torch.arange(10))
    assert torch.equal(newest.training()["model.a"], torch.full((3, 2), 10.0))
    assert newest.broken() is None
    assert sorted(os.listdir(newest.folder)) == sorted(FILES)


def test_there_are_none_where_nothing_was_saved(tmp_path):
    found = Checkpoints(tmp_path / "checkpoints")
    assert found.all() == []
    assert found.newest() is None


def test_the_newest_comes_first_also_past_eight_digits(kept):
    save(kept, 123_456_789)
    (kept.folder / "step-of-mine").mkdir()
    assert steps(kept) == [123_456_789, 10, 5]


def test_a_step_saved_again_is_the_newer(kept):
    save(kept, 10, tokens=77)
    assert kept.newest().state["tokens"] == 77
    assert steps(kept) == [10, 5]


def failing(monkeypatch, name, at):
    """The disk is full at the n-th call of one of the functions that write."""
    original, calls = getattr(checkpoints, name), []

    def limited(*given):
        calls.append(given)
        if len(calls) == at:
            raise FULL
        return original(*given)

    monkeypatch.setattr(checkpoints, name, limited)


@pytest.mark.parametrize(
    ("name", "at"),
    [("save_file", 1), ("save_file", 2), ("flush", 1), ("flush", 2), ("write_flushed", 1), ("flush", 4), ("flush", 5)],
)
def test_a_full_disk_is_told_and_what_was_saved_is_as_it_was(kept, monkeypatch, name, at):
    before = tree(kept.folder)
    failing(monkeypatch, name, at)
    with pytest.raises(RunError, match=r"step-00000015: could not be written .*No space left.*--resume"):
        save(kept, 15)
    after = tree(kept.folder)
    assert {path: after[path] for path in before} == before
    assert not [path for path in os.listdir(kept.folder) if path.endswith(".partial")]
    monkeypatch.undo()
    save(kept, 15)
    assert kept.newest().step == 15


def test_a_folder_that_is_read_only_is_told(kept, monkeypatch):
    """Root may write anywhere, so the folder is made to say no."""

    def refused(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(type(kept.folder), "mkdir", refused)
    with pytest.raises(RunError, match=r"step-00000015: could not be written .*Permission denied.*permissions"):
        save(kept, 15)
    assert steps(kept) == [10, 5]


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "checkpoints").write_text("mine")
    with pytest.raises(RunError, match="could not be written"):
        save(Checkpoints(tmp_path / "checkpoints"), 5)
    assert (tmp_path / "checkpoints").read_text() == "mine"


@pytest.mark.parametrize("stage", STAGES)
def test_a_crash_at_any_stage_leaves_what_was_saved_and_the_next_one_cleans_up(kept, monkeypatch, stage):
    before = tree(kept.folder)
    reached = []

    def crash(name):
        reached.append(name)
        if name == stage:
            raise KeyboardInterrupt  # nothing that saving would catch: what a kill leaves, this leaves

    monkeypatch.setattr(checkpoints, "between_writes", crash)
    with pytest.raises(KeyboardInterrupt):
        save(kept, 15)
    assert reached == STAGES[: STAGES.index(stage) + 1]
    assert (kept.folder / ".step-00000015.partial").is_dir()
    assert {path: tree(kept.folder)[path] for path in before} == before
    assert kept.newest().step == 10
    monkeypatch.undo()
    save(kept, 20)
    assert sorted(os.listdir(kept.folder)) == ["step-00000005", "step-00000010", "step-00000020"]


def cut_off(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def turned(path):
    """One bit, in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def emptied(path):
    path.write_bytes(b"")


def removed(path):
    path.unlink()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("spoil", [cut_off, turned, emptied, removed])
def test_one_that_is_not_whole_is_told_and_the_one_before_it_used(kept, name, spoil):
    spoil(kept.folder / "step-00000010" / name)
    told = []
    assert kept.newest(told.append).step == 5
    [line] = told
    assert f"step-00000010/{name}" in line
    assert line.endswith("the checkpoint is passed over")


def test_a_number_of_the_state_that_was_changed_is_seen(kept):
    path = kept.folder / "step-00000010" / "state.json"
    path.write_text(path.read_text().replace('"tokens": 10', '"tokens": 11'))
    told = []
    assert kept.newest(told.append).step == 5
    assert told == [f"{path} was changed or cut off since it was written; the checkpoint is passed over"]


@pytest.mark.parametrize("content", ["[]", "{}", '{"sha256": 3}', "3"])
def test_a_state_that_is_none(kept, content):
    (kept.folder / "step-00000010" / "state.json").write_text(content)
    told = []
    assert kept.newest(told.append).step == 5
    assert "state.json: is no state of a checkpoint" in told[0]


def test_a_state_that_names_no_checksums_is_not_whole(kept):
    (kept.folder / "step-00000010" / "state.json").write_text(json.dumps({"tokens": 10, "sha256": {}}))
    assert kept.newest().step == 5


def test_loading_a_broken_one_is_an_error(kept):
    newest = kept.newest()
    turned(newest.folder / "training.safetensors")
    with pytest.raises(RunError, match=r"training\.safetensors: its checksum is wrong"):
        newest.training()
    newest.model()
    removed(newest.folder / "model.safetensors")
    with pytest.raises(RunError, match=r"model\.safetensors: cannot be read"):
        newest.model()


def test_pruning_keeps_the_newest_and_the_best(kept):
    for step in (15, 20, 25):
        save(kept, step)
    kept.prune(2, 10, 25)
    assert steps(kept) == [25, 20, 10]
    kept.prune(1, None, 25)
    assert steps(kept) == [25]
    assert sorted(os.listdir(kept.folder)) == ["step-00000025"]


def test_pruning_never_takes_what_was_just_saved_for_a_broken_one_of_later(kept):
    """The run went on from step 5, for that of step 10 is broken: what is kept is what it has saved since."""
    turned(kept.folder / "step-00000010" / "model.safetensors")
    save(kept, 7)
    kept.prune(1, None, 7)
    assert steps(kept) == [7]


def test_pruning_takes_away_what_cannot_be_read(kept):
    emptied(kept.folder / "step-00000005" / "state.json")
    save(kept, 15)
    kept.prune(2, None, 15)
    assert sorted(os.listdir(kept.folder)) == ["step-00000010", "step-00000015"]


def test_a_checkpoint_that_cannot_be_removed_is_told(kept, monkeypatch):
    def refused(self, target):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(type(kept.folder), "rename", refused)
    with pytest.raises(RunError, match="step-00000005: could not be written"):
        kept.prune(1, None, 10)


def tied():
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    return model


def test_a_tied_table_is_kept_once(kept):
    tensors = named_tensors(tied())
    assert list(tensors) == ["a.weight", "a.bias", "b.bias"]
    kept.save(30, tensors, tensors, {})
    other = tied()
    copy_into(named_tensors(other), kept.newest().model(), "here")
    assert torch.equal(other["b"].weight, tensors["a.weight"])
    assert other["b"].weight is other["a"].weight


def test_values_are_copied_into_the_memory_that_is_there():
    there, saved = {"a": torch.zeros(2, 2)}, {"a": torch.ones(2, 2)}
    address = there["a"].data_ptr()
    copy_into(there, saved, "here")
    assert there["a"].data_ptr() == address
    assert torch.equal(there["a"], saved["a"])


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"a": torch.ones(2), "c": torch.ones(2)}, "there: its tensors are not this model's; they differ in b, c"),
        ({"a": torch.ones(2)}, "they differ in b"),
        ({"a": torch.ones(2), "b": torch.ones(3, 1)}, r"there: b is \(3, 1\) and should be \(3,\)"),
    ],
)
def test_foreign_tensors_are_refused(saved, message):
    with pytest.raises(RunError, match=message):
        copy_into({"a": torch.zeros(2), "b": torch.zeros(3)}, saved, "there")


def test_text_is_written_beside_and_renamed(tmp_path, monkeypatch):
    path = tmp_path / "it.json"
    write_text(path, "first")
    monkeypatch.setattr(checkpoints, "flush", lambda path: (_ for _ in ()).throw(FULL))
    with pytest.raises(RunError, match=r"it\.json: could not be written .*No space"), writing(path):
        write_text(path, "second")
    assert path.read_text() == "first"


def test_a_copy_of_a_run_is_as_good(kept, tmp_path):
    shutil.copytree(kept.folder, tmp_path / "elsewhere")
    assert Checkpoints(tmp_path / "elsewhere").newest().broken() is None
