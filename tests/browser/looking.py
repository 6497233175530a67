"""`clearhead look` in a process of its own, and what becomes of a test where something it needs is not there."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest


def missing(what):
    """A test that cannot run: wrong where everything is to be tested, else told and passed over."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}, and with CI=true the explorer is not left untested", pytrace=False)
    pytest.skip(what)


def clearhead(*args):
    """The command, run as a person would."""
    return [sys.executable, "-m", "clearhead", *map(str, args)]


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def looking(*folders):
    """The explorer of a run, or of two, by its address. It ends well, and has nothing to complain of."""
    from clearhead.serve.explorer_routes import STATIC

    if not (STATIC / "index.html").exists():
        missing("the explorer's page is not built; run `make web`")
    command = clearhead("look", *folders, "--no-open", "--device", "cpu")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=ONE_THREAD) as server:
        assert server.stdout is not None
        try:
            home = server.stdout.readline().strip()
            yield home
        finally:
            server.send_signal(signal.SIGINT)
            _, complaints = server.communicate(timeout=300)
    assert (server.returncode, complaints) == (0, "")
    assert home.startswith("http://127.0.0.1:")


@contextlib.contextmanager
def serving(*runs):
    """The explorer of a run, or of two, with the built page, in a thread of this process; its address.

    A process of its own needs seconds to start: `looking` is for tests of the command.
    """
    from clearhead.serve.explorer import Explorer
    from clearhead.serve.explorer_routes import STATIC, ExplorerPages
    from clearhead.serve.logs import Tracebacks
    from clearhead.serve.server import Server
    from clearhead.training.run import Run, load

    if not (STATIC / "index.html").exists():
        missing("the explorer's page is not built; run `make web`")
    first, *others = (run if isinstance(run, Run) else load(run, device="cpu") for run in runs)
    server = Server(ExplorerPages(Explorer(first, beside=Explorer(*others) if others else None)), logs=Tracebacks())
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.place.page
    finally:
        server.stop()
        thread.join(300)


@contextlib.contextmanager
def timed_briefly():
    """Time a training in two steps instead of twelve (tests/training/test_timing.py): the runs here are short."""
    from clearhead.training import machine

    before, machine.MOST_STEPS = machine.MOST_STEPS, 1
    try:
        yield
    finally:
        machine.MOST_STEPS = before
