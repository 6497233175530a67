"""`clearhead circuits RUN`: a circuit, its card and its files."""

import json

import pytest

from clearhead.circuits import Graph, read_circuit


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
