"""What is seen while a model trains: plain lines in a file, one live display on a terminal."""

import io
import re

import pytest
from rich.console import Console

from clearhead.cli.progress import (
    LiveProgress,
    PlainProgress,
    format_main_score,
    format_own_scores,
    format_scores,
    open_progress,
    shorten_line,
)
from clearhead.cli.screen import THEME

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def step(number, **more):
    return {
        "kind": "step",
        "step": number,
        "loss": 2.5,
        "seconds": number / 2,
        "tokens_per_second": 12345,
        "memory_mb": 678,
        **more,
    }


def evaluation(number, **more):
    sample = {"input": "eins zwei", "output": "one too", "reference": "one two"}
    scores = {"bleu": 41.25, "chrf": 60.0, "exact_match": 0.125}
    line = {"kind": "evaluation", "step": number, "loss": 1.5, "scores": scores, "samples": [sample], "best": True}
    return line | more


@pytest.fixture
def plain():
    """A plain display, what it has printed, and a clock that is set by hand."""
    out, now = io.StringIO(), [0.0]
    display = PlainProgress(Console(file=out, theme=THEME, highlight=False, width=40), clock=lambda: now[0])
    return display, out, now


@pytest.fixture
def live():
    out = io.StringIO()
    console = Console(file=out, theme=THEME, highlight=False, width=60, height=20, force_terminal=True)
    return LiveProgress(console), out


def test_a_line_has_step_loss_speed_memory_and_the_time_left(plain):
    display, out, _ = plain
    display(step(20, total=100))
    assert out.getvalue() == "step 20/100  loss 2.5000  12,345 tokens/s  678 MB  0:40 left\n"


def test_without_a_total_there_is_no_time_left(plain):
    display, out, _ = plain
    display(step(2000))
    assert out.getvalue() == "step 2,000  loss 2.5000  12,345 tokens/s  678 MB\n"


def test_lines_come_at_most_once_a_second_but_evaluations_always(plain):
    display, out, now = plain
    for number in range(1, 31):
        now[0] = number * 0.1
        display(step(number))
        if number in (3, 4):
            display(evaluation(number))
        display({"kind": "saved", "step": number})
    firsts = re.findall(r"^(?:step|dev at step) (\d+)", out.getvalue(), re.MULTILINE)
    assert firsts == ["1", "3", "4", "11", "21"]


def test_an_evaluation_has_scores_and_samples_one_a_line(plain):
    display, out, _ = plain
    display(evaluation(40))
    display(evaluation(60, best=False, scores={}, samples=[{"input": "a\nb\x1b[2J", "output": "c" * 99}]))
    assert out.getvalue().splitlines() == [
        "dev at step 40  loss 1.5000  BLEU 41.2  chrF 60.0  exact match 12.5 %  best so far",
        "  eins zwei → one too  (wanted: one two)",
        "dev at step 60  loss 1.5000",
        f"  a b [2J → {'c' * 35}…",
    ]


def test_a_sample_that_is_right_is_not_given_twice(plain):
    display, out, _ = plain
    display(evaluation(1, samples=[{"input": "eins", "output": "one", "reference": "one"}]))
    assert out.getvalue().splitlines()[1] == "  eins → one"


def test_the_live_display_stays_at_the_foot_and_never_wraps(live):
    display, out = live
    with display:
        display.log("400 records")
        display(step(20, total=100))
        display(evaluation(20))
        display({"kind": "saved", "step": 20})
        display(step(40, total=100))
    seen = ESCAPES.sub("", out.getvalue()).replace("\r", "\n").split("\n")
    assert seen[0] == "400 records"
    assert max(map(len, seen)) <= 60
    foot = [line for line in seen if line.strip()][-2:]
    assert foot[0].split() == ["████████████", "step", "40/100", "0:30", "left"]
    assert foot[1] == "  loss 2.5000  dev BLEU 41.2  12,345 tokens/s  678 MB  save…"
    assert "dev at step 20  loss 1.5000  BLEU 41.2  chrF 60.0  exact ma…" in seen
    assert "  eins zwei → one too  (wanted: one two)" in seen


def test_the_live_display_does_not_hide_the_cursor(live):
    display, out = live
    display(step(1, total=2))
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")
    display.close()


def test_the_live_display_needs_no_total(live):
    display, out = live
    with display:
        display(step(20))
    assert "  step 20\n" in ESCAPES.sub("", out.getvalue()).replace("\r", "\n")


def test_a_terminal_gets_the_live_display_and_a_file_lines(monkeypatch, plain_terminal):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert isinstance(open_progress(), PlainProgress)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    assert isinstance(open_progress(), LiveProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_progress(), PlainProgress)


def test_scores_have_names_that_people_know():
    scores = {"accuracy": 0.8125, "macro_f1": 0.5, "bits_per_byte": 1.25, "loss": 3.0, "other": 1}
    assert format_scores(scores) == ["accuracy 81.2 %", "macro F1 50.0 %", "bits per byte 1.250"]
    assert format_main_score({"chrf": 30.0, "bleu": 20.0}) == "BLEU 20.0"
    assert format_main_score({}) == ""


def test_an_accuracy_of_one_label_says_so():
    scores = {"accuracy": 1.0, "macro_f1": 1.0, "labels_asked": 1}
    assert format_scores(scores) == ["accuracy of one label 100.0 %", "macro F1 100.0 %"]
    assert format_scores({**scores, "labels_asked": 2})[0] == "accuracy 100.0 %"
    assert format_own_scores(scores) == []


def test_a_text_is_shown_on_one_line_and_cut():
    assert shorten_line(" a\tb\n\x1bc ", 10) == "a b c"
    assert shorten_line("abcdef", 6) == "abcdef"
    assert shorten_line("abcdefg", 6) == "abcde…"
