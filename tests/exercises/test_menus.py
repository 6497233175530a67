"""Answers made by menus: every puzzle's own lines are right, every slip has a formula, and nothing else is read."""

import pytest

from clearhead.errors import OptionError, ProgramError
from clearhead.exercises import EXERCISES, check
from clearhead.exercises.checking import check_menus
from clearhead.exercises.exercise import run_code
from clearhead.exercises.menus import MOST_LINES, REPAIRS, list_repairs, write_program, write_repair
from clearhead.exercises.slips import EMBEDDING, STEPS, SlipModel, steps_of, trace_slip

BY_MENUS = [pytest.param(each, id=each.name) for each in EXERCISES.values() if each.menus]
SLIPS = [pytest.param(each, id=each.name) for each in EXERCISES.of_kind("slip")]


def test_nearly_all_puzzles_can_be_solved_by_menus():
    puzzles = {each.name for kind in ("program", "mystery") for each in EXERCISES.of_kind(kind)}
    assert puzzles - {param.id for param in BY_MENUS} == {"largest-so-far", "addition"}


@pytest.mark.parametrize("exercise", BY_MENUS)
def test_the_lines_of_a_solution_are_right(exercise):
    made = run_code(write_program(exercise.menus, exercise), exercise.name)
    assert check(exercise.name, {**run_code(exercise.solution, exercise.name), **made}).is_right


@pytest.mark.slow
def test_what_a_line_cannot_compute_is_said_in_the_words_of_menus():
    lines = ["select | tokens | indices | key < query", "aggregate | line 1 | tokens"]
    verdict = check_menus(EXERCISES["reverse"], lines)
    assert verdict.lines[0] == "For a: expected a, but it cannot be computed: line 1 does not fit its values"
    german = check_menus(EXERCISES["reverse"], ["select | tokens | tokens | True", lines[1]], language="de")
    assert german.lines[0] == (
        "Bei ab: erwartet b a, aber es lässt sich nicht berechnen: die gewählten Keys haben verschiedene Werte"
    )


@pytest.mark.slow
def test_a_mystery_is_graded_by_its_marked_edges_too():
    exercise = EXERCISES["mystery-1"]
    edges = run_code(exercise.solution, exercise.name)["edges"]
    assert check_menus(exercise, exercise.menus, edges=edges).is_right
    verdict = check_menus(exercise, exercise.menus, edges=edges[:1])
    assert verdict.lines == ("Edges: 1 of 2 found, 0 too many.", "The program is right.")
    wrong = check_menus(exercise, [exercise.menus[0], "width | line 1"], edges=edges)
    assert [name for name, _ in wrong.computed] == ["line_1", "answer"]


@pytest.mark.slow
def test_a_wrong_program_shows_what_each_line_computes():
    puzzle = EXERCISES["reverse"]
    lines = [line.replace("key == query - 1", "key == query") for line in puzzle.menus]
    verdict = check_menus(puzzle, lines)
    assert verdict.lines[0] == "For a: expected a, came –."
    assert verdict.lines[-1].startswith("It is one place too far")
    assert dict(verdict.computed) == {"line_1": "[0]", "line_2": "1", "line_3": "1", "line_4": "[]", "answer": "–"}
    right = check_menus(puzzle, puzzle.menus, language="de")
    assert (right.is_right, right.lines[0][:13]) == (True, "Daraus werden")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "has 1 to 20 lines; came 0"),
        (["width | line 1"] * (MOST_LINES + 1), "came 21"),
        (["import | os"], "line 1: 'import' is no operation; choose one of select, both, width"),
        (["width"], "line 1: width takes 1 choices; came 0"),
        (["select | tokens | tokens | __import__('os')"], r"line 1: .* is not in the menu: True, key == query"),
        (['select | tokens | tokens | key == "d"'], r'not in the menu: .*key == "a", key == "b", key == "c"'),
        (["width | line 1"], "line 1: 'line 1' is no selector of a line before; there is none yet"),
        (["select | tokens | tokens | True", "aggregate | line 1 | line 1"], "line 2: 'line 1' is no sequence"),
        (["aggregate | tokens | tokens"], "line 1: 'tokens' is no selector"),
    ],
)
def test_what_is_in_no_menu_is_refused_by_its_line(lines, said):
    with pytest.raises(ProgramError, match=said):
        write_program(lines, EXERCISES["reverse"])


def test_what_menus_do_not_have_is_refused_by_name():
    with pytest.raises(OptionError, match="addition is not solved by menus: first-token, length"):
        check_menus(EXERCISES["addition"], ["width | line 1"])


@pytest.mark.parametrize("exercise", SLIPS)
def test_one_formula_repairs_a_slip_and_no_other_does(exercise):
    at, step = SlipModel(exercise=exercise).place
    verdicts = {
        formula: check(exercise.name, {"where": lambda: (at, step), "repair": write_repair(step, formula)})
        for formula in list_repairs(step, steps_of(trace_slip(exercise), at))
    }
    assert [verdict.is_right for verdict in verdicts.values()].count(True) == 1
    assert {verdict.state for verdict in verdicts.values()} <= {"right", "not yet"}


def test_every_step_has_formulas_and_others_are_refused():
    assert set(REPAIRS) == {*STEPS, *EMBEDDING}
    with pytest.raises(OptionError, match=r"score: '1' is not in its menu: query @ key\.mT, "):
        write_repair("score", "1")


@pytest.mark.parametrize("joining", ["(a, b)", "a + b"])
def test_lines_that_double_twenty_times_are_refused_before_they_run(joining):
    lines = [f"combine | {joining} | {one} | {one}" for one in ("tokens", *(f"line {i}" for i in range(1, 20)))]
    with pytest.raises(ProgramError, match=r"line 8: uses lines before it in more than 500 ways"):
        write_program(lines, EXERCISES["reverse"])
