"""What a page needs to grade exercises without Python: what is right for every text, sentence and formula.

Answers come from finite menus, or are compared with what is here; so the page runs a program, and a head, and knows
nothing else of how exercises are graded (web/src/live/exercises/).
"""

import json
from collections.abc import Sequence
from typing import Any, TypedDict

from clearhead.exercises.answers import text_answer
from clearhead.exercises.checking import check
from clearhead.exercises.comparing import SAID
from clearhead.exercises.designs import ENOUGH
from clearhead.exercises.exercise import EXERCISES, Exercise, Language, run_code
from clearhead.exercises.judging import expected_of, texts_of
from clearhead.exercises.lesson import VIEWS, Lesson, view_of
from clearhead.exercises.menus import list_repairs, write_repair
from clearhead.exercises.mysteries import make_mystery
from clearhead.exercises.slips import SlipModel, steps_of
from clearhead.serve.packing import deflate
from clearhead.serve.questions.exercises import (
    AskExercises,
    GradedAnswer,
    MysteryModel,
    PageExercises,
    SlipNumbers,
    graded,
    mystery_model,
    slip_numbers,
)

WORDS = (
    *("text", "stops", "line", "unfit", "several"),
    *("edges", "extra edge", "program", "designed", "credit", "output"),
)


class KnownMistake(TypedDict):
    """A wrong program that is known, by what it gives."""

    said: str
    rows: list[list[Any] | None]
    """To each text, a value for each place; null where it stops."""
    edges: list[str] | None


class ProgramKey(TypedDict):
    """What is right for every text, the shortest first; of a mystery, its true edges and its model too."""

    texts: list[str]
    expected: list[list[Any]]
    mistakes: list[KnownMistake]
    truth: list[str] | None
    model: MysteryModel | None


class DesignKey(TypedDict):
    targets: list[list[list[int] | None]]
    """By sentence and place, where the query should look; null if anywhere."""
    results: list[list[list[float]]] | None
    """What the head should give there; null if only its weights are graded."""


class SlipKey(TypedDict):
    numbers: list[SlipNumbers]
    """For each text."""
    verdicts: dict[str, GradedAnswer]
    """By place, step and formula, all there are."""


class AnswerKey(TypedDict):
    exercises: PageExercises
    said: dict[str, str]
    """Sentences of verdicts, with names in braces."""
    enough: float
    """The share of the weight from which a head is right."""
    programs: dict[str, ProgramKey]
    designs: dict[str, DesignKey]
    slips: dict[str, SlipKey]


def packed_key(lesson: Lesson) -> dict[str, Any] | None:
    """Return the views and the answer key of a lesson's exercises; None if the page can grade none of them."""
    names = dict.fromkeys(step["exercise"] for step in lesson["steps"] if step["exercise"] is not None)
    if not names:
        return None
    chosen = [EXERCISES[name] for name in names]
    key = json.dumps(answer_key(chosen, lesson["language"]), ensure_ascii=False, separators=(",", ":"))
    return {"views": sorted({str(view_of(each)) for each in chosen}), "key": deflate(key.encode())}


def answer_key(chosen: Sequence[Exercise], language: Language) -> AnswerKey:
    of_kind = {kind: [each for each in chosen if each.kind == kind] for kind in VIEWS}
    return {
        "exercises": AskExercises(language=language).listed(chosen),
        "said": {word: SAID[language][word] for word in WORDS},
        "enough": ENOUGH,
        "programs": {each.name: program_key(each, language) for each in (*of_kind["program"], *of_kind["mystery"])},
        "designs": {each.name: design_key(each) for each in of_kind["design"]},
        "slips": {each.name: slip_key(each, language) for each in of_kind["slip"]},
    }


def program_key(exercise: Exercise, language: Language) -> ProgramKey:
    texts, is_mystery = texts_of(exercise), exercise.kind == "mystery"
    mistakes: list[KnownMistake] = []
    for slip in exercise.slips:
        defined = run_code(slip.code, exercise.name)
        rows = [text_answer(defined["answer"], text) for text in texts]
        mistakes.append(
            {
                "said": slip.said[language],
                "rows": [row if isinstance(row, list) else None for row in rows],
                "edges": defined["edges"] if is_mystery else None,
            }
        )
    return {
        "texts": texts,
        "expected": [list(expected_of(exercise, text)) for text in texts],
        "mistakes": mistakes,
        "truth": sorted(make_mystery(exercise).truth) if is_mystery else None,
        "model": mystery_model(exercise) if is_mystery else None,
    }


def design_key(exercise: Exercise) -> DesignKey:
    checks = exercise.checks
    places = [[(words, place) for place in range(len(words))] for words in checks["sentences"]()]
    wanted = [[checks["targets"](*each) for each in row] for row in places]
    return {
        "targets": [[None if each is None else list(each) for each in row] for row in wanted],
        "results": [[list(checks["result"](*each)) for each in row] for row in places] if "result" in checks else None,
    }


def slip_key(exercise: Exercise, language: Language) -> SlipKey:
    made = SlipModel(exercise=exercise)
    trace = made.trace(made.texts[0])
    verdicts: dict[str, GradedAnswer] = {}
    for at in made.sites:
        steps = steps_of(trace, at)
        for step in (name for name in steps if name != "tokens"):
            for formula in list_repairs(step, steps):
                answer = {"where": lambda place=(at, step): place, "repair": write_repair(step, formula)}
                verdicts[f"{at} {step} {formula}"] = graded(check(exercise.name, answer, language=language))
    return {"numbers": [slip_numbers(exercise, text) for text in range(len(made.texts))], "verdicts": verdicts}
