"""`clearhead circuits`: the bench as a table, as JSON, and what is asked wrongly."""

import json
from pathlib import Path

import pytest

from clearhead.cli.circuits import read_axes, read_programs


@pytest.mark.slow
def test_a_bench_of_one_program_is_a_table(command, tmp_path):
    out = tmp_path / "bench.json"
    arguments = ["--program", "sort", "--methods", "exact,eap,random", "--axes", "argmax"]
    code, printed, _ = command("circuits", "bench", *arguments, "-o", out)
    assert code == 0
    lines = printed.splitlines()
    assert lines[0].startswith("argmax: 1 programs, 79% of the graded edges are true")
    assert lines[2].split()[:2] == ["exact", "1.000"]
    assert {row["method"] for row in json.loads(out.read_text())["means"]} == {"exact", "eap", "random"}


OWN = """
from clearhead.rasp import Program, aggregate, indices, select, selector_width, sequence_map, tokens

before = aggregate(select(indices, indices, lambda key, query: key == query - 1), tokens)
count = selector_width(select(tokens, tokens, lambda key, query: key == query))
shared = dict(about="", vocabulary=("a", "b", "c"), plain=list, length=3)
one = Program(name="one", output=sequence_map(lambda a, n: a if n > 1 else "-", before, count), **shared)
two = Program(name="two", output=sequence_map(lambda a, b: f"{a}{b}", tokens, before), **shared)
same = Program(name="same", output=sequence_map(lambda a, n: "x", before, count), **shared)
"""


def test_a_file_of_programs_is_graded_and_explained_edge_by_edge(command, tmp_path):
    """All that the file has, but for one in which nothing can be ranked, which is named."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    given = ["circuits", "bench", "--program", file, "--methods", "exact,random", "--axes", "argmax", "--list-edges"]
    code, printed, said = command(*given)
    assert code == 0, said
    assert printed.startswith("argmax: 2 programs")
    assert "There is nothing to rank in same" in printed
    assert "one: rank of each edge by each method; the first 8 are true" in printed
    true = [line for line in printed.splitlines() if line.startswith("alone")]
    assert len(true) > 8
    assert all(" -> " in line for line in true)
    assert "Ranks: a exact, b random." in printed


def test_programs_in_a_list_are_found_and_one_that_has_a_name_too_counts_once(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN + "\nhere = [one, Program(name='three', output=before, **shared)]")
    assert [each.name for each in read_programs(str(file))] == ["one", "two", "same", "three"]


@pytest.mark.slow
def test_edges_that_matter_only_with_another_are_named(command):
    """In the five programs of the results page: the third way of the vote."""
    file = Path(__file__).parents[2] / "benchmarks" / "circuits_five.py"
    names = [each.name for each in read_programs(str(file))]
    assert names == ["vote", "as-many", "two-hops", "sort-pairs", "gated-count"]
    given = ["--methods", "exact,eap,random,weights", "--axes", "argmax", "--list-edges"]
    code, printed, said = command("circuits", "bench", "--program", file, *given)
    assert code == 0, said
    printed = " ".join(printed.split())
    assert "34 can change an answer by themselves, 3 only with another edge, 24 were never seen to" in printed
    assert printed.count("(only with another edge: not graded)") == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("answer = 1", "own.py has no `Program(name="),
        ("answer = 1 / 0", "own.py:1: ZeroDivisionError"),
        (OWN + "\nagain = Program(name='one', output=before, **shared)", "'one' is the name of two programs"),
        (OWN + "\none = two = None", "There is nothing to rank in same"),
        (None, "there is no file"),
    ],
)
def test_a_file_without_programs_is_told_in_a_sentence(command, tmp_path, content, message):
    file = tmp_path / "own.py"
    if content is not None:
        file.write_text(content)
    code, _, said = command("circuits", "bench", "--program", file, "--methods", "exact")
    assert code != 0
    assert message in " ".join(said.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--list-edges"], "say with --program which programs"),
        (["--methods", "eep"], "there is no 'eep'"),
        (["--axes", "up"], "there is no axis 'up'"),
        (["--program", "sort2"], "there is no 'sort2'"),
    ],
)
def test_what_is_not_there_is_named(command, arguments, message):
    code, _, said = command("circuits", "bench", *arguments)
    assert code == 2
    assert message in " ".join(said.split())


def test_an_axis_with_a_comma_in_its_name_is_read():
    known = ["argmax", "argmax, no gradient", "rotated"]
    assert read_axes("rotated, argmax, no gradient", known) == ["rotated", "argmax", "argmax, no gradient"]
