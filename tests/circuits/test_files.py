"""Files of circuits: what is written is read back, for models of every kind; and what is not a circuit is refused."""

import json

import pytest
import torch

from clearhead.circuits import Circuit, Graph, read_circuit, write_circuit
from clearhead.circuits.files import mib_names
from clearhead.errors import OptionError, RunError
from tests.circuits.random_models import SPECS, is_decoder, make


def circuit_of(name):
    torch.manual_seed(0)
    graph = Graph(make(name).model)
    n = len(graph.edges)
    return Circuit(graph=graph, scores=torch.randn(3, n), chosen=torch.rand(n) < 0.3)


@pytest.mark.parametrize("name", SPECS)
def test_graphml_has_everything(name, tmp_path):
    circuit = circuit_of(name)
    write_circuit(circuit, tmp_path / "it.graphml")
    again = read_circuit(circuit.graph, tmp_path / "it.graphml")
    assert torch.equal(again.mean, circuit.mean)
    assert torch.equal(again.chosen, circuit.chosen)
    assert again.edges == circuit.edges


@pytest.mark.parametrize("name", SPECS)
def test_neuronpedia_has_the_circuit(name, tmp_path):
    circuit = circuit_of(name)
    write_circuit(circuit, tmp_path / "it.neuronpedia.json", tokens=["vier", "und"])
    assert read_circuit(circuit.graph, tmp_path / "it.neuronpedia.json").edges == circuit.edges
    content = json.loads((tmp_path / "it.neuronpedia.json").read_text())
    ids = [node["node_id"] for node in content["nodes"]]
    assert len(set(ids)) == len(ids) == len(circuit.nodes)
    assert {end for link in content["links"] for end in (link["source"], link["target"])} <= set(ids)
    assert content["metadata"]["prompt_tokens"] == ["vier", "und"]


@pytest.mark.parametrize("name", [name for name in SPECS if is_decoder(name)])
def test_mib_has_what_it_can_name(name, tmp_path):
    """Scores of embeddings are added up, and read back as the tokens'; written again, it is the same file."""
    circuit = circuit_of(name)
    path, second = tmp_path / "it.mib.json", tmp_path / "again.mib.json"
    write_circuit(circuit, path)
    again = read_circuit(circuit.graph, path)
    write_circuit(again, second)
    one, two = (json.loads(file.read_text()) for file in (path, second))
    assert one["nodes"] == two["nodes"]
    assert {edge: row["in_graph"] for edge, row in one["edges"].items()} == {
        edge: row["in_graph"] for edge, row in two["edges"].items()
    }
    assert [row["score"] for row in two["edges"].values()] == pytest.approx(
        [row["score"] for row in one["edges"].values()], abs=1e-6
    )
    inner = [
        n for n, edge in enumerate(circuit.graph.edges) if ".head." in edge.sender or "feed_forward" in edge.sender
    ]
    assert torch.equal(again.chosen[inner], circuit.chosen[inner])
    assert torch.allclose(again.mean[inner], circuit.mean[inner])


def test_mib_names_edges_as_its_own_files_do(tmp_path):
    graph = circuit_of("pre").graph
    names = {name for edge in graph.edges for name in mib_names(graph, edge)}
    assert {"input->a0.h0<q>", "a0.h2->m0", "m1->a2.h1<v>", "a2.h0->logits", "input->logits", "m2->logits"} <= names
    heads, layers = 3, 3
    senders = 1 + layers * (heads + 1)  # as its Graph counts them
    assert (
        len(names) == sum((1 + n * (heads + 1)) * 3 * heads + 1 + n * (heads + 1) + heads for n in range(3)) + senders
    )


def test_what_a_format_cannot_hold_is_refused(tmp_path):
    circuit = circuit_of("both-pre")
    with pytest.raises(OptionError, match="decoders alone"):
        write_circuit(circuit, tmp_path / "it.mib.json")
    with pytest.raises(OptionError, match=r"ends in \.graphml"):
        write_circuit(circuit, tmp_path / "it.txt")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("it.graphml", '<!DOCTYPE a [<!ENTITY b "c">]><graphml/>'),
        ("it.graphml", "<graphml"),
        ("it.graphml", '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><edge source="a"/></graphml>'),
        ("it.mib.json", '{"edges": [1]}'),
        ("it.mib.json", '{"edges": {"a->b": {"score": "x", "in_graph": true}}}'),
        ("it.mib.json", '{"edges": {"a->b": {"score": 1' + "0" * 400 + ', "in_graph": true}}}'),
        ("it.mib.json", '{"edges": {"input->logits": {"score": 1e308, "in_graph": true}}}'),
        ("it.neuronpedia.json", '{"links": [{"weight": 1}]}'),
        ("it.neuronpedia.json", "[]"),
    ],
)
def test_what_is_not_a_circuit_is_refused(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(RunError, match=r"it\."):
        read_circuit(circuit_of("pre").graph, tmp_path / name)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp037"])
def test_entities_and_floods_of_elements_are_refused_in_any_encoding(encoding, tmp_path):
    graph = circuit_of("pre").graph
    entity = (
        f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE a [<!ENTITY b "{"c" * 999}">]><graphml>&b;</graphml>'
    )
    for text in (entity, f'<?xml version="1.0" encoding="{encoding}"?><graphml>' + "<a/>" * 100_000 + "</graphml>"):
        (tmp_path / "it.graphml").write_bytes(text.encode(encoding))
        with pytest.raises(RunError, match=r"no DOCTYPE|far more than|codec can't decode"):
            read_circuit(graph, tmp_path / "it.graphml")


@pytest.mark.parametrize("name", ["no.graphml", "no.mib.json", "no.neuronpedia.json"])
def test_a_file_that_is_not_there_is_named(name, tmp_path):
    with pytest.raises(RunError, match=name):
        read_circuit(circuit_of("pre").graph, tmp_path / name)
