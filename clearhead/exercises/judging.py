"""Judging answers of every kind: functions, puzzles, slips, designs and mysteries.

An answer is asked for by name (`Ask`): in this process, or in one with bounds. What is right is computed here.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from clearhead.exercises.answers import COSTS, Answer, call_answer, pack, text_answer, unpack
from clearhead.exercises.comparing import (
    SAID,
    SHOWN,
    describe,
    describe_costs,
    describe_shape,
    first_difference,
    same_row,
    show_row,
)
from clearhead.exercises.designs import (
    ENOUGH,
    design_cases,
    design_roles,
    grade_design,
    odd_vector,
    read_vectors,
    same_head,
)
from clearhead.exercises.error_hints import explain_error
from clearhead.exercises.exercise import Exercise, Language, Slip, run_code
from clearhead.exercises.mysteries import make_mystery
from clearhead.exercises.slips import SlipModel, output_with, read_place, slip_cases, sound_output
from clearhead.exercises.verdict import Verdict
from clearhead.rasp.interpreter import run
from clearhead.tracing.names import list_near

LONGEST, ALPHABET = 6, 4
"""Puzzles are tried with every text up to so many tokens, of an alphabet of at most so many."""
FEW = 12
"""Arguments of at most so many numbers are shown with the case in which a function is wrong."""

Calls = Mapping[str, Sequence[Sequence[Any]]]
Ask = Callable[[Calls], dict[str, list[Answer]]]
"""Gives, for each function that is named, its answers to these calls."""
LinesFor = Callable[[str], list[tuple[str, Any]]]
"""Gives what each named line of a program computes for a text."""


def ask_here(defined: Mapping[str, Any]) -> Ask:
    """Return how functions that are here are asked."""

    def ask(calls: Calls) -> dict[str, list[Answer]]:
        return {
            name: [call_answer(defined[name], list(call)) if name in defined else {"missing": True} for call in each]
            for name, each in calls.items()
        }

    return ask


def not_yet(exercise: Exercise, language: Language, *lines: str, credit: float | None = None) -> Verdict:
    return Verdict(name=exercise.name, state="not yet", lines=lines, language=language, credit=credit)


def same_mistake(exercise: Exercise, calls: Calls, answers: Mapping[str, Sequence[Answer]]) -> Slip | None:
    """Return the known mistake whose functions give the same answers to these calls."""
    for slip in exercise.slips:
        theirs = ask_here(run_code(slip.code, exercise.name))(calls)
        pairs = ((one, other) for name in calls for one, other in zip(theirs[name], answers[name], strict=True))
        if all(same_answer(one, other) for one, other in pairs):
            return slip
    return None


def function_name(exercise: Exercise) -> str:
    return exercise.fact("function").partition("(")[0]


def cases_of(exercise: Exercise) -> list[tuple[str, tuple[Any, ...]]]:
    """Return what an exercise in writing is tried with: what it is called, and the arguments."""
    return list(exercise.checks["cases"]())


def judge_function(exercise: Exercise, answers: Sequence[Answer], language: Language) -> Verdict:
    """Compare each result with what is right, cell by cell, and stop at the first that differs."""
    for (given, call), answer in zip(cases_of(exercise), answers, strict=True):
        if (none := without_values(exercise, answer, language)) is not None:
            return replace(none, lines=(*none.lines, *call_line(exercise, call, language))) if none.lines else none
        expected, named = pack(exercise.checks["expected"](*call)), given.split(" | ")[0 if language == "en" else -1]
        problem = first_difference(expected, answer["values"], named, language)
        if problem is not None:
            name = function_name(exercise)
            slip = same_mistake(exercise, {name: [call for _, call in cases_of(exercise)]}, {name: answers})
            said = [] if slip is None else [slip.said[language]]
            return not_yet(exercise, language, problem, *call_line(exercise, call, language), *said)
    return Verdict(name=exercise.name, state="right", language=language)


def call_line(exercise: Exercise, call: Sequence[Any], language: Language) -> Iterator[str]:
    """Yield what a function was called with, so that the case can be computed by hand: numbers if they are few."""
    names = exercise.fact("function").partition("(")[2].rstrip(")").split(", ")
    shown = [f"{name} {show_argument(value)}" for name, value in zip(names, call, strict=True)]
    yield SAID[language]["called"].format(arguments="; ".join(shown))


def show_argument(value: Any) -> str:
    """Return a number, a small matrix as Python writes it, the shape of a large one, or the names of a dict."""
    if isinstance(value, dict):
        return "{" + ", ".join(value) + "}"
    if not isinstance(value, Tensor):
        return f"= {value}"
    if value.numel() > FEW:
        return f"({describe_shape(tuple(value.shape))})"
    return f"= {show_cells(value.tolist())}"


def show_cells(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(show_cells, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def without_values(exercise: Exercise, answer: Answer, language: Language) -> Verdict | None:
    if "missing" in answer:
        return Verdict(name=exercise.name, state="empty", language=language)
    if "error" in answer:
        return Verdict(
            name=exercise.name,
            state="failed",
            lines=(answer["error"], *explain_error(answer["error"], language)),
            language=language,
        )
    return None


def same_answer(one: Answer, other: Answer) -> bool:
    if "values" not in one or "values" not in other:
        return one.keys() == other.keys()
    return one["values"] == other["values"] or first_difference(one["values"], other["values"], "", "en") is None


def judge_slip(exercise: Exercise, ask: Ask, language: Language) -> Verdict:
    """Judge where an answer sees the slip, and the output of the model with the step that it computes."""
    [where] = ask({"where": [()]})["where"]
    if (none := without_values(exercise, where, language)) is not None:
        return none
    made, said, named = SlipModel(exercise=exercise), SAID[language], read_place(exercise, where["values"])
    if named is None:
        places = ", ".join(made.sites)
        return not_yet(exercise, language, said["no place"].format(came=describe(where["values"]), places=places))
    calls = {"repair": [(steps,) for steps in slip_cases(exercise, named)]}
    answers = {"where": [where], **ask(calls)}
    slip = same_mistake(exercise, {"where": [()], **calls}, answers)
    if slip is None and named != made.place:  # at a sound place, what `repair` does there makes no difference
        slip = same_mistake(exercise, {"where": [()]}, answers)
    hints = [] if slip is None else [slip.said[language]]
    if named != made.place:
        return not_yet(exercise, language, said["sound"].format(at=named[0], step=named[1]), *hints)
    for text, answer in zip(made.texts, answers["repair"], strict=True):
        if (none := without_values(exercise, answer, language)) is not None:
            return none
        value = unpack(answer["values"])
        none = f"`repair`: {describe(answer['values'])}"
        came = output_with(exercise, text, value) if isinstance(value, Tensor) else none
        sound = pack(sound_output(exercise, text))
        problem = first_difference(sound, pack(came), f"“{text}”", language) if isinstance(came, Tensor) else came
        if problem is not None:
            return not_yet(exercise, language, problem, *hints)
    line = said["repaired"].format(step=made.place[1], count=len(made.texts))
    return Verdict(name=exercise.name, state="right", lines=(line,), language=language)


def judge_design(exercise: Exercise, ask: Ask, language: Language) -> Verdict:
    """Judge a head on every sentence: right if each query puts enough weight on its targets; else credit is given."""
    said = SAID[language]
    calls = {role: design_cases(exercise) for role in design_roles(exercise)}
    answers = ask(calls)
    for role, given in answers.items():
        for answer in given:
            if (none := without_values(exercise, answer, language)) is not None:
                return none
        if read_vectors(exercise, given) is None:
            (word, place), came = odd_vector(exercise, given)
            facts = {"role": role, "word": word, "place": place, "came": f"{came!r:.{SHOWN}}"}
            return not_yet(exercise, language, said["no vectors"].format(**facts))
    vectors = {role: read_vectors(exercise, given) for role, given in answers.items()}
    widths = {role: len(next(iter((each or {}).values()))) for role, each in vectors.items()}
    if widths["query"] != widths["key"]:
        return not_yet(exercise, language, said["widths"].format(query=widths["query"], key=widths["key"]))
    credit, worst = grade_design(exercise, vectors)
    facts = {"credit": f"{credit:.0%}", "word": worst.sentence[worst.place], "text": " ".join(worst.sentence)}
    if worst.share >= ENOUGH:
        lines = (said["designed"].format(**facts),)
        return Verdict(name=exercise.name, state="right", lines=lines, language=language, credit=credit)
    line = said["credit" if worst.output is None else "output"].format(
        **facts, share=f"{worst.share:.0%}", output=show_numbers(worst.output), wanted=show_numbers(worst.wanted)
    )
    slip = same_mistake(exercise, calls, answers) or same_design(exercise, calls, vectors)
    return not_yet(exercise, language, line, *([] if slip is None else [slip.said[language]]), credit=credit)


def same_design(exercise: Exercise, calls: Calls, vectors: dict[str, Any]) -> Slip | None:
    """Return the known mistake whose head does the same by other vectors; else one that looks at the same places."""
    known = []
    for slip in exercise.slips:
        theirs = ask_here(run_code(slip.code, exercise.name))(calls)
        known.append((slip, {role: read_vectors(exercise, given) for role, given in theirs.items()}))
    same = (
        slip
        for by_places in (False, True)
        for slip, theirs in known
        if same_head(exercise, vectors, theirs, by_places=by_places)
    )
    return next(same, None)


def show_numbers(numbers: Sequence[float] | None) -> str:
    return f"[{', '.join(f'{number:.2f}' for number in numbers or ())}]"


def judge_mystery(
    exercise: Exercise, answer: Answer, language: Language, *, lines_for: LinesFor | None = None
) -> Verdict:
    """Judge the edges that an answer marks against the true ones, and its program on every text."""
    said, found, edges = SAID[language], make_mystery(exercise), answer.get("edges")
    none = without_values(exercise, answer, language)
    if none is not None and (none.state == "failed" or not edges):
        return none
    if not isinstance(edges, list) or not all(isinstance(edge, str) for edge in edges):
        return not_yet(exercise, language, said["no edges"])
    if unknown := [edge for edge in edges if edge not in found.edges]:
        near = list_near(unknown[0], found.edges)
        return not_yet(exercise, language, said["unknown edge"].format(edge=unknown[0], near=near))
    marked = set(edges)
    right, extra = marked & found.truth, sorted(marked - found.truth)
    counted = said["edges"].format(right=len(right), true=len(found.truth), extra=len(extra))
    lines = [] if marked == found.truth else [counted, *(said["extra edge"].format(edge=edge) for edge in extra[:1])]
    if none is not None:
        return not_yet(exercise, language, *(lines or [counted]), said["no program"])
    written = judge_program(exercise, answer, language, lines_for=lines_for)
    if written.is_right:
        state, told = ("not yet", [*lines, said["program"]]) if lines else ("right", [counted])
        slip = find_program_slip(exercise, texts_of(exercise), answer["values"], edges=marked) if lines else None
        told += [] if slip is None else [slip.said[language]]
        return Verdict(name=exercise.name, state=state, lines=tuple(told), language=language)
    slip = find_program_slip(exercise, texts_of(exercise), answer["values"], edges=marked)
    lines += [*written.lines, *([] if slip is None else [slip.said[language]])]
    return replace(not_yet(exercise, language, *lines), computed=written.computed)


def texts_of(exercise: Exercise) -> list[str]:
    """Return every text that a puzzle is tried with, the shortest first."""
    alphabet, fits = exercise.fact("alphabet"), exercise.checks.get("fits", lambda text: True)
    lengths = range(1, LONGEST + 1)
    texts = ("".join(text) for n in lengths for text in itertools.product(alphabet, repeat=n))
    return [text for text in texts if fits(text)]


def expected_of(exercise: Exercise, text: str) -> Sequence[Any]:
    """Return what is right for a text: of a mystery, what its program computes."""
    checks = exercise.checks
    return checks["expected"](text) if "expected" in checks else run(checks["program"], text)


def judge_program(
    exercise: Exercise, answer: Answer, language: Language, *, lines_for: LinesFor | None = None
) -> Verdict:
    """Compare a program with what is right on every text; the shortest on which they differ is shown."""
    if (none := without_values(exercise, answer, language)) is not None:
        return none
    texts = texts_of(exercise)
    for text, values in zip(texts, answer["values"], strict=True):
        if not same_row(right := expected_of(exercise, text), values):
            lines = list(counter_example(text, right, values, language))
            computed = tuple(describe_lines(lines_for(text))) if lines_for is not None else ()
            lines += ["  " + SAID[language]["line"].format(name=name, values=shown) for name, shown in computed]
            slip = None
            if isinstance(name := answer.get("read"), str):  # its values may be those of a mistake that it is not
                lines.append(SAID[language]["read"].format(name=name[:SHOWN]))
            elif exercise.kind == "program":
                slip = find_program_slip(exercise, texts, answer["values"])
            said = not_yet(exercise, language, *lines, *([] if slip is None else [slip.said[language]]))
            return replace(said, computed=computed)
    return Verdict(
        name=exercise.name, state="right", lines=tuple(describe_cost(exercise, answer, language)), language=language
    )


def counter_example(text: str, expected: Sequence[Any], came: Any, language: Language) -> Iterator[str]:
    if isinstance(came, dict):
        yield SAID[language]["stops"].format(given=text, expected=show_row(expected), came=came["error"])
        yield from explain_error(came["error"], language)
        return
    right, theirs = show_row(expected), show_row(came)
    if right == theirs:  # the token 0 and the number 0
        right, theirs = (
            " ".join(repr(value) if isinstance(value, str) else show_row([value]) for value in row)
            for row in (expected, came)
        )
    yield SAID[language]["text"].format(given=text, expected=right, came=theirs)


def describe_lines(lines: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each named line of an answer, and what it computed."""
    for name, values in lines:
        yield name, values if isinstance(values, str) else show_values(values)


def show_values(values: Sequence[Any]) -> str:
    """Return a row of values; of a selector the keys that each query chooses, in brackets."""
    selector = bool(values) and all(isinstance(value, list) for value in values)
    return " ".join(f"[{show_row(value)}]" for value in values) if selector else show_row(values)


def find_program_slip(
    exercise: Exercise, texts: Sequence[str], came: Sequence[Any], *, edges: set[str] | None = None
) -> Slip | None:
    for slip in exercise.slips:
        defined = run_code(slip.code, exercise.name)
        if edges is not None and set(defined["edges"]) != edges:
            continue
        program = defined["answer"]
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
    elif cost is not None and "best" in exercise.facts:
        best: dict[str, int] = dict(zip(COSTS, map(int, exercise.fact("best").split()), strict=True))
        case = "cost"
        if all(cost[name] <= best[name] for name in COSTS):
            case = "best" if cost == best else "better"
        facts = {"cost": describe_costs(cost, language), "best": describe_costs(best, language)}
        yield SAID[language][case].format(**facts)
