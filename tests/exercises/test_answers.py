"""Running answers: hostile code ends at its bounds, and cannot change its own grade."""

import os
from dataclasses import replace

import pytest

from clearhead.exercises import EXERCISES, answers
from clearhead.exercises.checking import check_file, check_functions


@pytest.fixture(autouse=True)
def short_bounds(monkeypatch):
    monkeypatch.setattr(answers, "BOUNDS", replace(answers.BOUNDS, seconds=2, memory=300_000_000, output=100_000))


def verdict_of(tmp_path, source, name="dot-product"):
    path = tmp_path / "mine.py"
    path.write_text(source)
    return check_file(EXERCISES[name], path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("while True: pass", "was given up after 2 s of work"),
        ("return [0] * 10**10", "memory|MemoryError"),
        ("return list(range(1000000))", "gives more than 0.1 MB at once"),
        ("import os; os._exit(0)", "broke down"),
        ("input()", "EOFError"),
    ],
)
def test_an_answer_ends_at_its_bounds(tmp_path, body, message):
    verdict = verdict_of(tmp_path, f"def dot_product(a, b):\n    {body}\n")
    assert verdict.state == "failed"
    assert any(part in verdict.lines[0] for part in message.split("|"))


@pytest.mark.slow
def test_functions_before_one_that_hangs_are_still_right(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def dot_product(a, b):\n    return a @ b\n\ndef scores(query, key):\n    while True: pass\n")
    verdicts = list(check_functions(EXERCISES.of_kind("write"), path))
    assert [verdict.state for verdict in verdicts] == ["right", "failed"]


@pytest.mark.slow
def test_a_program_that_hangs_has_a_verdict(tmp_path):
    source = "from clearhead.rasp import map, tokens\n\nanswer = map(lambda token: [1 for _ in iter(int, 1)], tokens)\n"
    verdict = verdict_of(tmp_path, source, "reverse")
    assert verdict.state == "failed"
    assert "was given up after 2 s of work" in verdict.lines[0]


def test_a_program_of_values_that_are_none_is_refused(tmp_path):
    verdict = verdict_of(
        tmp_path, "from clearhead.rasp import map, tokens\n\nanswer = map(lambda t: {t}, tokens)\n", "reverse"
    )
    assert verdict.lines[0].startswith(
        "For a: expected a, but it cannot be computed: TypeError: expected numbers, a tensor or an array; came a set"
    )


FORGED = (
    "5",
    '["value"]',
    '["value", 3]',
    '["value", [{"values": {"shape": "x", "numbers": [14]}}]]',
    '["value", [{"values": {"shape": [], "numbers": ["14"]}}, {}]]',
    '["raised", ["os", "x"]]',
    '["raised", ["WordError", "x"]]',
    '["raised", 3]',
    '["end", null]',
    "[" * 90_000,
    '["value", [{"values": 1' + "0" * 400 + "}, 1]]",
)


@pytest.mark.slow
@pytest.mark.parametrize("frame", FORGED, ids=range(len(FORGED)))
@pytest.mark.parametrize("name", ["dot-product", "reverse"])
def test_what_an_answer_writes_to_the_pipe_itself_is_refused_in_a_sentence(tmp_path, frame, name):
    """Every descriptor gets the frame, so that which one is the pipe need not be known."""
    source = f"""
import contextlib, os, struct
from clearhead.bounds import write_frame

for number in range(3, 20):
    with contextlib.suppress(OSError), os.fdopen(os.dup(number), "wb") as pipe:
        write_frame(pipe, {frame!r}.encode())
os._exit(0)
"""
    verdict = verdict_of(tmp_path, source, name)
    assert not verdict.is_right
    assert verdict.lines or verdict.state == "empty"


def test_an_answer_that_changes_the_checker_changes_nothing(tmp_path):
    source = """
import clearhead.exercises.checking as checking
import clearhead.exercises.answers as answers

checking.first_difference = lambda *_: None
answers.pack = lambda value: 14.0


def dot_product(a, b):
    return 14.0
"""
    assert verdict_of(tmp_path, source).state == "not yet"


def test_an_answer_writes_no_file(tmp_path):
    target = tmp_path / "written"
    source = f"with open({str(target)!r}, 'w') as file:\n    file.write('x')\n"
    verdict = verdict_of(tmp_path, source)
    assert verdict.lines[0].startswith(("line 1: PermissionError: [Errno 1]", "line 1: OSError: [Errno 27]"))
    assert not target.exists() or target.read_text() == ""  # without the filter it is empty


def test_each_answer_has_a_process_of_its_own(tmp_path):
    source = "import os\n\ndef dot_product(a, b):\n    return float(os.getpid())\n"
    said = [verdict_of(tmp_path, source).lines[0].rpartition("came ")[2] for _ in range(2)]
    assert said[0] != said[1]
    assert str(os.getpid()) not in said[0]


def test_a_syntax_error_names_its_line(tmp_path):
    verdict = verdict_of(tmp_path, "import torch\n\ndef dot_product(a, b:\n")
    assert verdict.state == "failed"
    assert verdict.lines[0].startswith("line 3: SyntaxError")


def test_a_program_shows_what_each_line_computed(tmp_path):
    source = """
from clearhead.rasp import aggregate, indices, select, selector_width, tokens

everything = select(tokens, tokens, lambda key, query: True)
length = selector_width(everything)
answer = aggregate(select(indices, length - indices, lambda key, query: key == query), tokens)
"""
    verdict = verdict_of(tmp_path, source, "reverse")
    assert verdict.lines[:2] == ("For a: expected a, came –.", "  everything = [0]")
    assert verdict.lines[2] == "  length = 1"


def test_a_right_program_says_what_it_compiles_into(tmp_path):
    verdict = verdict_of(tmp_path, EXERCISES["reverse"].solution, "reverse")
    assert verdict.lines == ("It compiles into 4 layers, 2 heads, 5 operations. No better one is known.",)
    assert EXERCISES["reverse"].fact("best") == "4 2 5"


def test_a_program_s_cost_is_compared_with_the_best_known_and_one_of_a_kind_is_singular(tmp_path):
    longer = EXERCISES["first-token"].solution + "answer = map(lambda token: token, answer)\n"
    assert verdict_of(tmp_path, longer, "first-token").lines == (
        "It compiles into 1 layer, 1 head, 4 operations; the best known: 1 layer, 1 head, 3 operations.",
    )
    puzzle = replace(EXERCISES["first-token"], facts={"alphabet": "abc", "best": "2 1 4"})
    (tmp_path / "mine.py").write_text(puzzle.solution)
    assert check_file(puzzle, tmp_path / "mine.py", language="de").lines == (
        "Daraus werden 1 Schicht, 1 Kopf, 3 Operationen. Das ist besser als das bisher Beste: "
        "2 Schichten, 1 Kopf, 4 Operationen.",
    )


@pytest.mark.parametrize("code", ["key == length - 1", "key == query and length", "(lambda place: key == length)(0)"])
def test_a_sequence_that_a_function_reads_is_named(tmp_path, code):
    """It raises nothing: a comparison with a sequence is just never true, and a sequence itself always."""
    source = f"""
from clearhead.rasp import *

length = selector_width(select(tokens, tokens, lambda key, query: True))
answer = aggregate(select(indices, indices, lambda key, query: {code}), tokens)
"""
    said = "A function there reads `length`, which is a sequence"
    said_last = verdict_of(tmp_path, source, "last-token").lines[-1]
    looked_into = not code.startswith("(lambda")  # a function inside a function is not
    assert said_last.startswith(said) == looked_into
    right = EXERCISES["last-token"].solution.replace("True", "length is not None")
    assert verdict_of(tmp_path, right, "last-token").is_right


def test_a_program_that_does_not_compile_is_still_right(tmp_path):
    source = EXERCISES["rotate"].solution.replace("% max(n, 1)", "% n")
    verdict = verdict_of(tmp_path, source, "rotate")
    assert verdict.is_right
    assert verdict.lines[0].startswith("It is right, and does not compile: ")


def test_what_is_no_program_says_so(tmp_path):
    verdict = verdict_of(tmp_path, "answer = 3\n", "reverse")
    assert verdict.lines == ("`answer` is a sequence, as aggregate gives it; came int",)
    assert verdict_of(tmp_path, "answer = ...\n", "reverse").state == "empty"
