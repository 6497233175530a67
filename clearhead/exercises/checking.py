"""Checking an answer against what is right: every cell of a function's results, every text of a puzzle."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.calls import public
from clearhead.errors import OptionError, no_such
from clearhead.exercises.answers import (
    Answer,
    call_answer,
    pack,
    run_functions,
    run_lines,
    run_program,
    text_answer,
    unpack,
    uses_numpy,
)
from clearhead.exercises.exercise import EXERCISES, Exercise, Language, Slip, run_code
from clearhead.exercises.verdict import Verdict
from clearhead.rasp.language import Sequence as Program

NEAR = 1e-6
"""How far a number may be off: enough for float32, far too little for another formula."""
LONGEST, ALPHABET = 6, 4
"""Puzzles are tried with every text up to so many tokens, of an alphabet of at most so many."""
SAID: dict[Language, dict[str, str]] = {
    "en": {
        "cell": "Given {given}, at {place}: expected {expected}, came {came}.",
        "shape": "Given {given}: expected the shape {expected}, came {came}.",
        "number": "Given {given}: expected {expected}, came {came}.",
        "text": "For {given}: expected {expected}, came {came}.",
        "line": "{name} = {values}",
        "cost": "It compiles into {layers} layers and {heads} heads, from {operations} operations; the best known: "
        "{best_layers}, {best_heads}, {best_operations}.",
        "uncompiled": "It is right, and does not compile: {why}",
    },
    "de": {
        "cell": "Mit {given}, bei {place}: erwartet {expected}, gekommen {came}.",
        "shape": "Mit {given}: erwartet die Form {expected}, gekommen {came}.",
        "number": "Mit {given}: erwartet {expected}, gekommen {came}.",
        "text": "Bei {given}: erwartet {expected}, gekommen {came}.",
        "line": "{name} = {values}",
        "cost": "Daraus werden {layers} Schichten und {heads} Köpfe, aus {operations} Operationen; am wenigsten bisher "
        "{best_layers}, {best_heads}, {best_operations}.",
        "uncompiled": "Es ist richtig, lässt sich aber nicht kompilieren: {why}",
    },
}
PLACES: dict[Language, tuple[str, str, str]] = {
    "en": ("place {}", "row {}, column {}", "output {}, "),
    "de": ("Stelle {}", "Zeile {}, Spalte {}", "Ausgabe {}, "),
}


@public
def check(name: str, answer: Callable[..., Any] | Program, *, language: Language = "en") -> Verdict:
    """Check an answer: a function of yours for an exercise in writing, a RASP program for a puzzle."""
    exercise = find_exercise(name)
    if exercise.kind == "program":
        texts = texts_of(exercise)
        values = [text_answer(answer, text) for text in texts] if isinstance(answer, Program) else None
        return judge_program(exercise, {"missing": True} if values is None else {"values": values}, language)
    cases = cases_of(exercise)
    as_numpy = uses_numpy(getattr(answer, "__globals__", {}))
    answers = [call_answer(answer, unpack(pack(list(call)), as_numpy=as_numpy)) for _, call in cases]
    return judge_function(exercise, answers, language)


@public
def hint(name: str, number: int = 1, *, language: Language = "en") -> str:
    """Return a hint of an exercise: the first, the second, …; the last where there are no more."""
    hints = find_exercise(name).tasks[language].hints
    return hints[min(number, len(hints)) - 1]


@public
def solution(name: str) -> str:
    """Return the code of a solution."""
    return find_exercise(name).solution


def find_exercise(name: str) -> Exercise:
    if name not in EXERCISES:
        raise OptionError(no_such(name, list(EXERCISES)))
    return EXERCISES[name]


def check_functions(exercises: Sequence[Exercise], path: Path, *, language: Language = "en") -> Iterator[Verdict]:
    """Check the functions in a file, one after another up to the first that is not right, in a process with bounds."""
    asked = {function_name(each): [call for _, call in cases_of(each)] for each in exercises}
    with contextlib.closing(run_functions(path, asked)) as answers:
        for exercise, given in zip(exercises, answers, strict=False):
            verdict = judge_function(exercise, given, language)
            yield verdict
            if not verdict.is_right:
                return


def check_program(exercise: Exercise, path: Path, *, language: Language = "en") -> Verdict:
    """Check the program in a file, run in a process with bounds."""
    answer = run_program(path, texts_of(exercise), alphabet=exercise.fact("alphabet"), length=LONGEST)
    return judge_program(exercise, answer, language, path=path)


def function_name(exercise: Exercise) -> str:
    return exercise.fact("function").partition("(")[0]


def cases_of(exercise: Exercise) -> list[tuple[str, tuple[Any, ...]]]:
    """Return what an exercise in writing is tried with: what it is called, and the arguments."""
    return list(exercise.checks["cases"]())


def texts_of(exercise: Exercise) -> list[str]:
    """Return every text that a puzzle is tried with, the shortest first."""
    alphabet, fits = exercise.fact("alphabet"), exercise.checks.get("fits", lambda text: True)
    lengths = range(1, LONGEST + 1)
    texts = ("".join(text) for n in lengths for text in itertools.product(alphabet, repeat=n))
    return [text for text in texts if fits(text)]


def judge_function(exercise: Exercise, answers: Sequence[Answer], language: Language) -> Verdict:
    """Compare each result with what is right, cell by cell, and stop at the first that differs."""
    for (given, call), answer in zip(cases_of(exercise), answers, strict=True):
        if (none := without_values(exercise, answer, language)) is not None:
            return none
        expected, named = pack(exercise.checks["expected"](*call)), given.split(" | ")[0 if language == "en" else -1]
        problem = first_difference(expected, answer["values"], named, language)
        if problem is not None:
            slip = find_slip(exercise, answers)
            lines = (problem,) if slip is None else (problem, slip.said[language])
            return Verdict(name=exercise.name, state="not yet", lines=lines, language=language)
    return Verdict(name=exercise.name, state="right", language=language)


def without_values(exercise: Exercise, answer: Answer, language: Language) -> Verdict | None:
    if "missing" in answer:
        return Verdict(name=exercise.name, state="empty", language=language)
    if "error" in answer:
        return Verdict(name=exercise.name, state="failed", lines=(answer["error"],), language=language)
    return None


def find_slip(exercise: Exercise, answers: Sequence[Answer]) -> Slip | None:
    """Return the known slip that gives the same results as these, in every case."""
    for slip in exercise.slips:
        function = run_code(slip.code, exercise.name)[function_name(exercise)]
        theirs = [call_answer(function, list(call)) for _, call in cases_of(exercise)]
        if all(same_answer(one, other) for one, other in zip(theirs, answers, strict=True)):
            return slip
    return None


def same_answer(one: Answer, other: Answer) -> bool:
    if "values" not in one or "values" not in other:
        return one.keys() == other.keys()
    return first_difference(one["values"], other["values"], "", "en") is None


def first_difference(expected: Any, came: Any, given: str, language: Language) -> str | None:
    """Say where two packed results differ first; None if they do not."""
    said, (place, cell, output) = SAID[language], PLACES[language]
    if isinstance(expected, list):
        if not isinstance(came, list) or len(came) != len(expected):
            return said["number"].format(given=given, expected=f"{len(expected)} results", came=describe(came))
        several = (
            first_difference(one, other, f"{given}, {output.format(i)}".rstrip(", "), language)
            for i, (one, other) in enumerate(zip(expected, came, strict=True))
        )
        return next((problem for problem in several if problem is not None), None)
    shape, theirs = shape_of(expected), shape_of(came)
    if theirs is None or shape is None:
        return said["number"].format(given=given, expected=describe(expected), came=describe(came))
    if shape != theirs:
        return said["shape"].format(given=given, expected=describe_shape(shape), came=describe_shape(theirs))
    for at, (one, other) in enumerate(itertools.zip_longest(numbers_of(expected), numbers_of(came))):
        if not same_number(one, other):
            where = np.unravel_index(at, shape) if shape else ()
            named = (cell if len(where) == 2 else place).format(*map(int, where)) if where else ""
            numbers = {"expected": describe(one), "came": describe(other)}
            return said["cell" if where else "number"].format(given=given, place=named, **numbers)
    return None


def shape_of(packed: Any) -> tuple[int, ...] | None:
    """Return the shape of a packed result; a number has none of its own, and what is no number is None."""
    if isinstance(packed, dict) and "shape" in packed:
        return tuple(packed["shape"])
    return () if isinstance(packed, int | float) else None


def numbers_of(packed: Any) -> list[Any]:
    return packed["numbers"] if isinstance(packed, dict) else [packed]


def same_number(one: float, other: Any) -> bool:
    """Check whether an answer's number is the one expected; what an answer gives may be no number at all."""
    if not isinstance(other, int | float):
        return False
    if not (math.isfinite(one) and math.isfinite(other)):
        return one == other or (math.isnan(one) and math.isnan(other))
    return abs(one - other) <= NEAR * max(1.0, abs(one))


