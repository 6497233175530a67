"""Axes: the same answers from another model, and truth found anew where it can change."""

from dataclasses import replace

import pytest
import torch

from clearhead.attention.weighting import Softmax
from clearhead.circuits.realism import AXES, DECOYS, SHARP, spanned, with_weighting
from clearhead.circuits.truth import BenchSample
from clearhead.rasp.programs import PROGRAMS


@pytest.fixture(scope="module")
def sample():
    return BenchSample.of(replace(PROGRAMS["sort"], length=3))


@pytest.mark.slow
@pytest.mark.parametrize("axis", AXES)
def test_every_axis_keeps_every_answer(sample, axis):
    changed = AXES[axis](sample, torch.Generator().manual_seed(0))
    if changed is None:
        assert axis == "softmax 3"  # the only one that may lose an answer of this program
        return
    assert changed.keeps_answers()
    assert len(changed.truth.alone) == len(changed.graph.edges)


def test_a_softmax_that_is_not_sharp_loses_answers(sample):
    assert not with_weighting(sample, Softmax(), 0.5).keeps_answers()


def test_a_rotation_leaves_no_direction_as_it_was_and_the_edges_as_they_were(sample):
    changed = AXES["rotated"](sample, torch.Generator().manual_seed(0))
    assert changed.graph.edges == sample.graph.edges
    table = changed.compiled.model.embedding.table
    assert (table.abs() > 1e-6).float().mean() > 0.9


def test_decoys_read_what_is_used_and_change_nothing(sample):
    changed = AXES["decoys"](sample, torch.Generator().manual_seed(0))
    old = {str(edge): label for edge, label in zip(sample.graph.edges, sample.truth.alone.tolist(), strict=True)}
    new = {str(edge): label for edge, label in zip(changed.graph.edges, changed.truth.alone.tolist(), strict=True)}
    assert {edge for edge, label in new.items() if label} == {edge for edge, label in old.items() if label}
    heads = sample.graph.names.sites["encoder.0.attention"].shape.n_heads
    decoy = changed.graph.find(f"encoder.embedding.token -> encoder.0.attention.value.{heads + DECOYS - 1}")
    assert changed.truth.ranked[decoy]
    assert not changed.truth.alone[decoy]


def test_superposed_features_outnumber_dimensions_and_overlap(sample):
    changed = AXES["superposed"](sample, torch.Generator().manual_seed(0))
    features, dimensions = len(sample.compiled.directions), changed.compiled.model.spec.d_model
    assert dimensions < features
    span = spanned(with_weighting(sample, Softmax(), SHARP))
    assert span.shape == (features, dimensions)
    overlap = span @ span.T - torch.eye(features, dtype=span.dtype)
    assert (overlap.abs() > 0.05).any(1).float().mean() > 0.3


def test_live_norms_are_there(sample):
    changed = AXES["live norms"](sample, torch.Generator().manual_seed(0))
    x = torch.randn(1, 2, changed.compiled.model.spec.d_model, dtype=torch.float64)
    norm = changed.compiled.model.stack.blocks[0].around_attention.norm
    assert (norm(2 * x) - norm(x)).abs().max() < 1e-9
