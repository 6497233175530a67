"""The linear classifier on n-grams: it minimises what it says, and what it scores is told beside a Transformer."""

import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.training.baseline import (
    BITS,
    BLOCK,
    END,
    SYMBOLS,
    ByteSample,
    DesignMatrix,
    Figures,
    LinearScore,
    NgramScore,
    Sparse,
    count_ngrams,
    fit_linear,
    pack,
    probabilities,
    score_ngrams,
    times_longer,
)
from clearhead.training.tasks.classify import most_records
from clearhead.training.wide import class_weights, unique_pairs


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


TEXTS = [b"the cat sat on the mat", b"the dog sat", "größer, größte".encode(), b"", b"a" * 9]


def brute_force(documents, order):
    """Modified Kneser–Ney by dictionaries, as the paper writes it: a function of context and symbol."""
    occurrences = Counter()
    for document in documents:
        symbols = [END] * (order - 1) + list(document) + [END]
        occurrences.update(tuple(symbols[i : i + order]) for i in range(len(document) + 1))
    tables = {order: occurrences}
    for n in range(order - 1, 0, -1):
        tables[n] = Counter(gram[1:] for gram in tables[n + 1])
    followers = {n: defaultdict(dict) for n in tables}
    for n, table in tables.items():
        for gram, count in table.items():
            followers[n][gram[:-1]][gram[-1]] = count

    def taken(n, count):
        having = Counter(tables[n].values())
        at = min(count, 3)
        kept = having[1] / (having[1] + 2 * having[2]) if having[1] else 0.5
        rate = at - (at + 1) * kept * having[at + 1] / having[at] if having[at] else 0.0
        return rate if 0 < rate < at else at * 0.5

    def probability(context, symbol):
        lower = probability(context[1:], symbol) if context else 1 / SYMBOLS
        n = len(context) + 1
        seen = followers[n].get(context)
        if not seen:
            return lower
        total = sum(seen.values())
        rest = sum(taken(n, count) for count in seen.values()) / total
        count = seen.get(symbol, 0)
        return (count - taken(n, count) if count else 0.0) / total + rest * lower

    return probability


def key(context, symbol):
    packed = 0
    for one in (*context, symbol):
        packed = packed << BITS | one
    return packed


FEW_LETTERS = [b"ceddcdcebe", *(bytes(random.Random(n).choices(b"bcde", k=n)) for n in (22, 61, 92))]
"""Whose estimated discounts of counts of two and more are below zero."""


@pytest.mark.parametrize("order", [2, 3, 7])
@pytest.mark.parametrize("texts", [TEXTS, FEW_LETTERS], ids=["words", "few letters"])
def test_it_is_kneser_ney_and_sums_to_one_in_every_context(texts, order):
    model, by_hand = count_ngrams(texts, order), brute_force(texts, order)
    assert all((counts.rest > 0).all() for counts in model)
    ends = (END,) * (order - 1)
    for text in ((), b"the c", b"text sat", b"ced", b"\xff\x00zqqq"):
        context = (*ends, *text)[-order + 1 :]
        found = probabilities(model, np.array([key(context, symbol) for symbol in range(SYMBOLS)]))
        assert found.min() > 0
        assert found.sum() == pytest.approx(1)
        assert found == pytest.approx([by_hand(context, symbol) for symbol in range(SYMBOLS)])


def test_every_byte_and_every_end_is_scored_once():
    order, dev = 3, [b"the cow sat", b"", b"a mat"]
    by_hand = brute_force(TEXTS, order)
    bits = 0.0
    for document in dev:
        symbols = [END] * (order - 1) + list(document) + [END]
        for i in range(len(document) + 1):
            bits -= math.log2(by_hand(tuple(symbols[i : i + order - 1]), symbols[i + order - 1]))
    score = score_ngrams(TEXTS, dev, text_bytes=1000, order=order)
    assert score.bits_per_byte == pytest.approx(bits / 16)
    assert (score.train_bytes, score.text_bytes, score.dev_bytes) == (sum(map(len, TEXTS)), 1000, 16)
    assert len(pack(dev, 7)) == 16 + 3


def test_text_like_the_text_that_was_counted_costs_less_than_noise():
    text = b"all work and no play makes a dull boy. " * 40
    noise = np.random.default_rng(0).integers(0, 256, 2000).astype(np.uint8).tobytes()
    assert score_ngrams([text], [text]).bits_per_byte < 0.5
    assert score_ngrams([text], [noise]).bits_per_byte > 8
    assert score_ngrams([], [noise]).bits_per_byte == pytest.approx(math.log2(SYMBOLS), rel=1e-3)


def test_of_a_long_text_blocks_from_all_over_are_counted():
    whole, sample = ByteSample(10, 10), ByteSample(100 * BLOCK, 10 * BLOCK)
    for piece, ends in ((b"one ", False), (b"two", True), (b"", True)):
        whole.add(piece, ends=ends)
    assert whole.documents == [b"one two", b""]
    for _ in range(25):
        sample.add(bytes(4 * BLOCK), ends=False)
    assert [len(document) for document in sample.documents] == [BLOCK] * 10


def test_a_model_that_is_worse_is_told_with_what_would_help():
    score = NgramScore(bits_per_byte=2.5, order=7, train_bytes=10, text_bytes=20_000_000, dev_bytes=5, seconds=0.1)
    assert "on 0.0 of 20.0 MB has 2.500 bits/byte" in score.announce()
    curve = [(100, 4.0), (200, 3.5), (400, 3.0)]
    assert score.verdict(2.4, curve, text_is_used_up=False).startswith("2.400 bits/byte on the dev text; the byte 7-gr")
    worse = score.verdict(3.0, curve, text_is_used_up=False)
    assert "the byte 7-gram is better: 2.500 bits/byte on the dev text, this model 3.000" in worse
    assert "at least 2.0 times as long" in worse
    assert "does not tell how much longer" in score.verdict(3.0, [], text_is_used_up=False)
    assert "Give more text" in score.verdict(3.0, curve, text_is_used_up=True)


@pytest.mark.parametrize(
    ("curve", "goal", "expected"),
    [
        ([(100, 4.0), (200, 3.5), (400, 3.0)], 2.5, 2.0),  # each doubling brings half a bit
        ([(100, 4.0), (200, 3.2), (400, 3.0)], 2.6, 4.0),  # the smaller step of the two counts
        ([(100, 4.0), (200, 3.5), (400, 3.0)], 0.1, None),  # too far to be told
        ([(100, 3.0), (200, 3.0), (400, 3.0)], 2.5, None),  # it does not fall
        ([(400, 3.0)], 2.5, None),
    ],
)
def test_how_much_longer_a_training_would_take_is_told_from_its_curve_if_that_is_near(curve, goal, expected):
    assert times_longer(curve, goal) == (None if expected is None else pytest.approx(expected))
