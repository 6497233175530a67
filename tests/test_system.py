"""What systems do differently: locks, folders, links, processes; and a whole run without what Windows lacks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from clearhead import files, system
from clearhead.errors import RunError
from clearhead.training import reporting
from clearhead.training.folder_lock import Hold

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_run_is_made_and_used_without_what_windows_lacks(tmp_path):
    """Simulated, and untested on Windows: tests/windows_like.py says what is taken away."""
    command = [sys.executable, "-X", "warn_default_encoding", "-m", "tests.windows_like", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("modules imported; trained, loaded, resumed\n")


def test_how_long_the_process_has_run_grows_with_the_clock(monkeypatch):
    first = system.process_seconds()
    assert 0 < first <= system.process_seconds()
    monkeypatch.setattr(system, "Path", lambda _: (_ for _ in ()).throw(OSError))
    monkeypatch.setattr(system.time, "process_time", lambda: 7.0)
    assert system.process_seconds() == 7.0  # a system without /proc


def test_a_lock_is_one_handles_alone_until_it_is_given_up(tmp_path):
    handles = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2)]
    try:
        assert system.try_lock(handles[0])
        assert not system.try_lock(handles[1])
        assert not system.try_lock(handles[1], shared=True)
        system.unlock(handles[0])
        assert system.try_lock(handles[1], shared=True)
        assert system.try_lock(handles[0], shared=True)
    finally:
        for handle in handles:
            os.close(handle)


@pytest.mark.parametrize("opens", [True, False])
def test_a_folder_that_was_replaced_is_noticed_with_and_without_holding_it_open(tmp_path, monkeypatch, opens):
    if not opens:
        monkeypatch.setattr(system, "FOLDER", None)
    folder = tmp_path / "run"
    folder.mkdir()
    assert (system.open_folder(folder) is not None) == opens
    files.flush(folder)
    with Hold(folder) as held:
        held.check()
        folder.rename(tmp_path / "away")
        folder.mkdir()
        where = "was moved to .*away" if opens else "was moved, removed or replaced"
        with pytest.raises(RunError, match=where):
            held.check()


@pytest.mark.parametrize("flagged", [True, False])
def test_a_log_is_not_opened_through_a_link_with_or_without_the_flag(tmp_path, monkeypatch, flagged):
    if not flagged:
        monkeypatch.setattr(system, "NO_LINK", 0)
        monkeypatch.setattr(files, "NO_LINK", 0)
    (tmp_path / "real.txt").write_text("mine")
    (tmp_path / "log.txt").symlink_to(tmp_path / "real.txt")
    with pytest.raises(OSError):  # noqa: PT011, the two systems word it differently
        files.open_log(tmp_path / "log.txt")
    with files.open_log(tmp_path / "other.txt") as log:
        log.write(b"line\n")
    assert ((tmp_path / "real.txt").read_text(), (tmp_path / "other.txt").read_text()) == ("mine", "line\n")


def test_whether_a_process_lives_is_never_asked_by_kill_where_kill_would_end_it(monkeypatch):
    assert system.is_alive(os.getpid())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not system.is_alive(gone.pid)
    monkeypatch.setattr(system, "fcntl", None)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("on Windows this ends the process"))
    assert system.is_alive(gone.pid)


def test_memory_is_told_by_linux_by_getrusage_or_not_at_all(monkeypatch, tmp_path):
    cpu = torch.device("cpu")
    told = reporting.memory_mb(cpu)
    assert told > 10
    monkeypatch.setattr(reporting, "STATUS", tmp_path / "status")
    assert reporting.memory_mb(cpu) == pytest.approx(told, rel=0.5)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert reporting.memory_mb(cpu) == 0


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_memory_that_moves_into_large_pages_is_the_same(platform, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    if platform != "linux":
        monkeypatch.setattr("ctypes.CDLL", None)  # nothing is called
    numbers = torch.arange(1 << 21)
    for n_bytes in (0, 1, numbers.nbytes):
        system.use_large_pages(numbers.data_ptr(), n_bytes)
    assert torch.equal(numbers, torch.arange(1 << 21))


def test_threads_that_run_are_counted():
    running = system.count_running()
    assert running is None or running >= 1


def test_where_the_load_is_not_told_nothing_is_counted(monkeypatch, tmp_path):
    for content in ("", "1 2 3 x/5 9", "0.1"):
        (tmp_path / "loadavg").write_text(content)
        monkeypatch.setattr(system, "open", lambda *_, **__: (tmp_path / "loadavg").open(), raising=False)
        assert system.count_running() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("early", [True, False], ids=["gone before it looks", "gone later"])
@pytest.mark.parametrize("platform", ["linux", "darwin"], ids=["by the system", "by looking"])
def test_a_worker_never_outlives_its_launcher(early, platform, monkeypatch):
    """A process starts another one, which would sleep for minutes, and goes; the pipe closes when both are gone."""
    monkeypatch.setattr(system.sys, "platform", platform)
    watched, open_as_long = os.pipe()
    launcher = os.fork()
    if not launcher:
        number = os.getpid()
        if os.fork():
            time.sleep(0 if early else 0.2)
            os._exit(0)
        time.sleep(0.2 if early else 0)
        system.end_with_parent(number, poll=0.01)
        time.sleep(600)
    os.waitpid(launcher, 0)
    os.close(open_as_long)
    assert os.read(watched, 1) == b""
    os.close(watched)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_worker_behind_another_program_goes_on_until_its_launcher_ends():
    """As where Python is started by a program that waits for it: the worker's parent is then not its launcher."""
    watched, open_as_long = os.pipe()
    launcher = os.fork()
    if not launcher:
        number = os.getpid()
        if os.fork() == 0:
            if os.fork() == 0:
                system.end_with_parent(number, poll=0.01)
                time.sleep(0.1)
                os.write(open_as_long, b"on")
                time.sleep(600)
            os.close(open_as_long)
            os.wait()
            os._exit(0)
        os.close(open_as_long)
        time.sleep(600)
    os.close(open_as_long)
    assert os.read(watched, 2) == b"on"
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    assert os.read(watched, 1) == b""
    os.close(watched)
