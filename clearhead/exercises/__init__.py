"""Exercises that are graded exactly: attention written from an empty function, and puzzles in RASP.

>>> from clearhead import exercises
>>> exercises.check("scale", lambda scores, d: scores / d)
scale: not yet
Given 2 scores and d = 4, at row 0, column 0: expected 1, came 0.5.
That divides by d. Divide by the square root of d, so that scores of long vectors keep a variance of 1.
"""

from clearhead.exercises.checking import check, hint, solution
from clearhead.exercises.exercise import EXERCISES, Exercise
from clearhead.exercises.verdict import Verdict

__all__ = ["EXERCISES", "Exercise", "Verdict", "check", "hint", "solution"]
