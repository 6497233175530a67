"""Checkpoints: whole or not there at all, whatever goes wrong and wherever it stops."""

import errno
import json
import os
import shutil

import pytest
import torch
from torch import nn

from clearhead.errors import RunError
from clearhead.files import sha256_of_file, write_sealed
from clearhead.training import checkpoints
from clearhead.training.checkpoints import Checkpoints, copy_into, named_tensors

FILES = ("model.safetensors", "training.safetensors", "state.json")
STAGES = ["model.safetensors", "training.safetensors", "state.json", "rename"]
FULL = OSError(errno.ENOSPC, "No space left on device")
RUN = "0123456789abcdef"
STATE = {
    "seconds": 1.0,
    "tokens": 3,
    "places": 2,
    "metrics_size": 0,
    "best": {"step": 5, "score": 0.5},
    "since_best": 0,
    "finished": False,
    "step_tokens": 0,
    "pacing": {},
}


@pytest.fixture
def kept(tmp_path):
    """Checkpoints of steps 5 and 10."""
    found = Checkpoints(tmp_path / "checkpoints", run=RUN, model="m")
    found.create()
    save(found, 5)
    save(found, 10)
    return found


def save(kept, step, **state):
    model = {"a": torch.full((2, 3), float(step)), "b": torch.arange(min(step, 10))}
    kept.save(step, model, {"model.a": model["a"].t(), "nll": torch.zeros(())}, {**STATE, "tokens": step, **state})


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
    assert newest.find_damage() is None
    assert sorted(os.listdir(newest.folder)) == sorted(FILES)


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

    def limited(*given, **named):
        calls.append(given)
        if len(calls) == at:
            raise FULL
        return original(*given, **named)

    monkeypatch.setattr(checkpoints, name, limited)


