"""Exercises in the page: graded as on the command line, by menus and numbers alone."""

import random

import pytest

from clearhead.errors import ClearheadError
from clearhead.exercises import EXERCISES, check, mystery
from clearhead.exercises.designs import design_cases, design_roles
from clearhead.exercises.exercise import run_code
from clearhead.exercises.slips import SlipModel, logits_of, steps_of
from clearhead.serve.explorer import Explorer
from tests.serve.asking import ask


@pytest.fixture
def asked(documents):
    return lambda question, **fields: ask(Explorer(documents), question, fields)


def vectors_of(exercise, code):
    """Return the vectors of an answer in code, as the page sends them."""
    defined = run_code(code, exercise.name)
    return {role: [defined[role](*case) for case in design_cases(exercise)] for role in design_roles(exercise)}


def test_what_can_be_solved_in_the_page_is_listed(asked):
    found = asked("exercises", language="de")
    assert [each["asked"]["name"] for each in found["puzzles"]][:3] == ["first-token", "length", "last-token"]
    assert found["puzzles"][5]["asked"]["title"] == "Rückwärts"
    assert 'key == "c"' in found["puzzles"][5]["menus"]["predicate"]
    assert [goal["outputs"] for goal in found["goals"]] == [0, 0, 0, 3, 1]
    assert [each["name"] for each in found["slips"]] == [each.name for each in EXERCISES.of_kind("slip")]


@pytest.mark.slow
def test_a_puzzle_is_graded_as_on_the_command_line(asked):
    lines = list(EXERCISES["reverse"].menus)
    assert asked("grade", name="reverse", lines=lines)["state"] == "right"
    wrong = asked("grade", name="reverse", lines=[*lines[:-1], "aggregate | line 4 | indices"])
    assert wrong["state"] == "not yet"
    assert wrong["lines"][0] == "For a: expected a, came 0."
    assert wrong["computed"][-1] == ("answer", "0")


@pytest.mark.parametrize("exercise", EXERCISES.of_kind("design"), ids=lambda each: each.name)
def test_a_head_is_graded_as_on_the_command_line(asked, exercise):
    for code in (exercise.solution, exercise.slips[0].code):
        told = check(exercise.name, run_code(code, exercise.name), language="de")
        graded = asked("grade", name=exercise.name, language="de", vectors=vectors_of(exercise, code))
        assert (graded["state"], graded["lines"], graded["credit"]) == (told.state, [*told.lines], told.credit)
        assert 0 <= graded["credit"] <= 1


@pytest.mark.parametrize("exercise", EXERCISES.of_kind("slip"), ids=lambda each: each.name)
def test_a_slip_is_shown_and_repaired(asked, exercise):
    made = SlipModel(exercise=exercise)
    shown = asked("slip", name=exercise.name, text=1)
    assert shown["logits"] == logits_of(made.trace(made.texts[1])).tolist()
    at, step = made.place
    [site] = [site for site in shown["sites"] if site["at"] == at]
    assert [one["name"] for one in site["steps"]] == list(steps_of(made.trace(made.texts[1]), at))[1:]
    [formulas] = [one["formulas"] for one in site["steps"] if one["name"] == step]
    graded = [asked("grade", name=exercise.name, at=at, step=step, formula=formula)["state"] for formula in formulas]
    assert graded.count("right") == 1
    elsewhere = asked("grade", name=exercise.name, at=made.sites[1], step="context", formula="weight @ value")
    assert "the slip is not there" in elsewhere["lines"][0]


@pytest.mark.parametrize("name", ["mystery-1", pytest.param("mystery-5", marks=pytest.mark.thorough)])
def test_what_an_edge_of_a_mystery_changes_is_what_patching_it_changes(asked, name):
    """Every true edge changes something, and what is not listed changes nothing, of edges and texts drawn at random."""
    found, shown, generator = mystery(name), asked("mystery", name=name), random.Random(0)
    listed = {change[:3]: shown["changed"][change[3]] for change in shown["changes"]}
    assert {shown["edges"][edge] for edge, *_ in listed} == found.truth
    drawn = [(generator.randrange(len(found.edges)), *generator.choices(range(12, 39), k=2)) for _ in range(60)]
    for edge, text, other in [*drawn, *generator.sample(sorted(listed), 60)]:
        answer = found.patch(shown["texts"][text], shown["texts"][other], [found.edges[edge]])
        assert answer == listed.get((edge, text, other), shown["answers"][text])


def test_a_mystery_is_graded_by_its_edges_and_its_program(asked):
    exercise = EXERCISES["mystery-1"]
    edges = run_code(exercise.solution, exercise.name)["edges"]
    assert asked("grade", name=exercise.name, lines=list(exercise.menus), edges=edges)["state"] == "right"
    assert asked("grade", name=exercise.name, lines=list(exercise.menus))["lines"] == [
        "Edges: 0 of 2 found, 0 too many.",
        "The program is right.",
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "reverse", "lines": ["eval | 1"]}, "line 1: 'eval' is no operation"),
        ({"name": "reverse"}, "a program by menus has 1 to 20 lines; came 0"),
        ({"name": "reverse", "lines": ["x" * 100]}, "100 characters; 80 at most"),
        ({"name": "revers", "lines": ["width"]}, "Did you mean 'reverse'"),
        ({"name": "softmax"}, "softmax is no slip; there are slip-1"),
        ({"name": "look-at-blue", "vectors": {"query": [[1.0]]}}, "expected a vector of each role for each of 1"),
        ({"name": "look-at-blue", "vectors": {"query": [["1"]]}}, "expected lists of up to 32 finite numbers"),
        ({"name": "look-at-blue", "vectors": {"query": [[1.0] * 33]}}, "expected lists of up to 32 finite numbers"),
        ({"name": "slip-1", "at": "decoder.0.attention", "step": "score", "formula": "1"}, "is not in its menu"),
    ],
)
def test_what_is_in_no_menu_is_refused_in_a_sentence(asked, fields, said):
    with pytest.raises(ClearheadError, match=said):
        asked("grade", **fields)
