"""How processes are started, what they agree on, and which of their errors is told."""

import signal
import types

import pytest
import torch
import torch.distributed as dist

from clearhead.cli.train import without_option
from clearhead.errors import OptionError, RunError
from clearhead.training.distributed import (
    EndedElsewhere,
    Processes,
    ProcessFailed,
    ProcessKilled,
    explain_failure,
    is_launched,
    joined,
)


def two(store):
    """Two processes that fail, each with its own eyes on the same store."""
    control = types.SimpleNamespace()
    return [Processes(rank=rank, count=2, store=store, control=control) for rank in range(2)]


def test_one_process_alone_agrees_with_itself():
    alone = Processes()
    assert alone.is_first
    assert not alone.together
    assert alone.send({"a": [1.5, None]}) == {"a": [1.5, None]}
    assert alone.highest(3.0, -1.0) == [3, -1]
    assert alone.moment(15)[1] == 15
    tensor = torch.ones(2)
    alone.add_up(tensor)
    assert tensor.tolist() == [1, 1]
    assert not is_launched()
    with joined() as found:
        assert found.count == 1


def test_of_two_errors_the_first_is_told():
    first, second = two(dist.HashStore())
    error = RunError("the disk is full")
    error.exit_code = 7
    assert first.one_error(error) is error
    other = second.one_error(OptionError("something else"))
    assert isinstance(other, EndedElsewhere)


def test_a_process_that_lost_another_leaves_the_word_to_it():
    first, second = two(dist.HashStore())
    error = RunError("asked wrongly")
    error.exit_code = 2
    assert second.one_error(error) is error
    lost = first.one_error(RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:4711"))
    assert isinstance(lost, EndedElsewhere)
    assert lost.exit_code == 2


def test_processes_that_all_wait_for_each_other_say_so_once(monkeypatch):
    monkeypatch.setattr("clearhead.training.distributed.GRACE_SECONDS", 0.1)
    first, second = two(dist.HashStore())
    waited = RuntimeError("[gloo] Timed out waiting 600000ms for recv operation to complete")
    with pytest.raises(RunError, match=r"waited for each other for 10 minutes.*: process 1 of 2 hangs.*--resume"):
        raise first.one_error(waited)
    assert isinstance(second.one_error(waited), EndedElsewhere)
    first, second = two(dist.HashStore())
    second.store.set("clearhead/waited/1", "")
    with pytest.raises(RunError, match="one of them hangs, or its machine cannot be reached"):
        raise first.one_error(waited)
    killed = RuntimeError("[gloo] Connection closed by peer")
    assert isinstance(two(dist.HashStore())[0].one_error(killed), EndedElsewhere)


def test_an_error_of_its_own_is_not_taken_for_a_lost_process():
    first, _ = two(dist.HashStore())
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert first.one_error(error) is error


def test_threads_are_shared_among_the_processes_of_a_machine(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert Processes().threads(6) == 6
    assert Processes(count=4, local_count=4).threads(6) == 2
    assert Processes(count=16, local_count=16).threads(6) == 1


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    processes = Processes(count=2, local_count=2, control=types.SimpleNamespace())
    with pytest.raises(OptionError, match="there are 2 on this machine, and 1 GPUs"):
        processes.device(torch.device("cuda"))
    with pytest.raises(OptionError, match="not on mps; take --device cpu"):
        processes.device(torch.device("mps"))
    assert processes.device(torch.device("cpu")).type == "cpu"


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
