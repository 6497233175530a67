"""The linear classifier on n-grams: it minimises what it says, and what it scores is told beside a Transformer."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.training.linear import (
    LinearScore,
    NgramCounts,
    Sparse,
    fit_logistic,
    linear_baseline,
    records_apart,
    split_words,
)
from tests.training.small_runs import labelled


def sparse(dense):
    rows, columns = np.nonzero(dense)
    starts = torch.from_numpy(np.searchsorted(rows, np.arange(len(dense) + 1)))
    values = torch.from_numpy(dense[rows, columns].astype(np.float32))
    return Sparse(starts, torch.from_numpy(columns), values, dense.shape[1])


@given(seed=st.integers(0, 99), rows=st.integers(1, 6), width=st.integers(1, 5))
def test_products_are_those_of_dense_matrices(seed, rows, width):
    draw = np.random.default_rng(seed)
    dense = draw.normal(size=(rows, width)) * (draw.random((rows, width)) < 0.5)
    right, left = torch.from_numpy(draw.normal(size=(width, 3))).float(), torch.from_numpy(draw.normal(size=(rows, 3)))
    made = sparse(dense)
    whole = torch.from_numpy(dense).float()
    torch.testing.assert_close(made.times(right), whole @ right)
    torch.testing.assert_close(made.transposed().times(left.float()), whole.T @ left.float())


def test_weights_are_where_autograd_finds_no_slope():
    """At the minimum, the gradient of the loss as it is written down, by autograd and in float64, is zero."""
    draw = np.random.default_rng(0)
    dense, wanted = draw.normal(size=(40, 6)), torch.from_numpy(draw.integers(0, 3, 40))
    target = torch.nn.functional.one_hot(wanted, 3).float()
    weights = fit_logistic(sparse(dense), target, 2.0).double().requires_grad_()
    logits = torch.from_numpy(dense) @ weights[:-1] + weights[-1]
    loss = torch.nn.functional.cross_entropy(logits, wanted) + 2.0 / 80 * weights[:-1].square().sum()
    (slope,) = torch.autograd.grad(loss, weights)
    assert slope.abs().max() < 1e-3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Zeit. Zeit, ZEIT?", ["zeit", ".", "zeit", ",", "zeit", "?"]),
        ("東京に", ["東", "京", "に"]),
        ("iPhoneを", ["iphone", "を"]),
        ("", []),
    ],
)
def test_words_of_any_script(text, words):
    assert split_words(text) == words


def test_each_kind_of_ngram_has_length_one():
    counts = NgramCounts(["the old cat", "the red plum", "a cat"], letters=True)
    made = counts.vectors(["the old cat", "nothing known here", ""])
    squares = made._replace(values=made.values.square()).times(torch.ones(made.width, 1))[:, 0]
    assert squares[0].item() == pytest.approx(3)  # words, pairs and letters
    assert squares[2].item() == 0


def test_rarer_words_weigh_more():
    counts = NgramCounts(["a x", "a y", "a z"], letters=False)
    by_word = {word: counts.weight[0][np.searchsorted(counts.known[0], key)] for word, key in counts.words.items()}
    assert by_word["a"] == pytest.approx(1)
    assert by_word["x"] == pytest.approx(math.log(2) + 1)


@pytest.mark.parametrize("letters", [False, True])
def test_what_words_tell_is_learned(letters, monkeypatch):
    monkeypatch.setattr("clearhead.training.linear.MOST_CHARACTERS", 10**6 if letters else 0)
    (texts, labels), (dev, truth) = (zip(*labelled(60, seed), strict=True) for seed in (0, 1))
    numbers = {"beast": 0, "fruit": 1}
    found = linear_baseline(texts, [numbers[one] for one in labels], dev, [numbers[one] for one in truth], classes=2)
    assert found.accuracy == 1


def test_words_of_known_letters_are_understood():
    """A word that was never seen has letters that were: "unhappily" begins like "unhappy"."""
    texts = ["unhappy", "unhappiness", "sunny", "sunshine"] * 3
    found = linear_baseline(texts, [0, 0, 1, 1] * 3, ["unhappily", "sunlit"], [0, 1], classes=2)
    assert found.accuracy == 1


def test_a_class_without_training_records_is_never_right():
    found = linear_baseline(["a b", "c d"] * 4, [0, 2] * 4, ["a b", "c d", "e f"], [0, 2, 1], classes=3)
    assert found.accuracy == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("records", "n_bytes", "apart"), [(1, 1, 1), (200_000, 20_000_000, 1), (200_001, 1, 2), (10, 50_000_000, 3)]
)
def test_of_a_large_corpus_some_records_are_enough(records, n_bytes, apart):
    assert records_apart(records, n_bytes) == apart


def test_the_same_records_give_the_same_score():
    draw = random.Random(0)
    texts = [" ".join(draw.choices("abcdefgh", k=5)) for _ in range(50)]
    labels = [draw.randrange(3) for _ in texts]
    first, second = (linear_baseline(texts, labels, texts, labels, classes=3) for _ in range(2))
    assert first.accuracy == second.accuracy


def test_a_better_linear_model_is_told_plainly():
    score = LinearScore(accuracy=0.9, macro_f1=0.8, features=1200, records=500, seconds=0.5)
    assert score.announce() == (
        "the line to beat: a linear model on 1,200 n-grams of 500 records is right on 90.0% of the dev records, "
        "macro F1 80.0% (0.5 s)"
    )
    assert score.verdict(0.85, 0.7).startswith(
        "the linear model on n-grams is better: 90.0% (macro F1 80.0%) of the dev records"
    )
    assert score.verdict(0.85, 0.7).endswith("or fine-tune a pretrained model (--from)")
    assert "--from" not in score.verdict(0.85, 0.7, tuned=True)
    assert score.verdict(0.9, 0.7) == (
        "dev accuracy 90.0% (macro F1 70.0%); the linear model on n-grams has 90.0% (macro F1 80.0%)"
    )
