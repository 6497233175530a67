"""`clearhead circuits`: the bench as a table, as JSON, and what is asked wrongly."""

import json
from pathlib import Path

import pytest

from clearhead.circuits import Graph, read_circuit
from clearhead.cli.circuits import read_axes, read_programs


@pytest.mark.slow
def test_a_bench_of_one_program_is_a_table(command, tmp_path):
    out = tmp_path / "bench.json"
    arguments = ["--program", "sort", "--methods", "exact,eap,random", "--axes", "argmax"]
    code, printed, _ = command("circuits", "bench", *arguments, "-o", out)
    assert code == 0
    lines = printed.splitlines()
    assert lines[0].startswith("argmax: 1 programs, 79% of the graded edges are true")
    assert lines[1].split() == ["method", "average", "precision", "ROC", "nodes", "passes", "seconds", "programs"]
    assert lines[2].split()[:4] == ["exact", "1.000", "[1.000,", "1.000]"]
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


def test_a_circuit_is_printed_with_its_card_and_written(command, classifier, tmp_path):
    run, name = classifier.folder.path, tmp_path / "plum"
    given = ["circuits", run, "red plum", "--against", "red dog", "--edges", "7"]
    code, printed, said = command(*given, "-o", name)
    assert code == 0, said
    lines = printed.splitlines()
    assert lines[0] == "The edges by which it answers 'fruit' rather than 'beast', by eap-ig:"
    assert "faithfulness" in printed
    assert "CPR" in printed
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["plum.graphml", "plum.neuronpedia.json"]  # MIB's format has decoders alone
    circuit = read_circuit(Graph(classifier.model), tmp_path / "plum.graphml")
    assert 0 < len(circuit.edges) <= 7
    assert "edges by themselves make the answer" in " ".join(printed.split())
    code, printed, _ = command(*given, "--json", "--unlike", tmp_path / "plum.graphml")
    found = json.loads(printed)
    assert [row["edge"] for row in found["edges"]] == [str(edge) for edge, _ in circuit.edges]
    assert found["card"]["specificity"] == 0
    assert found["card"]["stability"] is None


def test_a_language_model_is_written_for_mib_too(command, documents, tmp_path):
    given = ["circuits", documents.folder.path, "the cat eats the", "--against", "cat the the eats"]
    code, _, said = command(*given, "--edges", "12", "--method", "exact", "-o", tmp_path / "next")
    assert code == 0, said
    graph = Graph(documents.model)
    whole, mib = (read_circuit(graph, tmp_path / f"next{ending}") for ending in (".graphml", ".mib.json"))
    assert 0 < len(whole.edges) <= 12
    inside = {str(edge) for edge, _ in whole.edges if ".embedding." not in edge.sender}
    assert inside <= {str(edge) for edge, _ in mib.edges}


def test_many_pairs_have_a_stability(command, classifier, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("red plum\tred dog\nold pear\told cat\nred apple\tred cow\n")
    code, printed, _ = command("circuits", "find", classifier.folder.path, "--table", pairs, "--json", "--edges", "9")
    assert code == 0
    assert 0 < json.loads(printed)["card"]["stability"] <= 1


def test_a_checkpoint_that_is_none_is_refused(command, classifier, tmp_path):
    """A search takes up the file beside its output; if that is not its own, it says so, and none is left at the end."""
    given = ["circuits", classifier.folder.path, "red plum", "--against", "red dog", "--edges", "30"]
    exact = [*given, "--method", "exact", "--json"]
    _, whole, _ = command(*exact)
    (tmp_path / "cut.scores").write_bytes(b"")
    code, _, said = command(*exact, "-o", tmp_path / "cut")
    assert code != 0
    assert "move it away" in said
    (tmp_path / "cut.scores").unlink()
    code, again, said = command(*exact, "-o", tmp_path / "cut")
    assert json.loads(again) == json.loads(whole)
    assert not (tmp_path / "cut.scores").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["red plum"], "with a text and --against another"),
        (["red plum", "--against", "red cow", "--method", "eep"], "there is no 'eep'"),
        (["red plum", "--against", "dog"], "as many tokens"),
    ],
)
def test_what_is_asked_wrongly_is_named(command, classifier, arguments, message):
    code, _, said = command("circuits", classifier.folder.path, *arguments)
    assert code != 0
    assert message in " ".join(said.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"caf\xe9\tb\n", "cannot be read: 'utf-8' codec"),
        (b"a b\n", "expected a text, a tab and another text in every line"),
    ],
)
def test_a_table_of_pairs_that_is_none_is_told(command, tmp_path, content, message):
    pairs = tmp_path / "pairs.tsv"
    if content is not None:
        pairs.write_bytes(content)
    code, _, said = command("circuits", tmp_path, "--table", pairs)
    assert code != 0
    assert message in " ".join(said.split())
    assert "should not happen" not in said
