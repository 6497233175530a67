"""A run begins on a full disk, or beside files whose names look like ours: what `make attack` found there."""

import errno
import os

import pytest

from clearhead.training.claiming import claim
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
