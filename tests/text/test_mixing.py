"""Mixtures: shares are met at every place, nothing is lost, and any batch can be made without those before it."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.errors import DataError, OptionError
from clearhead.text.batches import ByLength, Windows
from clearhead.text.mixing import MixPiece, MixSource, Shares, check_sources, mix_planners, read_mix
from clearhead.text.store import StoreWriter

some_shares = st.lists(st.floats(0, 10), min_size=1, max_size=5).filter(lambda shares: sum(shares) > 0.1)


@given(some_shares, st.integers(0, 5000))
def test_counts_follow_the_shares_and_never_fall(weights, n):
    total = math.fsum(weights)
    shares = Shares([(0, [weight / total for weight in weights])])
    counts, after = shares.counts(n), shares.counts(n + 1)
    assert sum(counts) == n
    assert sorted(b - a for a, b in zip(counts, after, strict=True)) == [0] * (len(weights) - 1) + [1]
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - n * weight / total) <= len(weights)
        assert weight > 0 or count == 0


@settings(max_examples=30)
@given(st.lists(some_shares, min_size=2, max_size=4), st.data())
def test_pieces_go_on_where_the_last_one_ended(lists, data):
    size = min(map(len, lists))
    lists = [weights[:size] for weights in lists]
    if not all(sum(weights) > 0 for weights in lists):
        return
    starts = sorted(data.draw(st.sets(st.integers(1, 300), min_size=len(lists) - 1, max_size=len(lists) - 1)))
    pieces = [(start, np.divide(weights, sum(weights))) for start, weights in zip([0, *starts], lists, strict=True)]
    shares = Shares(pieces)
    wanted, last = np.zeros(size), [0] * size
    for n in range(400):
        counts = shares.counts(n)
        assert sorted(np.subtract(counts, last)) == [0] * (size - 1) + [1] or not n
        assert np.abs(counts - wanted).max() <= size * len(lists)
        wanted += next(weights for start, weights in reversed(pieces) if start <= n)
        last = counts


def windows(n_tokens, first, seed, rows=6, width=4):
    return Windows(n_tokens=n_tokens, width=width, rows=rows, seed=seed, first=first)


def mixed(pieces):
    planners = [windows(200, 0, 1), windows(41, 200, 2)]
    made = mix_planners(planners, ["a", "b"])
    return type(made)(planners=made.planners, names=made.names, counts=made.counts, units=6, shares=Shares(pieces))


def test_each_batch_of_windows_has_its_shares_and_each_source_comes_whole():
    plan = mixed([(0, (0.75, 0.25))])
    starts = Counter()
    for number in range(48):
        [rows] = plan.batches(number, number + 1)
        assert len(rows.which) == 6
        assert abs(sum(rows.which < 200) - 4.5) <= 1
        starts.update(rows.which[rows.which < 200].tolist())
    epoch = plan.counts[0]
    assert plan.epochs(48) == {"a": round(48 * 4.5 / epoch, 4), "b": round(48 * 1.5 / plan.counts[1], 4)}
    places = np.concatenate([plan.planners[0].places(i, i + 1) for i in range(epoch)])
    assert len(set(places.tolist())) == epoch
    assert max(places) < 200


def test_batches_go_on_from_anywhere_and_follow_the_schedule():
    plan = mixed([(0, (1.0, 0.0)), (60, (0.5, 0.5)), (120, (0.0, 1.0))])
    alone = [rows.which.tolist() for rows in itertools.chain(plan.epoch(0), plan.epoch(1))]
    for skip in (0, 1, plan.count(0) - 1):
        assert [rows.which.tolist() for rows in plan.epoch(0, skip)] == alone[skip : plan.count(0)]
    assert all(place < 200 for which in alone[:10] for place in which)
    assert [sum(place < 200 for place in which) for which in alone[10:20]] == [3] * 10
    assert all(place >= 200 for which in alone[20:] for place in which)


def test_records_are_mixed_by_batches(tmp_path):
    with StoreWriter(tmp_path / "store", {"text": 100}) as writer:
        for i in range(60):
            writer.add({"text": [i] * (1 + i % 5)}, {})
        store = writer.close({})
    options = {"store": store, "fields": ("text",), "tokens": 32, "longest": 8}
    planners = [ByLength(**options, seed=1, records=range(40)), ByLength(**options, seed=2, records=range(40, 60))]
    made = mix_planners(planners, ["a", "b"])
    plan = type(made)(**{**vars(made), "shares": Shares([(0, (0.5, 0.5))])})
    seen = [rows.which for rows in itertools.islice(plan.batches(0, 100), 2 * made.counts[0])]
    assert all((which < 40).all() or (which >= 40).all() for which in seen)
    assert [(which < 40).all() for which in seen[:4]] in ([True, False] * 2, [False, True] * 2)
    of_first = [which.tolist() for which in seen if which[0] < 40]
    assert sorted(itertools.chain(*of_first)) == list(range(40))
    skipped = [rows.which.tolist() for rows in itertools.islice(plan.batches(5, 100), 10)]
    assert skipped == [which.tolist() for which in seen[5:15]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b", "expected shares such as 0.7,0.3"),
        ("0,0", "one is above 0"),
        ("1,-1", "0 or more"),
        ("nan,1", "0 or more"),
        ("1,1;1.5:1,1", "ascend from 0 to less than 1"),
        ("1,1;0.5:1,0;0.2:1,0", "ascend"),
        ("0.2:1,1", "ascend"),
        ("1,1;0.5:1", "a share for each source"),
    ],
)
def test_what_is_no_mixture_is_told(text, message):
    with pytest.raises(OptionError, match=message):
        read_mix(text)


def test_a_source_without_a_record_is_told():
    check_sources([MixSource("a", range(3)), MixSource("b", range(3, 3))], [MixPiece(0.0, (1.0, 0.0))])
    with pytest.raises(DataError, match="b: has a share of the mixture, and no record"):
        check_sources([MixSource("a", range(3)), MixSource("b", range(3, 3))], [MixPiece(0.0, (0.5, 0.5))])
    with pytest.raises(DataError, match="one document is nearly all"):
        check_sources([], [MixPiece(0.0, (0.5, 0.5))])
