"""Exercises that are graded exactly: attention to write, puzzles in RASP, heads to design, slips and programs to find.

>>> from clearhead import exercises
>>> exercises.check("scale", lambda scores, d: scores / d)
scale: not yet
Given the scores 2 and -1 and d = 4, at row 0, column 0: expected 1, came 0.5.
It was called with scores = [[2, -1]]; d = 4.
That divides by d. Divide by the square root of d, so that scores of long vectors keep a variance of 1.
"""

from clearhead.exercises.checking import check, hint, solution
from clearhead.exercises.exercise import EXERCISES, Exercise
from clearhead.exercises.mysteries import Mystery, mystery
from clearhead.exercises.slips import trace_slip
from clearhead.exercises.verdict import Verdict

__all__ = ["EXERCISES", "Exercise", "Mystery", "Verdict", "check", "hint", "mystery", "solution", "trace_slip"]
