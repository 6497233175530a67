"""Ctrl-C and SIGTERM: asked about and told, and a second one leaves at once."""

import signal

import pytest

from clearhead.training import stopping
from clearhead.training.stopping import Stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_asked_about_and_told(number, capfd):
    before = signal.getsignal(number)
    with Stopping() as asked:
        assert asked.signal == 0
        signal.raise_signal(number)
        assert asked.signal == number
    assert capfd.readouterr().err == "stopping: it is saved first; Ctrl-C again leaves at once\n"
    assert signal.getsignal(number) is before


def test_a_second_signal_leaves_at_once(monkeypatch):
    left = []
    monkeypatch.setattr(stopping.os, "_exit", left.append)
    with Stopping():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert left == [130]


def test_a_stderr_that_is_closed_is_no_reason_to_fail(monkeypatch):
    def closed(*given):
        raise OSError

    monkeypatch.setattr(stopping.os, "write", closed)
    with Stopping() as asked:
        signal.raise_signal(signal.SIGTERM)
    assert asked.signal == signal.SIGTERM
