"""The line of progress of `train` in Python."""

import io

import pytest

from clearhead.training.progress_line import ProgressLine


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
