"""A lesson's page grades exercises as the library does: both are asked about the same right and wrong answers."""

import json
import random
import subprocess

import pytest

from clearhead.exercises import EXERCISES
from clearhead.exercises.designs import design_cases, design_roles
from clearhead.exercises.exercise import LANGUAGES, run_code
from clearhead.exercises.lesson import read_lesson, view_of
from clearhead.exercises.menus import OPERATIONS, list_repairs, menu_of
from clearhead.exercises.slips import SlipModel, steps_of
from clearhead.serve.answer_key import packed_key
from clearhead.serve.explorer import Explorer
from tests.serve.asking import ask

pytestmark = pytest.mark.slow
QUICK = ("reverse", "balanced", "mystery-2", "look-at-the-repeat", "mark-the-sentence", "slip-4")
IN_PAGE = [
    pytest.param(each, id=each.name, marks=[] if each.name in QUICK else [pytest.mark.thorough])
    for each in EXERCISES.values()
    if view_of(each) is not None
]
WRONG = 8
"""Answers that a solution is changed into, one choice or number at a time."""


@pytest.fixture
def both(documents, script, tmp_path):
    """Ask the explorer, and the page of a lesson with this exercise alone, and return both answers."""

    def answers(exercise, language, questions):
        lesson = read_lesson(f"# L\nlanguage: {language}\n## exercise {exercise.name}\n", where="lesson.md")
        (tmp_path / "page").write_text(json.dumps(packed_key(lesson)))
        (tmp_path / "requests").write_text("".join(json.dumps(one) + "\n" for one in questions))
        command = ["node", script, tmp_path / "page", tmp_path / "requests"]
        made = subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8")
        assert made.returncode == 0, made.stderr[-2000:]
        found = [json.loads(line) for line in made.stdout.rstrip("\n").split("\n")]
        assert [one["error"] for one in found if "error" in one] == []
        explorer = Explorer(documents)
        wanted = [json.loads(json.dumps(ask(explorer, name, asked))) for name, asked in questions]
        return [one["answer"] for one in found], wanted

    return answers


SELECTORS = ("select", "both")
ODD = (
    ["map | value - 1 | indices", "map | value % 2 | line 1"],
    ["map | value == 0 | indices", "map | value + 1 | indices", "combine | a == b | line 1 | line 2"],
    ["select | indices | indices | key < query", "map | float(value) | indices", "aggregate | line 1 | line 2"],
    [
        *("select | indices | indices | key == query - 1", "aggregate | line 1 | tokens"),
        *("select | line 2 | line 2 | True", "width | line 3"),
    ],
)
"""Programs that tell Python from JavaScript: the remainder of a negative number, True and 1, means of nothing, None."""


def programs_by_menus(exercise, random_of):
    """Yield the solution's lines, others that each differ in a choice, and lines that are chosen blindly."""
    lines = [line.split(" | ") for line in exercise.menus]
    yield exercise.menus
    for _ in range(WRONG):
        made = [[*line] for line in lines]
        at = random_of.randrange(len(made))
        where = random_of.randrange(1, len(made[at]))
        made[at][where] = blind_line(made[at][0], made[:at], exercise, random_of)[where]
        yield [" | ".join(line) for line in made]
    yield from ODD
    for _ in range(WRONG):
        made = [blind_line("select", [], exercise, random_of)]
        for operation in random_of.choices([*OPERATIONS], k=4):
            made.append(blind_line(operation, made, exercise, random_of))
        yield [" | ".join(line) for line in [*made, blind_line("aggregate", made, exercise, random_of)]]


def blind_line(operation, before, exercise, random_of):
    """Return a line with any choice for each of its slots."""
    named = {slot: [f"line {n}" for n, line in enumerate(before, 1) if (line[0] in SELECTORS) == (slot == "selector")]
             for slot in ("sequence", "selector")}  # fmt: skip
    named["sequence"] += ["tokens", "indices"]
    slots = OPERATIONS[operation][0]
    return [operation, *(random_of.choice(named.get(slot) or menu_of(slot, exercise)) for slot in slots)]


def answers_to(exercise, random_of):
    """Yield right and wrong answers, as the page sends them."""
    if exercise.kind == "design":
        for code in (exercise.solution, *(slip.code for slip in exercise.slips)):
            defined = run_code(code, exercise.name)
            roles = {role: [defined[role](*case) for case in design_cases(exercise)] for role in design_roles(exercise)}
            yield {"vectors": roles}
            moved = [
                [[number + random_of.gauss(0, 0.3) for number in row] for row in table] for table in roles.values()
            ]
            yield {"vectors": dict(zip(roles, moved, strict=True))}
    elif exercise.kind == "slip":
        made = SlipModel(exercise=exercise)
        trace = made.trace(made.texts[0])
        for at in made.sites:
            steps = steps_of(trace, at)
            for step in (name for name in steps if name != "tokens"):
                yield from ({"at": at, "step": step, "formula": one} for one in list_repairs(step, steps)[:2])
        at, step = made.place
        yield from ({"at": at, "step": step, "formula": one} for one in list_repairs(step, steps_of(trace, at)))
    else:
        edges = run_code(exercise.solution, exercise.name).get("edges", [])
        for number, lines in enumerate(programs_by_menus(exercise, random_of)):
            yield {"lines": [*lines]} | ({"edges": edges[number // 3 :] or None} if edges else {})
        for slip in exercise.slips if edges else ():
            yield {"lines": [*exercise.menus], "edges": run_code(slip.code, exercise.name)["edges"]}


@pytest.mark.parametrize("exercise", IN_PAGE)
def test_every_verdict_is_the_librarys(both, exercise):
    language = LANGUAGES[[*EXERCISES].index(exercise.name) % 2]
    answers = list(answers_to(exercise, random.Random(exercise.name)))
    questions = [["grade", {"name": exercise.name, "language": language, **answer}] for answer in answers]
    found, wanted = both(exercise, language, questions)
    assert {one["state"] for one in wanted} == {"right", "not yet"}
    for answer, page, library in zip(answers, found, wanted, strict=True):
        said = library["lines"]
        if exercise.kind == "program" and library["state"] == "right":
            assert page["lines"] == [], answer  # what it compiles into takes the compiler
        elif exercise.kind == "design":
            assert page["lines"] == said[:1], answer  # the vectors of known mistakes are not the page's
            assert page["credit"] == pytest.approx(library["credit"], abs=1e-9)
        else:
            assert page["lines"] == said, answer
        assert (page["state"], page["computed"]) == (library["state"], library["computed"]), answer


@pytest.mark.parametrize("name", ["reverse", "slip-2", "look-back", "mystery-1"])
def test_what_is_shown_is_the_librarys(both, name):
    exercise = EXERCISES[name]
    questions = [["exercises", {"language": "de"}]]
    questions += [["slip", {"name": name, "text": 2}]] if exercise.kind == "slip" else []
    questions += [["mystery", {"name": name}]] if exercise.kind == "mystery" else []
    (listed, *found), (all_there_are, *wanted) = both(exercise, "de", questions)
    assert found == wanted
    lists = ("puzzles", "goals", "slips", "mysteries")
    [[shown]] = [listed[kind] for kind in lists if listed[kind]]
    assert shown in [each for kind in lists for each in all_there_are[kind]]
    assert {word: listed[word] for word in ("operations", "most")} == {
        word: all_there_are[word] for word in ("operations", "most")
    }
