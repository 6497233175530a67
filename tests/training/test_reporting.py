"""What a training tells: phases that take long, its progress, a loss that grows."""

import io
import signal
import threading

import pytest

from clearhead.training import reporting
from clearhead.training.reporting import ProgressLine, Stopping, phase


def test_a_long_phase_is_told_again_and_again():
    said, told_twice = [], threading.Event()

    def log(line):
        said.append(line)
        if len(said) == 2:
            told_twice.set()

    with phase("tokenising", log, first=0.001, each=0.001):
        assert told_twice.wait(30)
    count = len(said)
    assert all(line.startswith("tokenising: ") and line.endswith(" s so far") for line in said)
    assert not any(thread.name == "phase tokenising" for thread in threading.enumerate())
    assert len(said) == count


def test_a_quick_phase_says_nothing_and_lets_errors_through():
    said = []
    with pytest.raises(KeyError), phase("timing", said.append):
        raise KeyError
    assert said == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


def step(number, total=100):
    return {
        "kind": "step",
        "step": number,
        "total": total,
        "loss": 1.5,
        "seconds": number * 0.6,
        "tokens_per_second": 1234,
    }


EVALUATION = {"kind": "evaluation", "step": 50, "loss": 2.0, "scores": {"bleu": 12.3456}}


def test_on_a_terminal_a_bar_is_drawn_over_itself_and_scores_stay():
    out, now = Terminal(), [0.0]
    shown = ProgressLine(out, clock=lambda: now[0])
    for number in range(1, 101):
        now[0] += 1.0
        shown(step(number))
        if number == 50:
            shown(EVALUATION)
    lines = out.getvalue().split("\n")
    assert len(lines) == 3  # scores, the last step, nothing
    assert "dev at step 50  loss 2.0000  bleu 12.35" in lines[0]
    assert lines[1].split("\r")[-1].startswith("█" * 24 + "  step 100/100  loss 1.5000  1,234 tokens/s  0.0 min left")


@pytest.mark.parametrize("seconds", [1.0, 10.0])
def test_in_a_log_there_is_a_line_every_ten_seconds(seconds, monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "ipykernel", raising=False)
    out, now = io.StringIO(), [0.0]
    shown = ProgressLine(out, clock=lambda: now[0])
    for number in range(1, 31):
        now[0] += seconds
        shown(step(number))
    assert len(out.getvalue().splitlines()) == (3 if seconds == 1.0 else 30)
    assert "\r" not in out.getvalue()
    assert "step 30/100  loss 1.5000  1,234 tokens/s  0.7 min left" in out.getvalue()


def test_what_it_does_not_know_is_passed_over():
    out = io.StringIO()
    ProgressLine(out)({"kind": "saved", "step": 3})
    assert out.getvalue() == ""


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
    monkeypatch.setattr(reporting.os, "_exit", left.append)
    with Stopping():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert left == [130]


def test_a_stderr_that_is_closed_is_no_reason_to_fail(monkeypatch):
    def closed(*given):
        raise OSError

    monkeypatch.setattr(reporting.os, "write", closed)
    with Stopping() as asked:
        signal.raise_signal(signal.SIGTERM)
    assert asked.signal == signal.SIGTERM
