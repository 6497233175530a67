"""The linear classifier on n-grams: it minimises what it says, and what it scores is told beside a Transformer."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.training.baseline import (
    DesignMatrix,
    Figures,
    LinearScore,
    Sparse,
    class_weights,
    fit_linear,
    most_records,
    unique_pairs,
)


def sparse(dense):
    rows, columns = np.nonzero(dense)
    starts = torch.from_numpy(np.searchsorted(rows, np.arange(len(dense) + 1)))
    values = torch.from_numpy(dense[rows, columns].astype(np.float32))
    return Sparse(starts, torch.from_numpy(columns), values, dense.shape[1])


def design(dense, letters=0):
    """The features as they are fitted: the last so many columns are groups of letters, one for each token."""
    own = np.eye(letters) * 2.0
    return DesignMatrix(
        sparse(np.c_[dense[:, : dense.shape[1] - letters], dense[:, dense.shape[1] - letters :] / 2]),
        sparse(own),
        dense.shape[1] - letters,
    )


@given(seed=st.integers(0, 99), rows=st.integers(1, 6), width=st.integers(1, 5))
def test_products_are_those_of_dense_matrices(seed, rows, width):
    draw = np.random.default_rng(seed)
    dense = draw.normal(size=(rows, width)) * (draw.random((rows, width)) < 0.5)
    right, left = torch.from_numpy(draw.normal(size=(width, 3))).float(), torch.from_numpy(draw.normal(size=(rows, 3)))
    made = sparse(dense)
    whole = torch.from_numpy(dense).float()
    torch.testing.assert_close(made.times(right), whole @ right)
    torch.testing.assert_close(made.transposed().times(left.float()), whole.T @ left.float())


@pytest.mark.parametrize("letters", [0, 2])
def test_weights_are_where_autograd_finds_no_slope(letters):
    """At the minimum, the gradient of the loss as it is written down, by autograd and in float64, is zero."""
    draw = np.random.default_rng(0)
    dense, wanted = draw.normal(size=(40, 6)), torch.from_numpy(draw.integers(0, 3, 40))
    target = torch.nn.functional.one_hot(wanted, 3).float()
    weights = fit_linear(design(dense, letters), target, class_weights(target), 2.0).double().requires_grad_()
    logits = torch.from_numpy(dense) @ weights[:-1] + weights[-1]
    loss = 2.0 / 80 * weights[:-1].square().sum()
    for own, row in zip(wanted.tolist(), logits, strict=True):
        for k in range(3):
            short = (1 - row[k] if k == own else 1 + row[k]).clamp(min=0)
            loss = loss + short**2 / 40 * (class_weights(target)[k].item() if k == own else 1)
    (slope,) = torch.autograd.grad(loss, weights)
    assert slope.abs().max() < 1e-3


def test_a_fit_ends_when_its_seconds_are_over():
    """What is found by then is better than nothing: one step is always made, as far as it is good."""
    draw = np.random.default_rng(0)
    dense = draw.normal(size=(200, 6))
    target = torch.nn.functional.one_hot(torch.from_numpy(dense[:, :3].argmax(1)), 3).float()
    made = design(dense)

    def loss(weights):
        short = (1 - (2 * target - 1) * made.logits(weights)).clamp(min=0)
        return float(short.square().sum() / 200 + 2.0 / 400 * weights[:-1].square().sum())

    first, whole = (fit_linear(made, target, torch.ones(3), 2.0, seconds=seconds) for seconds in (0.0, 60.0))
    assert loss(whole) < loss(first) < 0.5 * loss(torch.zeros(7, 3))
    again = fit_linear(made, target, torch.ones(3), 2.0, start=whole, seconds=0.0)
    assert torch.equal(again, whole)  # from the minimum there is nowhere to go


@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**31 - 1)), max_size=20))
def test_pairs_are_found_once_and_in_order(pairs):
    documents, keys = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    found = zip(*(side.tolist() for side in unique_pairs(documents, keys)), strict=True)
    assert list(found) == sorted(set(pairs))


def test_rare_classes_weigh_by_the_root_of_their_frequency():
    target = torch.eye(3)[[0] * 16 + [1] * 4]  # the third has no record
    weight = class_weights(target)
    assert weight[1] / weight[0] == pytest.approx(2)
    assert (weight * target).sum(1).mean() == pytest.approx(1)
    assert weight.isfinite().all()


@pytest.mark.parametrize(
    ("records", "n_bytes", "most"),
    [(1, 1, 1), (200_000, 20_000_000, 200_000), (200_001, 1, 200_000), (10, 50_000_000, 4)],
)
def test_of_a_large_corpus_some_records_are_enough(records, n_bytes, most):
    assert most_records(records, n_bytes, 2) == most
    assert most_records(10, 20_000_000, 40) == 5


def test_a_better_linear_model_is_told_plainly():
    score = LinearScore(accuracy=0.9, macro_f1=0.8, features=1200, records=500, seconds=0.5)
    assert score.announce() == (
        "the line to beat: a linear model on 1,200 n-grams of 500 records is right on 90.0% of the dev records, "
        "macro F1 80.0% (0.5 s)"
    )
    worse, same = Figures(0.85, 0.7), Figures(0.9, 0.7)
    assert score.verdict(worse, None).startswith(
        "the linear model on n-grams is better: 90.0% (macro F1 80.0%) of the dev records"
    )
    assert score.verdict(worse, None).endswith("or fine-tune a pretrained model (--from)")
    assert score.verdict(worse, None, tuned=True).endswith("start from a model that has seen more text")
    assert score.verdict(same, None) == (
        "dev accuracy 90.0% (macro F1 70.0%); the linear model on n-grams has 90.0% (macro F1 80.0%)"
    )


def test_what_is_kept_is_named():
    score = LinearScore(accuracy=0.9, macro_f1=0.8, features=1200, records=500, seconds=0.5)
    assert score.verdict(Figures(0.92, 0.8), Figures(0.7, 0.6), (0.5, 2.0)) == (
        "kept is the sum of both: dev accuracy 92.0% (macro F1 80.0%). The linear model has 90.0% (macro F1 80.0%), "
        "the Transformer 70.0% (macro F1 60.0%)"
    )
    for shares, which in (((0.0, 2.0), "the linear model"), ((1.0, 0.0), "the Transformer")):
        told = score.verdict(Figures(0.9, 0.8), Figures(0.7, 0.6), shares)
        assert told.startswith(f"kept is {which}: dev accuracy 90.0%")
