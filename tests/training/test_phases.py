"""Phases: what takes long says so, and what is quick says nothing."""

import threading

import pytest

from clearhead.training.phases import phase


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
