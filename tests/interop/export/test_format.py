"""One check for every format: figures, and how numbers and outputs are compared."""

from dataclasses import replace

import torch

from clearhead.interop.export.format import ExportFigures, count_new, count_same, cut, largest
from tests.interop.export.random_runs import CONTEXT, draw_spec, run_of

GOOD = ExportFigures(
    peer="x 1", texts="2 texts", numbers="9 logits", difference=1e-5, tolerance=1e-3, same=2, outputs=2
)


def test_figures_pass_only_where_numbers_and_outputs_agree():
    assert GOOD.passed
    assert not replace(GOOD, difference=2e-3).passed
    assert not replace(GOOD, difference=float("nan")).passed
    assert not replace(GOOD, same=1).passed
    assert replace(GOOD, same=1, must_agree=False).passed
    assert (
        str(GOOD) == "x 1 on 2 texts: 9 logits differ by 1.0e-05 at most (tolerance 0.001); 2 of 2 outputs are the same"
    )


def test_rows_end_before_their_end_token():
    assert cut([[5, 6, 2, 7], [5, 6], [2], [7, 9, 2]], (2, 9)) == [[5, 6], [5, 6], [], [7]]


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