def describe(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return f"numbers of the shape {describe_shape(tuple(value.get('shape', ())))}"
    return f"{len(value)} results" if isinstance(value, list) else str(value)


def describe_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1"


def judge_program(exercise: Exercise, answer: Answer, language: Language, *, path: Path | None = None) -> Verdict:
    """Compare a program with what is right on every text; the shortest on which they differ is shown."""
    if (none := without_values(exercise, answer, language)) is not None:
        return none
    texts, expected = texts_of(exercise), exercise.checks["expected"]
    for text, values in zip(texts, answer["values"], strict=True):
        if not same_row(expected(text), values):
            lines = list(counter_example(text, expected(text), values, language))
            lines += [] if path is None else list(describe_lines(run_lines(path, text), language))
            slip = find_program_slip(exercise, texts, answer["values"])
            lines += [] if slip is None else [slip.said[language]]
            return Verdict(name=exercise.name, state="not yet", lines=tuple(lines), language=language)
    return Verdict(
        name=exercise.name, state="right", lines=tuple(describe_cost(exercise, answer, language)), language=language
    )


def same_row(expected: Sequence[Any], came: Any) -> bool:
    if not isinstance(came, list) or len(came) != len(expected):
        return False
    return all(same_value(one, other) for one, other in zip(expected, came, strict=True))


def same_value(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return same_number(float(one), float(other))
    return one == other


def counter_example(text: str, expected: Sequence[Any], came: Any, language: Language) -> Iterator[str]:
    theirs = came["error"] if isinstance(came, dict) else show_row(came)
    yield SAID[language]["text"].format(given=text, expected=show_row(expected), came=theirs)


def show_row(values: Iterable[Any]) -> str:
    return " ".join("–" if value is None else describe(value) for value in values)


def describe_lines(lines: Sequence[Sequence[Any]], language: Language) -> Iterator[str]:
    """Yield what each named line of an answer computed."""
    for name, values in lines:
        shown = values if isinstance(values, str) else show_values(values)
        yield "  " + SAID[language]["line"].format(name=name, values=shown)


def show_values(values: Sequence[Any]) -> str:
    """Return a row of values; of a selector the keys that each query chooses, in brackets."""
    selector = bool(values) and all(isinstance(value, list) for value in values)
    return " ".join(f"[{' '.join(map(str, value))}]" for value in values) if selector else show_row(values)


def find_program_slip(exercise: Exercise, texts: Sequence[str], came: Sequence[Any]) -> Slip | None:
    for slip in exercise.slips:
        program = run_code(slip.code, exercise.name)["answer"]
        if all(same_slip(text_answer(program, text), values) for text, values in zip(texts, came, strict=True)):
            return slip
    return None


def same_slip(one: Any, other: Any) -> bool:
    """Check whether two programs give the same for a text, or both an error."""
    return isinstance(other, dict) if isinstance(one, dict) else same_row(one, other)


def describe_cost(exercise: Exercise, answer: Answer, language: Language) -> Iterator[str]:
    """Yield what an answer compiles into, compared with the least that is known."""
    cost = answer.get("cost")
    if isinstance(cost, str):
        yield SAID[language]["uncompiled"].format(why=cost)
    elif cost is not None:
        layers, heads, operations = map(int, exercise.fact("best").split())
        best = {"best_layers": layers, "best_heads": heads, "best_operations": operations}
        yield SAID[language]["cost"].format(**cost, **best)
