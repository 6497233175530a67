"""Names, numbers and edges of a graph."""

from clearhead.circuits import Edge, Graph
from tests.circuits.random_models import make


def test_edges_are_numbered_by_port_sender_and_receiver():
    graph = Graph(make("pre").model)
    for port in graph.ports.values():
        names = [Edge(sender, receiver) for sender in port.senders for receiver in port.receivers]
        assert graph.edges[port.edges] == names
    assert [graph.number[edge] for edge in graph.edges] == list(range(len(graph.edges)))
    assert all(Edge.read(str(edge)) == edge for edge in graph.edges)


def test_in_pre_norm_every_receiver_reads_all_that_came_before():
    graph = Graph(make("pre").model)
    embedding = {"decoder.embedding.token", "decoder.embedding.position"}
    heads = {f"decoder.0.attention.head.{head}" for head in range(3)}
    reads = {receiver: {e.sender for e in graph.edges if e.receiver == receiver} for receiver in graph.receivers}
    assert reads["decoder.0.attention.key.1"] == embedding
    assert reads["decoder.0.feed_forward"] == embedding | heads | {"decoder.constant"}
    assert reads["decoder.output"] == set(graph.senders)


def test_in_parallel_blocks_a_network_does_not_read_the_attention_beside_it():
    graph = Graph(make("parallel").model)
    senders = {edge.sender for edge in graph.edges if edge.receiver == "decoder.0.feed_forward"}
    assert not any("attention" in sender for sender in senders)


def test_in_the_notes_block_nothing_passes_by_attention():
    graph = Graph(make("note").model)
    senders = {edge.sender for edge in graph.edges if edge.receiver == "encoder.0.feed_forward"}
    assert senders == {"encoder.constant", *(f"encoder.0.attention.head.{head}" for head in range(3))}


def test_cross_attention_reads_the_encoders_output_alone():
    graph = Graph(make("both-pre").model)
    assert {edge.sender for edge in graph.edges if edge.receiver == "decoder.1.cross.key.0"} == {"encoder.output"}
    assert "encoder.1.feed_forward" in {edge.sender for edge in graph.edges if edge.receiver == "encoder.output"}
