"""Checking: the first cell that differs is named, with torch and with numpy, and nothing near infinity passes."""

import numpy as np
import pytest
import torch

from clearhead.errors import OptionError
from clearhead.exercises import EXERCISES, check, hint, solution
from clearhead.exercises.checking import check_file, check_functions
from clearhead.exercises.comparing import same_number
from clearhead.exercises.exercise import run_code


def test_numpy_answers_are_given_arrays(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\n\n\ndef softmax(scores):\n    assert isinstance(scores, np.ndarray)\n"
        "    powers = np.exp(scores - scores.max(-1, keepdims=True))\n"
        "    return powers / powers.sum(-1, keepdims=True)\n"
    )
    assert [verdict.is_right for verdict in check_functions([EXERCISES["softmax"]], path)] == [True]


def test_the_first_cell_that_differs_is_named():
    def scores(query, key):
        result = query @ key.T
        result[1, 2] += 1
        return result

    verdict = check("scores", scores)
    assert verdict.lines[0].startswith("Given 3 queries and 4 keys, at row 1, column 2: expected ")


def test_a_wrong_shape_is_named():
    verdict = check("scores", lambda query, key: torch.zeros(2, 2))
    assert verdict.lines[0] == "Given 3 queries and 4 keys: expected the shape 3 x 4, came 2 x 2."


@pytest.mark.parametrize("wrong", [0.0, -1e300, float("inf"), float("nan")])
def test_nothing_but_minus_infinity_is_minus_infinity(wrong):
    assert not same_number(float("-inf"), wrong)
    assert same_number(float("-inf"), float("-inf"))


def test_an_answer_that_is_a_little_off_is_refused():
    assert not check("softmax", lambda scores: torch.softmax(scores, -1) * 1.00001).is_right
    assert check("softmax", lambda scores: torch.softmax(scores, -1)).is_right


def test_an_error_of_the_answer_is_its_verdict():
    verdict = check("scale", lambda scores, d: scores.missing)
    assert verdict.state == "failed"
    assert "AttributeError: 'Tensor' object has no attribute 'missing'" in verdict.lines[0]


@pytest.mark.parametrize(
    ("wrong", "came"),
    [
        ("14", "came '14'"),
        ({"a": 1}, "came a dict"),
        ([], "came 0 results"),
        (np.array(["x"]), "came <U1"),
        (torch.tensor([1j]), "came complex64"),
        ({1, 2}, "came a set"),
        ((n for n in "ab"), "came a generator"),
        (torch.ones(2).sum, "came sum, which is called by ()"),
        (10**400, "came a number of 1329 bits"),
    ],
)
def test_what_is_no_number_is_refused_in_a_sentence(wrong, came):
    verdict = check("dot-product", lambda a, b: wrong)
    assert not verdict.is_right
    assert "expected " in verdict.lines[0]
    assert came in verdict.lines[0]


def test_several_results_are_compared_one_by_one():
    verdict = check("kv-cache", lambda x, keys, values, *_: (x, keys))
    assert verdict.lines[0].startswith("Given a cache of 3 tokens: expected 3 results, came 2 results")


def test_a_puzzle_takes_a_program():
    assert check("reverse", lambda text: text[::-1]).state == "empty"


def test_a_name_that_is_none_says_which_is_near():
    with pytest.raises(OptionError, match=r"there is no exercise 'revers'\. Did you mean 'reverse'\?$"):
        hint("revers")
    with pytest.raises(OptionError, match=r"there is no exercise 'xyz'; clearhead learn list shows them all"):
        hint("xyz")


def test_hints_end_with_the_last():
    assert hint("reverse", 9) == hint("reverse", 2) != hint("reverse", 1)
    assert hint("reverse", language="de").startswith("Welche Stelle")
    assert "softmax" in solution("softmax")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["slip-2", "slip-6", "look-back", "copy-the-adjective", "mystery-2", "reverse", "scale"]
)
def test_an_answer_in_a_file_is_judged_as_one_that_is_here(name, tmp_path):
    exercise, path = EXERCISES[name], tmp_path / "mine.py"
    for code in (exercise.solution, exercise.slips[0].code):
        path.write_text(code)
        defined = run_code(code, name)
        here = check(name, defined["answer"] if exercise.kind == "program" else defined)
        there = check_file(exercise, path)
        assert there.state == here.state
        assert there.lines[-1:] == here.lines[-1:] or exercise.kind == "program"


def test_what_a_function_was_called_with_is_shown_so_that_the_case_can_be_computed():
    small = check("scale", lambda scores, d: scores / d)
    assert small.lines[1] == "It was called with scores = [[2, -1]]; d = 4."
    hidden = check("softmax", lambda scores: scores if scores.isinf().any() else torch.softmax(scores, -1))
    assert hidden.lines[1] == "It was called with scores = [[0.5, -inf, 1]]."
    large = check("scores", lambda query, key: key @ query.T, language="de")
    assert large.lines[1] == "Aufgerufen wurde sie mit query (3 x 5); key (4 x 5)."
    block = check("block", lambda x, w, n_heads: x)
    assert block.lines[1].startswith("It was called with x (4 x 6); w {w_q, w_k, w_v, w_o, gamma_1, ")
    assert block.lines[1].endswith("}; n_heads = 2.")


def test_one_of_several_results_is_counted_from_one():
    def step(x, keys, *rest):
        return x, torch.zeros(len(keys) + 1, 4), rest[0]

    def first_right(*arguments):
        return EXERCISES["kv-cache"].checks["expected"](*arguments)[0], *step(*arguments)[1:]

    assert check("kv-cache", step).lines[0].startswith("Given a cache of 3 tokens, result 1 of 3, at place 0: ")
    german = check("kv-cache", first_right, language="de").lines[0]
    assert german.startswith("Mit einem Cache von 3 Token, Ergebnis 2 von 3, bei Zeile 0, Spalte 0: ")
