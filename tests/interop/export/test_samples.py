"""Texts that exports are checked on, and how outputs are compared."""

import torch

from clearhead.interop.export.samples import count_new, count_same, draw_samples, largest
from tests.interop.export.random_runs import CONTEXT, draw_spec, run_of


def test_texts_are_those_of_the_run_where_it_has_any(documents, tmp_path):
    real, drawn = draw_samples(documents, 5), draw_samples(run_of(draw_spec("decoder", 0), tmp_path), 5)
    assert (real.drawn, drawn.drawn) == (False, True)
    assert len(real.decoder) == len(drawn.decoder) == 5
    assert all(1 <= len(row) <= CONTEXT for row in drawn.decoder)


def test_the_largest_difference_is_infinite_where_shapes_differ():
    a = torch.zeros(2, 3)
    assert largest([a], [a + 0.5]) == 0.5
    assert largest([a], [a[:1]]) == float("inf")


def test_an_output_that_differs_counts_where_its_tokens_are_tied(tmp_path):
    run = run_of(draw_spec("decoder", 0), tmp_path)
    ours, other = [[5, 6]], [[5, 7]]
    assert count_same(run, ours, ours, 0.0, sources=[[4]]) == 1
    assert count_same(run, ours, other, 0.0, sources=[[4]]) == 0
    assert count_same(run, ours, other, 1e9, sources=[[4]]) == 1
    assert count_new(run) == CONTEXT // 2
