"""The run folder: one writer at a time, and clear words for what is no run."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys

import pytest

from clearhead.errors import RunError
from clearhead.files import write_sealed
from clearhead.serve.curves import is_training
from clearhead.training import folder_lock
from clearhead.training.claiming import claim
from clearhead.training.folder import RunFolder
from clearhead.training.tasks import Translate
from tests.training import small_runs
from tests.training.small_runs import trained

HOLD = """
import fcntl, os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(handle, fcntl.LOCK_EX)
os.write(handle, str(os.getpid()).encode())
print("held", flush=True)
time.sleep(1000)
"""
TRY = """
import fcntl, os, sys
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("refused")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(small_runs.translating, tmp_path_factory)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / ".lock")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_folder_in_use_is_refused_and_the_process_named(tmp_path, holder):
    with (
        pytest.raises(RunError, match=rf"is in use by process {holder.pid}; wait for it, or choose another folder"),
        RunFolder(tmp_path).lock(),
    ):
        pass
    assert (tmp_path / ".lock").read_text() == str(holder.pid)


def test_the_lock_goes_with_its_process(tmp_path, holder):
    holder.kill()
    holder.wait()
    with RunFolder(tmp_path).lock():
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
    with RunFolder(tmp_path).lock():
        pass


def test_a_holder_that_has_not_said_its_number_yet(tmp_path, holder):
    (tmp_path / ".lock").write_text("")
    with pytest.raises(RunError, match="is in use by another process; wait"), RunFolder(tmp_path).lock():
        pass


def test_the_lock_is_given_back_after_an_error(tmp_path):
    with pytest.raises(KeyError), RunFolder(tmp_path).lock():
        raise KeyError
    with RunFolder(tmp_path).lock():
        pass


def test_what_stood_in_the_lock_is_put_back(tmp_path):
    """Whoever is refused has changed nothing, not even the number of a process that is gone."""
    for before in ("", "4711"):
        (tmp_path / ".lock").write_text(before)
        with RunFolder(tmp_path).lock():
            assert (tmp_path / ".lock").read_text() == str(os.getpid())
        assert (tmp_path / ".lock").read_text() == before


def test_a_lock_that_was_removed_while_it_was_opened_is_none(tmp_path, monkeypatch):
    """The process that made it was refused, and took it away: whoever comes now locks the file that is there."""
    folder, opened = tmp_path / "runs" / "run", []
    real = folder_lock.open_lock

    def remove_first(path):
        handle = real(path)
        opened.append(handle)
        if len(opened) == 1:
            shutil.rmtree(tmp_path / "runs")
        return handle

    monkeypatch.setattr(folder_lock, "open_lock", remove_first)
    with RunFolder(folder).lock():
        assert len(opened) == 2
        assert (folder / ".lock").read_text() == str(os.getpid())
        other = subprocess.run([sys.executable, "-c", TRY, str(folder / ".lock")], capture_output=True, check=False)
        assert other.stdout == b"refused\n"
    assert not (tmp_path / "runs").exists()


def test_a_folder_whose_lock_comes_and_goes_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "is_in_place", lambda handle, folder: False)
    with pytest.raises(RunError, match=r"run: other processes make its \.lock and remove it all the time; try again"):
        RunFolder(tmp_path / "run").lock().__enter__()


