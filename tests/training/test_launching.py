"""What is said of processes that failed, and of one that was killed."""

import signal

import pytest

from clearhead.cli.train import without_option
from clearhead.training.launching import ProcessFailed, ProcessKilled, explain_failure


def test_a_killed_process_is_told_and_how_to_go_on():
    with pytest.raises(ProcessKilled, match=r"process 1 was killed \(SIGKILL\).*clearhead train runs/x --resume"):
        raise explain_failure({0: -signal.SIGTERM, 1: -signal.SIGKILL}, "runs/x")


@pytest.mark.parametrize(("codes", "code"), [({0: 2, 1: -15}, 2), ({1: 1}, 1), ({0: -15}, 1), ({0: 75, 1: -9}, 75)])
def test_a_failed_process_has_spoken_and_only_its_code_is_kept(codes, code):
    found = explain_failure(codes, "runs/x")
    assert isinstance(found, ProcessFailed)
    assert found.exit_code == code


def test_the_processes_get_the_command_without_their_number():
    words = ["train", "x", "--processes=3", "--steps", "5", "--processes", "2"]
    assert without_option(words, "--processes") == ["train", "x", "--steps", "5"]
