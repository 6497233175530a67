"""Mysteries: the truth by enumeration is that of the disguised model, and nothing of the program shows."""

import pytest
import torch

from clearhead.circuits.realism import DECOYS
from clearhead.errors import OptionError
from clearhead.exercises import EXERCISES, mystery
from clearhead.rasp import run

MYSTERIES = [pytest.param(each, id=each.name) for each in EXERCISES.of_kind("mystery")]


@pytest.mark.parametrize("exercise", MYSTERIES)
def test_the_true_edges_are_those_that_the_disguised_model_has(exercise):
    found = mystery(exercise.name)
    graph, truth = found.sample.graph, found.sample.truth
    assert {str(graph.edges[number]) for number in truth.alone.nonzero().flatten().tolist()} == found.truth
    for text in ("abca", "bb", "c"):
        assert found.run(text) == run(exercise.checks["program"], text)


def test_its_stream_is_rotated_and_has_decoys():
    found = mystery("mystery-2")
    heads = {edge.partition(" ->")[0] for edge in found.edges if ".0.attention.head." in edge}
    assert len(heads) >= 1 + DECOYS
    table = found.sample.compiled.model.stacks[0].embedding.table
    assert (table.abs() > 1e-6).float().mean() > 0.9  # compiled, most would be 0


def test_a_patched_edge_changes_what_it_carries():
    found = mystery("mystery-1")
    assert found.run("abc") == [None, "a", "b"]
    edge = "encoder.0.attention.head.0 -> encoder.output"
    assert found.patch("abc", "cbc", [edge]) == [None, "c", "b"]
    assert found.scores("exact")[0][1] > 0
    assert [score for _, score in found.scores("exact")[2:]] == [0] * (len(found.edges) - 2)  # and not 4e-16
    assert torch.tensor([score for _, score in found.scores()]).diff().max() <= 0
    with pytest.raises(OptionError, match="as many letters"):
        found.patch("abc", "ab", [edge])
    with pytest.raises(OptionError, match="there is no 'mystery-9'"):
        mystery("mystery-9")
