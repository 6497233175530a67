"""A run begins on a full disk, or beside files whose names look like ours: what `make attack` found there."""

import errno
import os

import pytest

from clearhead.errors import DataError, OptionError, RunError
from clearhead.training.claiming import claim, leave_nothing
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

    with pytest.raises(error), leave_nothing(folder), folder.lock():
        refuse()
    assert folder.recipe_file.exists() == (trained or error is RunError)
    assert (tmp_path / "runs").exists() == folder.recipe_file.exists()
