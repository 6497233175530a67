"""Verdicts: what is printed of an answer."""

from clearhead.exercises import Verdict


def test_a_verdict_is_read_as_lines():
    verdict = Verdict(name="scale", state="not yet", lines=("Given 2: expected 1, came 3.",), language="de")
    assert repr(verdict) == "scale: noch nicht\nGiven 2: expected 1, came 3."
    assert not verdict.is_right
