"""Comparing: both languages have the same sentences, with the same gaps."""

import string

from clearhead.exercises.comparing import PLACES, SAID, first_difference


def gaps(sentence):
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name is not None}


def test_both_languages_say_the_same():
    assert SAID["en"].keys() == SAID["de"].keys()
    assert all(gaps(SAID["en"][name]) == gaps(SAID["de"][name]) for name in SAID["en"])
    assert len(PLACES["en"]) == len(PLACES["de"])


def test_the_first_cell_that_differs_is_named_in_both():
    one = {"shape": [2, 2], "truth": False, "numbers": [1.0, 2.0, 3.0, 4.0]}
    other = {**one, "numbers": [1.0, 2.0, 3.5, 4.0]}
    assert first_difference(one, one, "x", "en") is None
    assert first_difference(one, other, "x", "en") == "Given x, at row 1, column 0: expected 3, came 3.5."
    assert first_difference(one, other, "x", "de") == "Mit x, bei Zeile 1, Spalte 0: erwartet 3, gekommen 3.5."
