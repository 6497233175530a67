"""`clearhead circuits`: the bench as a table, as JSON, and what is asked wrongly."""

import json

import pytest

from clearhead.cli.circuits import read_axes


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
