"""A run begins on a full disk, or beside files whose names look like ours; outputs never go over a file of a run."""

import errno
import os
from pathlib import Path

import pytest

from clearhead.errors import DataError, OptionError, RunError
from clearhead.training import claiming, folder_lock
from clearhead.training.claiming import check_output, claim, keep_elsewhere, leave_nothing, remove_litter
from clearhead.training.folder import RunFolder


def test_a_disk_too_full_for_the_lock_is_no_reason_to_refuse(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with RunFolder(tmp_path / "run").lock():
        assert (tmp_path / "run" / ".lock").exists()


@pytest.mark.parametrize("name", [".model.json.partial", ".recipe.json.0123abcd.partial", "curves.svg.partial"])
def test_a_file_that_looks_like_litter_is_left_in_a_folder_that_is_not_ours_yet(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with RunFolder(tmp_path).lock():
        claim(RunFolder(tmp_path))
        assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("error", [OptionError, DataError, RunError])
@pytest.mark.parametrize("trained", [False, True])
def test_what_is_refused_after_the_recipe_was_written_leaves_nothing_unless_a_step_was_taken(tmp_path, error, trained):
    folder = RunFolder(tmp_path / "runs" / "run")

    def refuse():
        claim(folder)
        folder.checkpoints.create()
        folder.recipe_file.write_text("{}")
        if trained:
            folder.metrics.write_text("")
        raise error("vectors: they are not")

    with pytest.raises(error), folder.lock() as hold, leave_nothing(hold):
        refuse()
    assert folder.recipe_file.exists() == (trained or error is RunError)
    assert (tmp_path / "runs").exists() == folder.recipe_file.exists()


def refuse(folder, hold, *, elsewhere=None):
    """Claim a folder, and find that the text is no text."""
    claim(folder)
    if elsewhere is not None:
        keep_elsewhere(folder, hold, elsewhere)
        assert (elsewhere / "run.json").exists()
    raise DataError("text: is empty")


def test_a_refused_training_leaves_nothing_where_its_checkpoints_were_to_be(tmp_path):
    """Or the same command, mended, would be refused: its new run is not the one that the folder was marked for."""
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(DataError), folder.lock() as hold, leave_nothing(hold):
        refuse(folder, hold, elsewhere=tmp_path / "disk" / "checkpoints")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_checkpoints_is_locked_before_it_is_marked(tmp_path, monkeypatch):
    monkeypatch.setattr(
        folder_lock, "try_lock", lambda handle: "elsewhere" not in os.readlink(f"/proc/self/fd/{handle}")
    )
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RunError, match="elsewhere: is in use"), folder.lock() as hold, leave_nothing(hold):
        refuse(folder, hold, elsewhere=tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere" / "run.json").exists()


def test_a_folder_that_was_replaced_meanwhile_is_not_cleared(tmp_path):
    folder = RunFolder(tmp_path / "run")

    def replace_folder():
        claim(folder)
        folder.path.rename(tmp_path / "moved")
        folder.path.mkdir()
        folder.model_file.write_text("another's")
        raise DataError("text: is empty")

    with pytest.raises(DataError), folder.lock() as hold, leave_nothing(hold):
        replace_folder()
    assert folder.model_file.read_text() == "another's"
    assert (tmp_path / "moved" / "run.json").exists()


def test_the_first_error_is_told_where_removing_fails_too(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")

    def fail(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(claiming, "remove_path", fail)
    with pytest.raises(DataError, match="is empty"), folder.lock() as hold, leave_nothing(hold):
        refuse(folder, hold)


def test_what_killed_processes_left_is_removed_by_the_next_owner_and_other_files_stay(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.lock():
        claim(folder)
        folder.checkpoints.create()
    for name in ("data", "film"):
        (tmp_path / name).mkdir()
    litter = [
        *(
            ".model.json.0123abcd.partial",
            ".baseline.json.0123abcd.partial",
            ".tmpA1b2C3",
            "data/.stdin.0123abcd.partial",
        ),
        *("film/.step-00000004.safetensors.0123abcd.partial", "film/.tmpA1b2C3"),
        *("checkpoints/.run.json.0123abcd.partial", "checkpoints/.step-00000004.partial"),
    ]
    kept = ["notes.partial", ".notes.partial", "data/stdin", "film/notes.txt", "checkpoints/.notes.partial"]
    for name in (*litter, *kept):
        (tmp_path / name).write_text("")
    (tmp_path / "data" / ".0123456789ab.0123abcd.partial").mkdir()
    with folder.lock():
        remove_litter(folder)
        folder.film.cut(0)
        folder.checkpoints.clean()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*kept, ".lock", "run.json", "checkpoints/run.json"}
    assert list((tmp_path / "data").iterdir()) == [tmp_path / "data" / "stdin"]


@pytest.fixture
def home(tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-00000001").mkdir(parents=True)
    for name in ("recipe.json", "model.json", "tokenizer.source.json", "metrics.jsonl"):
        (tmp_path / "run" / name).write_text("{}")
    (tmp_path / "text.de").write_text("eins\n")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        *("recipe.json", "run.json", "tokenizer.source.json", "metrics.1.jsonl", "curves.svg"),
        *("checkpoints/new.txt", "checkpoints/step-00000001/model.safetensors"),
    ],
)
def test_a_file_of_a_run_is_never_written_over(home, name):
    with pytest.raises(OptionError, match=r"--html: .* is a file of the run run; name another file"):
        check_output(home / "run" / name, option="--html")


def test_an_input_is_never_written_over_by_any_of_its_names(home, monkeypatch):
    (home / "link").symlink_to(home / "text.de")
    (home / "hard").hardlink_to(home / "text.de")
    monkeypatch.chdir(home)
    for name in ("text.de", "./run/../text.de", "link", "hard", str(home / "text.de")):
        with pytest.raises(OptionError, match="which is read; name another file"):
            check_output(Path(name), option="--output", inputs=[home / "text.de"])


def test_a_link_into_a_run_is_seen_through(home):
    (home / "page.html").symlink_to(home / "run" / "recipe.json")
    with pytest.raises(OptionError, match="is a file of the run"):
        check_output(home / "page.html", option="--html")


def test_anything_else_may_be_written(home):
    for name in ("run/attention.html", "text.en", "other.json", "recipe.json"):
        assert check_output(home / name, option="--html", inputs=[home / "text.de"]) == home / name


def test_a_folder_or_a_missing_one_is_told(home):
    with pytest.raises(OptionError, match="it is a folder"):
        check_output(home / "run", option="--html")
    with pytest.raises(OptionError, match="there is no folder"):
        check_output(home / "none" / "a", option="--html")
