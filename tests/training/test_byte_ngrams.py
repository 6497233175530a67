"""The byte n-gram: probabilities against a definition written out by hand, and scores that are those of the text."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from clearhead.training.byte_ngrams import (
    BITS,
    BLOCK,
    END,
    SYMBOLS,
    ByteSample,
    NgramScore,
    count_ngrams,
    pack,
    probabilities,
    score_ngrams,
    times_longer,
)

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
        if not (having[at] and having[at + 1]):
            return at * 0.5
        kept = having[1] / (having[1] + 2 * having[2]) if having[1] else 0.5
        return min(max(at - (at + 1) * kept * having[at + 1] / having[at], 0.0), at)

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


@pytest.mark.parametrize("order", [2, 3, 7])
def test_it_is_kneser_ney_and_sums_to_one_in_every_context(order):
    model, by_hand = count_ngrams(TEXTS, order), brute_force(TEXTS, order)
    ends = (END,) * (order - 1)
    for text in ((), b"the c", b"text sat", b"\xff\x00zqqq"):
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
