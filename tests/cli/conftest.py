"""What the tests of the command line share."""

import io
import sys

import pytest

from clearhead.cli import run


@pytest.fixture(scope="module", autouse=True)
def timed_once():
    """A training that leaves something open times two steps, not thirteen: its figures are of no interest here."""
    from clearhead.training import machine

    before, machine.MOST_STEPS = machine.MOST_STEPS, 1
    yield
    machine.MOST_STEPS = before


@pytest.fixture
def plain_terminal(monkeypatch):
    """Nothing in the environment asks for colours, or forbids them."""
    for name in ("CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def command(capsys, monkeypatch, plain_terminal):
    """Run a verb in this process: its exit code, what it printed, and what it said on stderr."""

    def ran(*args, stdin=""):
        given = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        capsys.readouterr()  # what a run was trained with, where this test is the first that asks for it
        code = run([str(arg) for arg in args])
        return code, *capsys.readouterr()

    return ran


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
