"""Every exercise: its solution passes, every slip fails with the words that fit, and a stub never passes."""

import itertools

import pytest

from clearhead.cli.learn import stub
from clearhead.errors import DataError
from clearhead.exercises import EXERCISES, check
from clearhead.exercises.comparing import same_row
from clearhead.exercises.exercise import LANGUAGES, read_exercise, run_code
from clearhead.exercises.judging import LONGEST, texts_of
from clearhead.rasp import run

WRITE, PROGRAM = EXERCISES.of_kind("write"), EXERCISES.of_kind("program")


def answer_of(exercise, code):
    defined = run_code(code, exercise.name)
    return defined["answer"] if exercise.kind == "program" else defined


def named(exercises):
    return [pytest.param(each, id=each.name) for each in exercises]


def outcome(program, text):
    """Return what a program gives for a text; None if it stops with an error, as one for other tokens may."""
    try:
        return run(program, text)
    except Exception:
        return None


def test_there_are_as_many_as_are_promised():
    assert len(WRITE) == 14
    assert len(PROGRAM) >= 24
    assert [len(EXERCISES.of_kind(kind)) for kind in ("design", "slip", "mystery")] == [5, 8, 5]


@pytest.mark.parametrize("exercise", named(EXERCISES.values()))
def test_the_solution_is_right(exercise):
    assert check(exercise.name, answer_of(exercise, exercise.solution)).is_right


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("exercise", named(EXERCISES.values()))
def test_every_slip_is_refused_with_its_own_words(exercise, language):
    assert len(exercise.slips) >= (2 if exercise.kind == "program" else 5)
    for slip in exercise.slips:
        verdict = check(exercise.name, answer_of(exercise, slip.code), language=language)
        assert verdict.state == "not yet"
        assert verdict.lines[-1] == slip.said[language]


@pytest.mark.parametrize("exercise", named(WRITE))
def test_a_function_that_does_nothing_is_empty(exercise):
    assert check(exercise.name, lambda *_: ...).state == "empty"
    assert check(exercise.name, lambda *_: None).state == "empty"


@pytest.mark.parametrize("exercise", named(each for each in EXERCISES.values() if each.kind != "write"))
def test_a_stub_is_empty(exercise, tmp_path):
    """As the command writes it, and with every function giving nothing."""
    defined = run_code(stub(exercise, "en"), exercise.name)
    assert check(exercise.name, defined).state == "empty"
    assert check(exercise.name, {}).state == "empty"


@pytest.mark.parametrize("exercise", named(EXERCISES.values()))
def test_both_languages_have_a_title_a_statement_and_as_many_hints(exercise):
    english, german = (exercise.tasks[language] for language in LANGUAGES)
    assert english.title
    assert english.asked != german.asked
    assert len(english.hints) == len(german.hints) > 0
    assert all(slip.said["en"] != slip.said["de"] for slip in exercise.slips)


@pytest.mark.parametrize("exercise", named(PROGRAM))
def test_other_puzzles_are_refused_with_the_shortest_text_that_tells_them_apart(exercise):
    """Five wrong answers each, checked against the definition, text by text, without the code that judges."""
    alphabet, fits = exercise.fact("alphabet"), exercise.checks.get("fits", lambda text: True)
    at = PROGRAM.index(exercise)
    for other in (PROGRAM[(at + 1 + i) % len(PROGRAM)] for i in range(5)):
        program = answer_of(other, other.solution)
        texts = ("".join(text) for n in range(1, LONGEST + 1) for text in itertools.product(alphabet, repeat=n))
        differs = (text for text in texts if fits(text) and outcome(program, text) != exercise.checks["expected"](text))
        verdict = check(exercise.name, program)
        assert verdict.state == "not yet"
        assert verdict.lines[0].startswith(f"For {next(differs)}: ")


def test_texts_are_all_there_are_the_shortest_first():
    texts = texts_of(EXERCISES["reverse"])
    assert len(texts) == sum(3**n for n in range(1, 7))
    assert [len(text) for text in texts] == sorted(len(text) for text in texts)
    assert len(set(texts)) == len(texts)


def test_rows_are_compared_by_value():
    assert same_row([1, True, None, "a"], [1.0, 1, None, "a"])
    assert not same_row([1, 2], [1])
    assert not same_row([None], [0])


def test_a_file_without_its_sections_says_which():
    with pytest.raises(
        DataError, match=r"mine\.md: expected an English section, a German one, # Checker and # Solution"
    ):
        read_exercise("alphabet: abc\n\n# Mine\nDo it.\n", name="mine", kind="program")


def test_a_line_that_is_missing_at_the_top_is_named():
    checker = "# Checker\n```python\nx = 1\n```\n"
    text = f"# A\na\n# B\nb\n{checker}# Solution\n```python\ny = 2  # not a title\n# nor this\n```\n"
    exercise = read_exercise(text, name="mine", kind="program")
    assert exercise.solution == "y = 2  # not a title\n# nor this\n"
    with pytest.raises(DataError, match=r"mine\.md: has no line `alphabet: …` at its top"):
        exercise.fact("alphabet")
