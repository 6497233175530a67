"""Batches: every record once an epoch, within the budget, the same for the same seed, with little padding."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.errors import OptionError
from clearhead.text import shuffling
from clearhead.text.batches import ByLength, Windows, width_for
from clearhead.text.store import StoreWriter

LENGTHS = st.lists(st.integers(0, 90), min_size=1, max_size=60)
SEEDS = st.integers(0, 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("batches") / "store"


@pytest.fixture(params=[1 << 17, 16], ids=["one part", "several parts"], scope="module")
def part(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffling, "TABLE", request.param)
        patch.setattr(shuffling, "RUN", 4)
        yield


def store_of(folder, *columns):
    """A store with a field for each column of lengths."""
    names = [f"field{i}" for i in range(len(columns))]
    with StoreWriter(folder, dict.fromkeys(names, 10)) as writer:
        for lengths in zip(*columns, strict=True):
            writer.add({name: [1] * length for name, length in zip(names, lengths, strict=True)}, {})
        return writer.close({})


def by_length(folder, *columns, tokens=64, seed=1, longest=200, extra=1):
    store = store_of(folder, *columns)
    fields = tuple(store.fields)
    return ByLength(store=store, fields=fields, tokens=tokens, seed=seed, longest=longest, extra=extra)


def as_lists(rows):
    return [(one.which.tolist(), one.width, one.full) for one in rows]


@given(lengths=LENGTHS, tokens=st.integers(1, 300), seed=SEEDS)
def test_every_record_comes_once_and_within_the_budget(folder, part, lengths, tokens, seed):
    planner = by_length(folder, lengths, tokens=tokens, seed=seed)
    for batches in (planner.epoch(0), planner.epoch(1), planner.in_order()):
        seen = []
        for which, width, full in as_lists(batches):
            seen += which
            assert 1 <= len(which) <= full
            assert full * width <= tokens or full == 1
            assert max(lengths[i] for i in which) + 1 <= width
        assert sorted(seen) == list(range(len(lengths)))


@given(lengths=LENGTHS, seed=SEEDS)
def test_the_same_seed_gives_the_same_batches(folder, part, lengths, seed):
    planner = by_length(folder, lengths, seed=seed)
    assert as_lists(planner.epoch(3)) == as_lists(planner.epoch(3))
    assert as_lists(planner.in_order()) == as_lists(planner.in_order())


def test_epochs_and_seeds_differ(folder, part):
    lengths = [i % 30 for i in range(200)]
    planner, other = by_length(folder, lengths), by_length(folder, lengths, seed=2)
    orders = [as_lists(batches) for batches in (planner.epoch(0), planner.epoch(1), other.epoch(0))]
    assert all(one != two for one, two in itertools.combinations(orders, 2))
    assert as_lists(planner.in_order()) == as_lists(other.in_order())


def test_a_record_is_as_long_as_its_longest_field(folder):
    planner = by_length(folder, [3, 20], [60, 1], tokens=1)
    assert sorted((which, width) for which, width, _ in as_lists(planner.in_order())) == [([0], 64), ([1], 24)]


def test_no_batch_is_wider_than_the_longest_row(folder):
    planner = by_length(folder, [99, 150, 3], tokens=300, longest=98, extra=2)
    assert {width for _, width, _ in as_lists(planner.in_order())} <= {8, 100}
    assert width_for(100) > 100


@pytest.mark.parametrize("tokens", [256, 2048])
@given(lengths=st.lists(st.integers(0, 500), min_size=1, max_size=300))
@settings(max_examples=20)
def test_padding_is_bounded(folder, part, lengths, tokens):
    """Each row has at most max(7, n / 4) places of padding up to its own width; and a part has at most one batch for
    each width with rows of several widths, of which none is larger than the budget."""
    planner = by_length(folder, lengths, tokens=tokens, longest=500)
    taken = sum(len(which) * width for which, width, _ in as_lists(planner.epoch(0)))
    own = sum(n + 1 + max(7, (n + 1) / 4) for n in lengths)
    parts = -(-len(lengths) // shuffling.TABLE)
    mixed = parts * len({width_for(n + 1) for n in lengths})
    assert taken <= own + mixed * max(tokens, width_for(501))


def test_rows_of_natural_lengths_are_hardly_padded(folder, monkeypatch):
    """Sentences: a lognormal of about 20 tokens. Of 4,096 tokens a batch, more than five in six are text."""
    monkeypatch.setattr(shuffling, "TABLE", 1 << 17)
    lengths = np.random.default_rng(0).lognormal(3, 0.6, 20_000).astype(int).clip(1, 200).tolist()
    planner = by_length(folder, lengths, tokens=4096)
    taken = sum(len(which) * width for which, width, _ in as_lists(planner.epoch(0)))
    assert (sum(lengths) + len(lengths)) / taken > 5 / 6


@given(n=st.integers(1, 100_000))
def test_widths_are_few_and_near(n):
    width = width_for(n)
    assert n <= width <= n + max(7, n / 4)
    assert width_for(width) == width


@given(n_tokens=st.integers(2, 400), width=st.integers(1, 60), rows=st.integers(1, 9), seed=SEEDS)
def test_stretches_lie_in_the_stream_and_never_overlap(part, n_tokens, width, rows, seed):
    width = min(width, n_tokens - 1)
    planner = Windows(n_tokens=n_tokens, width=width, rows=rows, seed=seed)
    for batches in (planner.epoch(0), planner.epoch(1), planner.in_order()):
        found = as_lists(batches)
        starts = sorted(start for which, _, _ in found for start in which)
        assert starts[0] >= 0
        assert starts[-1] + width + 1 <= n_tokens
        assert {after - before for before, after in itertools.pairwise(starts)} <= {width}
        assert starts[0] < width, "what is left before the first stretch is less than one"
        assert n_tokens - starts[-1] - width - 1 < width, "what is left after the last is less than one"
        assert all(len(which) == full == rows for which, _, full in found[:-1])
        assert {one for _, one, _ in found} == {width}


def test_stretches_of_other_epochs_begin_elsewhere():
    planner = Windows(n_tokens=5000, width=50, rows=4, seed=1)
    phases = {min(start for which, _, _ in as_lists(planner.epoch(n)) for start in which) for n in range(20)}
    assert len(phases) > 10
    assert as_lists(planner.epoch(2)) == as_lists(planner.epoch(2))


def all_epochs(planner):
    for number in itertools.count():
        yield from planner.epoch(number)


@pytest.mark.parametrize("skipped", [1, 13, 57])
def test_resuming_by_skipping_gives_the_same_batches(folder, part, skipped):
    """An iterator that is thrown away half-way leaves nothing behind that another one would notice."""
    for planner in (by_length(folder, [i % 40 for i in range(150)]), Windows(n_tokens=999, width=20, rows=3, seed=4)):
        whole = as_lists(itertools.islice(all_epochs(planner), 80))
        assert as_lists(itertools.islice(all_epochs(planner), 5)) == whole[:5]
        assert as_lists(itertools.islice(all_epochs(planner), skipped, 80)) == whole[skipped:]
        epoch, left = 0, skipped
        while left >= planner.count(epoch):
            epoch, left = epoch + 1, left - planner.count(epoch)
        rest = as_lists(planner.epoch(epoch, left))
        assert rest == whole[skipped : skipped + len(rest)]


def test_what_cannot_be_batched_is_told(folder):
    with pytest.raises(OptionError, match="budget of one token or more; came 0"):
        by_length(folder, [1], tokens=0)
    with pytest.raises(OptionError, match="room for one token or more; came -1"):
        by_length(folder, [1], longest=-1)
    with pytest.raises(OptionError, match="5 tokens and the next one do not fit into 5"):
        Windows(n_tokens=5, width=5, rows=1, seed=0)
    with pytest.raises(OptionError, match="one or more; came 0 tokens, 1 rows"):
        Windows(n_tokens=1, width=0, rows=1, seed=0)