@pytest.mark.parametrize(
    ("name", "at"),
    [("save_file", 1), ("save_file", 2), ("flush", 1), ("flush", 2), ("write_sealed", 1), ("flush", 3), ("flush", 4)],
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
    found = Checkpoints(tmp_path / "checkpoints", run=RUN)
    with pytest.raises(RunError, match="could not be written"):
        found.create()
    with pytest.raises(RunError, match="cannot be reached"):
        save(found, 5)
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
    assert sorted(os.listdir(kept.folder)) == ["run.json", "step-00000005", "step-00000010", "step-00000020"]


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
    assert told[0].startswith(f"{path}: was changed since it was written: its checksum is wrong")


@pytest.mark.parametrize("content", ["{}", '{"sha256": 3}', '{"format": "2"}'])
def test_a_state_that_is_none(kept, content):
    (kept.folder / "step-00000010" / "state.json").write_text(content)
    told = []
    assert kept.newest(told.append).step == 5
    assert "state.json: has no format version" in told[0]


def test_a_state_that_names_no_checksums_is_not_whole(kept):
    path = kept.folder / "step-00000010" / "state.json"
    write_sealed(path, {**json.loads(path.read_text()), "files": {}})
    assert kept.newest().step == 5


@pytest.mark.parametrize("field", [*STATE, "step"])
@pytest.mark.parametrize("value", ["missing", "many", None, [1], {}, {"spent": []}])
def test_a_state_with_a_field_that_is_missing_or_of_another_type_names_it(kept, field, value):
    path = kept.folder / "step-00000010" / "state.json"
    state = {**json.loads(path.read_text()), field: value}
    if value == "missing":
        del state[field]
    write_sealed(path, state)
    if (field, value) in (("best", None), ("pacing", {})):
        assert kept.newest().state[field] == value
        return
    told = []
    assert kept.newest(told.append).step == 5
    wrong = f"the field {field!r} is missing" if value == "missing" else f"{field}: "
    assert told[0].startswith(f"{path}: {wrong}")


def test_a_folder_that_was_renamed_to_another_step_is_told(kept):
    (kept.folder / "step-00000010").rename(kept.folder / "step-00000020")
    told = []
    assert kept.newest(told.append).step == 5
    assert "step-00000020: holds step 10, so the folder was renamed" in told[0]


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
    assert sorted(os.listdir(kept.folder)) == ["run.json", "step-00000025"]


def test_pruning_never_takes_what_was_just_saved_for_a_broken_one_of_later(kept):
    """The run went on from step 5, for that of step 10 is broken: what is kept is what it has saved since."""
    turned(kept.folder / "step-00000010" / "model.safetensors")
    save(kept, 7)
    kept.prune(1, None, 7)
    assert steps(kept) == [7]


def test_pruning_leaves_what_this_run_did_not_save_or_cannot_be_known_by(kept, tmp_path):
    other = Checkpoints(tmp_path / "other", run="f" * 16)
    other.create()
    for step in (6, 7):
        save(other, step)
    shutil.copytree(other.folder / "step-00000006", kept.folder / "step-00000006")
    (kept.folder / "step-00000007").symlink_to(other.folder / "step-00000007")
    emptied(kept.folder / "step-00000005" / "state.json")
    (kept.folder / "step-00000003").mkdir()
    (kept.folder / "step-00000003" / "thesis.txt").write_text("mine")
    save(kept, 15)
    before = {path: data for path, data in tree(kept.folder).items() if not path.startswith("step-00000010")}
    kept.prune(1, None, 15)
    assert tree(kept.folder) == before
    assert steps(kept) == [15]
    assert steps(other) == [7, 6]


def test_pruning_takes_away_a_damaged_one_of_this_run(kept):
    path = kept.folder / "step-00000005" / "state.json"
    path.write_text(path.read_text().replace('"tokens": 5', '"tokens": 6'))
    save(kept, 15)
    kept.prune(2, None, 15)
    assert sorted(os.listdir(kept.folder)) == ["run.json", "step-00000010", "step-00000015"]


def test_what_has_the_name_of_a_checkpoint_and_is_none_is_set_aside(kept):
    path = kept.folder / "step-00000015"
    for text in ("mine", "mine too"):
        path.mkdir()
        (path / "thesis.txt").write_text(text)
        save(kept, 15)
        shutil.rmtree(path)
    assert (kept.folder / "step-00000015.1" / "thesis.txt").read_text() == "mine"
    assert (kept.folder / "step-00000015.2" / "thesis.txt").read_text() == "mine too"


@pytest.mark.parametrize("change", ["another run", "another model", "a link"])
def test_a_checkpoint_that_is_not_of_this_run_is_refused_by_name(kept, tmp_path, change):
    other = Checkpoints(tmp_path / "other", run="f" * 16 if change == "another run" else RUN, model="n")
    other.create()
    save(other, 15)
    copied = kept.folder / "step-00000015"
    if change == "a link":
        copied.symlink_to(other.folder / "step-00000015")
    else:
        shutil.copytree(other.folder / "step-00000015", copied)
    said = {
        "another run": "is a checkpoint of another run",
        "another model": "was saved with another model.json",
        "a link": "is a link",
    }[change]
    told = []
    assert kept.newest(told.append).step == 10
    assert said in told[0]
    assert told[0].endswith("the checkpoint is passed over")
    with pytest.raises(RunError, match=said):
        kept.at(15)
    assert kept.at(10).step == 10
    assert kept.at(11) is None


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_not_used_though_their_checksum_is_right(kept, name, value):
    wrong = {"model.a": torch.tensor([1.0, value])}
    right = {"model.a": torch.ones(2)}
    pair = (wrong, right) if name == "model.safetensors" else (right, wrong)
    kept.save(15, *pair, STATE)
    assert kept.at(15).sums[name] == sha256_of_file(kept.folder / "step-00000015" / name)
    told = []
    assert kept.newest(told.append).step == 10
    assert f"{name}: model.a has values that are no numbers" in told[0]
    with pytest.raises(RunError, match="no numbers"):
        dict(kept.at(15).read_tensors(name))


def test_the_optimisers_own_numbers_may_be_anything(kept):
    kept.save(15, {"a": torch.ones(2)}, {"optimizer.a.exp_avg": torch.tensor([float("inf")])}, STATE)
    assert kept.newest().step == 15


@pytest.mark.parametrize("how", ["gone", "empty", "dangling", "another run's", "a loop"])
def test_a_folder_that_cannot_be_reached_is_an_error_and_not_an_empty_list(kept, how):
    shutil.move(kept.folder, kept.folder.with_name("moved"))
    if how == "empty":
        kept.folder.mkdir()
    elif how == "dangling":
        kept.folder.symlink_to(kept.folder.with_name("unmounted"))
    elif how == "a loop":
        kept.folder.symlink_to(kept.folder)
    elif how == "another run's":
        Checkpoints(kept.folder, run="f" * 16).create()
    for act in (kept.folders, kept.all, kept.newest, lambda: kept.at(5), lambda: save(kept, 15), kept.check_marker):
        with pytest.raises(RunError, match="cannot be re"):
            act()


def test_a_folder_that_may_not_be_read_is_an_error_and_not_an_empty_list(kept, monkeypatch):
    """Root may read anything, so the system is made to say no."""

    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises(RunError, match=r"cannot be reached there \(Permission denied\)"):
        kept.all()


def test_a_folder_that_holds_something_else_is_not_made_the_runs(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match=r"holds thesis\.txt, and is not the folder of this run's checkpoints"):
        Checkpoints(tmp_path, run=RUN).create()
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_link_is_not_made_the_runs_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match=f"is a link.*--checkpoints {tmp_path / 'mine'}"):
        Checkpoints(tmp_path / "checkpoints", run=RUN).create()
    assert os.listdir(tmp_path / "mine") == []


def test_saving_never_makes_the_folder_anew(kept):
    shutil.rmtree(kept.folder)
    with pytest.raises(RunError, match="cannot be reached there"):
        save(kept, 15)
    assert not kept.folder.exists()


def test_litter_is_removed_and_nothing_else(kept):
    (kept.folder / ".step-00000015.partial").mkdir()
    (kept.folder / ".step-00000016.old.partial").symlink_to(kept.folder)
    (kept.folder / ".step-mine.partial").mkdir()
    (kept.folder / "thesis.partial").write_text("mine")
    kept.clean()
    assert sorted(os.listdir(kept.folder)) == [
        ".step-mine.partial",
        "run.json",
        "step-00000005",
        "step-00000010",
        "thesis.partial",
    ]


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
    kept.save(30, tensors, tensors, STATE)
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


def test_a_copy_of_a_run_is_as_good(kept, tmp_path):
    shutil.copytree(kept.folder, tmp_path / "elsewhere")
    assert Checkpoints(tmp_path / "elsewhere", run=RUN, model="m").newest().find_damage() is None