def test_a_process_that_holds_a_folder_may_lock_it_again(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.lock() as hold:
        with RunFolder(tmp_path / "." / "run").lock() as inner:
            assert inner is hold
        assert (folder.path / ".lock").read_text() == str(os.getpid())


def test_a_folder_without_a_run_keeps_no_lock_and_what_was_there_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for path in (tmp_path / "mine", tmp_path / "new" / "run"):
        with RunFolder(path).lock():
            assert (path / ".lock").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_written_to_with_a_warning_that_names_the_folder(tmp_path, monkeypatch, number):
    def no_locks(handle, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    folder, told = RunFolder(tmp_path / "run"), []
    with folder.lock(told.append) as hold:
        assert not hold.guarded
        claim(folder)
        assert is_training(folder)
    assert not is_training(folder)
    assert [line.partition(", so ")[0] for line in told] == [
        f"WARNING: {folder.path}: its disk has no file locks ({os.strerror(number)})"
    ]


def test_a_lock_that_fails_otherwise_is_told_with_its_folder(tmp_path, monkeypatch):
    def broken(handle, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(RunError, match=r"run: cannot be locked \(Input/output error\); choose another folder"):
        RunFolder(tmp_path / "run").lock().__enter__()


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_a_lock_that_is_no_regular_file_is_refused_and_nothing_behind_it_written(tmp_path, kind):
    run, diary = tmp_path / "run", tmp_path / "diary.txt"
    run.mkdir()
    diary.write_text("mine")
    if kind == "pipe":
        os.mkfifo(run / ".lock")
    elif kind == "folder":
        (run / ".lock").mkdir()
    else:
        (run / ".lock").symlink_to(diary if kind == "link" else tmp_path / "none")
    with pytest.raises(RunError, match=r"is a link|is no regular file|cannot be written to"), RunFolder(run).lock():
        pass
    assert diary.read_text() == "mine"
    assert not (tmp_path / "none").exists()


def test_a_held_folder_notices_that_it_was_moved_and_that_it_is_back(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.lock() as held:
        held.check()
        folder.path.rename(tmp_path / "went")
        with pytest.raises(RunError, match="There is no checkpoint to go on from"):
            held.check()
        folder.path.mkdir()
        with pytest.raises(RunError, match=r"was moved to .*went while the run was in training, which has stopped"):
            held.check()
        folder.path.rmdir()
        (tmp_path / "went").rename(folder.path)
        held.check()


def test_where_the_system_does_not_say_where_a_folder_went_it_is_still_noticed(tmp_path, monkeypatch):
    def none(path):
        raise FileNotFoundError

    with RunFolder(tmp_path / "run").lock() as held:
        held.saved = "step-00000004"
        (tmp_path / "run").rename(tmp_path / "went")
        monkeypatch.setattr(os, "readlink", none)
        with pytest.raises(RunError, match=r"moved, removed or replaced.*last whole checkpoint is step-00000004\."):
            held.check()


def test_a_run_json_that_holds_no_id_is_told(tmp_path):
    for text in ("{}", '{"run": 3}', '{"format": 1}'):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(RunError, match=r"run\.json"):
            RunFolder(tmp_path).id()


def test_a_checkpoints_json_that_names_no_folder_is_told(tmp_path):
    write_sealed(tmp_path / "run.json", {"run": "0" * 16})
    for place in ("relative", 3, None):
        write_sealed(tmp_path / "checkpoints.json", {"run": "0" * 16, "folder": place})
        with pytest.raises(RunError, match=r"checkpoints\.json: says no folder"):
            RunFolder(tmp_path).checkpoints.folders()


def test_a_folder_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match=r"cannot be written to .*; choose another folder"), RunFolder(path).lock():
            pass

    def refused(*given):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(RunError, match=r"cannot be written to \(Permission denied\)"), RunFolder(tmp_path).lock():
        pass


def test_what_was_described_is_what_is_found(run):
    folder = run.folder
    assert folder.exists()
    assert folder.spec() == folder.recipe().model == run.model.spec
    task = folder.task()
    assert isinstance(task, Translate)
    assert task.context == small_runs.CONTEXT
    assert task.tokenizers["source"] is task.tokenizers["target"]
    assert folder.read_description()["task"] == "translate"


def test_a_folder_that_is_no_run(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path, tmp_path / "none", tmp_path / "file"):
        assert not RunFolder(path).exists()
        with pytest.raises(RunError, match=r"is not a run folder: it has no recipe\.json"):
            RunFolder(path).recipe()


def test_a_run_whose_model_is_not_described_yet(tmp_path):
    with pytest.raises(RunError, match="there is no model yet; train it, or go on with --resume"):
        RunFolder(tmp_path).spec()
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(RunError, match=r"model\.json: is not JSON as Clearhead writes it"):
        RunFolder(tmp_path).task()


def test_paths(tmp_path):
    folder = RunFolder(tmp_path)
    assert (folder.metrics.name, folder.curves.name, folder.evaluation.name) == (
        "metrics.jsonl",
        "curves.svg",
        "evaluation.json",
    )
    assert folder.checkpoints.folder == tmp_path / "checkpoints"


def test_the_description_is_plain_json(run):
    told = json.loads(run.folder.model_file.read_text(encoding="utf-8"))
    assert told["spec"]["is"] == "EncoderDecoderSpec"
    assert told["tokenizers"] == {"source": "tokenizer.json", "target": "tokenizer.json"}
    assert (run.folder.path / "tokenizer.json").exists()
