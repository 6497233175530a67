"""A run folder from a stranger: what the explorer asks of its lock and its log never hangs."""

import os

import pytest

from clearhead.errors import RunError
from clearhead.serve.curves import Curves, is_training
from clearhead.training.folder import RunFolder


@pytest.mark.parametrize("lock", ["fifo", "9" * 31, "-1", "٣", "", "link"])
def test_no_lock_makes_it_wait_or_fail(tmp_path, lock):
    if lock == "fifo":
        os.mkfifo(tmp_path / ".lock")
    elif lock == "link":
        (tmp_path / ".lock").symlink_to("/dev/zero")
    else:
        (tmp_path / ".lock").write_text(lock, encoding="utf-8")
    assert not is_training(RunFolder(tmp_path))


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(RunError, match="no regular file"):
        Curves(tmp_path / "metrics.jsonl").all()
