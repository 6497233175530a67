"""Checking an answer: one that is here, or one in a file, which runs in a process with bounds."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clearhead.calls import public
from clearhead.errors import OptionError, nearest
from clearhead.exercises.answers import (
    Answer,
    ProgramCode,
    call_answer,
    pack,
    read_in_functions,
    read_source,
    run_functions,
    text_answer,
    unpack,
    uses_numpy,
)
from clearhead.exercises.exercise import EXERCISES, Exercise, Language
from clearhead.exercises.judging import (
    LONGEST,
    Ask,
    Calls,
    ask_here,
    cases_of,
    function_name,
    judge_design,
    judge_function,
    judge_mystery,
    judge_program,
    judge_slip,
    texts_of,
)
from clearhead.exercises.menus import explain_menus, write_program
from clearhead.exercises.verdict import Verdict
from clearhead.rasp.language import Sequence as Program


@public
def check(name: str, answer: Callable[..., Any] | Program | Mapping[str, Any], *, language: Language = "en") -> Verdict:
    """Check an answer.

    Args:
        name: Name of the exercise.
        answer: A function for an exercise in writing, a RASP program for a puzzle. If several things are asked for, a
            dict of them: `{"where": …, "repair": …}` for a slip, `{"query": …, "key": …, "value": …}` for a head,
            `{"edges": …, "answer": …}` for a mystery; `globals()` will do.
        language: `en` or `de`.

    Returns:
        The verdict.

    >>> from clearhead import exercises
    >>> exercises.check("scale", lambda scores, d: scores / d**0.5).state
    'right'
    """
    exercise = find_exercise(name)
    if exercise.kind == "write":
        function = answer[function_name(exercise)] if isinstance(answer, Mapping) else answer
        as_numpy = uses_numpy(getattr(function, "__globals__", {}))
        calls = [unpack(pack(list(call)), as_numpy=as_numpy) for _, call in cases_of(exercise)]
        return judge_function(exercise, [call_answer(function, call) for call in calls], language)
    defined = answer if isinstance(answer, Mapping) else {"answer": answer}
    if exercise.kind in ASKED:
        return ASKED[exercise.kind](exercise, ask_here(defined), language)
    program = defined.get("answer")
    values = [text_answer(program, text) for text in texts_of(exercise)] if isinstance(program, Program) else None
    given = {"missing": True} if values is None else {"values": values}
    given |= {"edges": pack(defined.get("edges"))}
    given |= {"read": read_in_functions(program)} if isinstance(program, Program) else {}
    return WRITTEN[exercise.kind](exercise, given, language)


ASKED: Mapping[str, Callable[[Exercise, Ask, Language], Verdict]] = {"slip": judge_slip, "design": judge_design}
"""Kinds of which functions are asked for."""
WRITTEN: Mapping[str, Callable[..., Verdict]] = {"program": judge_program, "mystery": judge_mystery}
"""Kinds of which a program is."""


def check_file(exercise: Exercise, path: Path, *, language: Language = "en") -> Verdict:
    """Check the answer in a file, run in a process with bounds."""
    if exercise.kind == "write":
        return next(check_functions([exercise], path, language=language))
    if exercise.kind in ASKED:
        return ASKED[exercise.kind](exercise, ask_file(path), language)
    return check_program(exercise, ProgramCode(source=read_source(path), where=str(path)), language=language)


def check_program(
    exercise: Exercise, code: ProgramCode, *, edges: Sequence[str] | None = None, language: Language = "en"
) -> Verdict:
    """Check a program's code, run in a process with bounds; `edges` are marked edges that the code does not name."""
    answer = code.run(texts_of(exercise), alphabet=exercise.fact("alphabet"), length=LONGEST)
    if edges is not None:
        answer["edges"] = list(edges)
    return WRITTEN[exercise.kind](exercise, answer, language, lines_for=code.lines)


def check_menus(
    exercise: Exercise, lines: Sequence[str], *, edges: Sequence[str] | None = None, language: Language = "en"
) -> Verdict:
    """Check an answer that was made by menus, as one in a file is checked."""
    if not exercise.menus:
        raise OptionError(f"{exercise.name} is not solved by menus: {exercise_names()} are")
    explain = functools.partial(explain_menus, language=language)
    code = ProgramCode(source=write_program(lines, exercise), where=exercise.name, is_ours=True, explain=explain)
    return check_program(exercise, code, edges=edges, language=language)


def exercise_names() -> str:
    return ", ".join(each.name for each in EXERCISES.values() if each.menus)


def ask_file(path: Path) -> Ask:
    """Return how functions of a file are asked: all of one call in one process."""

    def ask(calls: Calls) -> dict[str, list[Answer]]:
        with contextlib.closing(run_functions(path, calls)) as answers:
            return dict(zip(calls, answers, strict=True))

    return ask


@public
def hint(name: str, number: int = 1, *, language: Language = "en") -> str:
    """Return a hint of an exercise.

    Args:
        name: Name of the exercise.
        number: 1 for the first hint, 2 for the second, …; the last one if there are fewer.
        language: `en` or `de`.

    Returns:
        The hint.

    >>> from clearhead import exercises
    >>> len(exercises.hint("scale")) > 0
    True
    """
    hints = find_exercise(name).tasks[language].hints
    return hints[min(number, len(hints)) - 1]


@public
def solution(name: str) -> str:
    """Return the code of a solution.

    Args:
        name: Name of the exercise.

    Returns:
        Python code.

    >>> from clearhead import exercises
    >>> "def" in exercises.solution("scale")
    True
    """
    return find_exercise(name).solution


def find_exercise(name: str) -> Exercise:
    if name not in EXERCISES:
        near = nearest(name, EXERCISES)
        raise OptionError(
            f"there is no exercise {name!r:.80}; clearhead learn list shows them all"
            if near is None
            else f"there is no exercise {name!r:.80}. Did you mean {near!r}?"
        )
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
