"""Grades of rankings: against scikit-learn's where there are no ties, and against every order where there are."""

from itertools import permutations

import pytest
import torch

from clearhead.circuits.grading import average_precision, bootstrap, rank_by_mean, rank_by_sign, rank_by_size, roc_area


def plain_precision(truth):
    hits = [sum(truth[: n + 1]) / (n + 1) for n, true in enumerate(truth) if true]
    return sum(hits) / len(hits)


def test_without_ties_it_is_the_mean_precision_at_true_edges():
    torch.manual_seed(0)
    for _ in range(20):
        scores, truth = torch.randn(12), torch.rand(12) < 0.4
        if truth.any() and not truth.all():
            order = scores.argsort(descending=True)
            assert average_precision(scores, truth) == pytest.approx(plain_precision(truth[order].tolist()))
            wins = [float(a > b) for a in scores[truth] for b in scores[~truth]]
            assert roc_area(scores, truth) == pytest.approx(sum(wins) / len(wins))


def test_ties_count_as_the_mean_over_all_orders():
    scores = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    truth = torch.tensor([False, True, False, True, True])
    orders = [[0, *middle, 4] for middle in permutations([1, 2, 3])]
    expected = sum(plain_precision(truth[order].tolist()) for order in orders) / len(orders)
    assert average_precision(scores, truth) == pytest.approx(expected)
    assert roc_area(torch.zeros(5), truth) == 0.5


def test_rankings_differ_where_pairs_cancel():
    scores = torch.tensor([[1.0, -0.2], [-1.0, -0.2]])
    assert rank_by_mean(scores).tolist() == pytest.approx([0.0, 0.2])
    assert rank_by_size(scores).tolist() == pytest.approx([1.0, 0.2])
    assert rank_by_sign(scores).tolist() == pytest.approx([0.0, -0.2])


def test_an_interval_holds_the_mean_and_has_a_seed():
    interval = bootstrap([0.2, 0.4, 0.9, 0.5])
    assert interval.low < interval.mean == 0.5 < interval.high
    assert bootstrap([0.2, 0.4, 0.9, 0.5]) == interval
    assert str(bootstrap([1.0, 1.0])) == "1.000 [1.000, 1.000]"
