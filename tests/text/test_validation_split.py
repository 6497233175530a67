"""The draw itself: the same everywhere, by quotas, with memory that does not grow."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.text.validation_split import (
    DrawnDocument,
    TextHash,
    document_quotas,
    draw,
    find_candidates,
    is_drawn,
    pick,
    record_quotas,
    spread,
)


def key_of(*pieces):
    text_hash = TextHash()
    for piece in pieces:
        text_hash.add(piece)
    text_hash.add_border()
    return text_hash.key()


def document(text, label):
    return DrawnDocument(key_of(text), b"own" + key_of(text), (label,), 1)


def test_the_hash_of_a_text_is_the_same_everywhere():
    assert key_of("Größer als  NICHTS").hex() == "48dc9706f8913026999465d7c3d42f10"


@pytest.mark.parametrize(
    ("pieces", "same"),
    [
        (["größer ALS nichts"], True),
        (["  größer\tals\n\nnichts "], True),
        (["gro\u0308ßer als nichts"], True),
        (["GRÖSSER ALS NICHTS"], True),
        (["größer a", "ls ", " nichts"], True),
        (["größer als, nichts"], False),
        (["größer als nicht"], False),
    ],
)
def test_case_white_space_and_unicode_form_do_not_count(pieces, same):
    assert (key_of(*pieces) == key_of("größer als nichts")) == same


@given(counts=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 400), min_size=1))
def test_quotas_are_in_proportion_and_leave_most_to_learn_from(counts):
    records = sum(counts.values())
    quotas = record_quotas(counts, records)
    goal = max(1, min((records + 10) // 20, 1000))
    assert sum(quotas.wanted.values()) <= max(goal, records // 5)
    for label, count in counts.items():
        wanted = quotas.wanted[label]
        assert wanted <= max(count // 2, quotas.most[label])
        assert wanted == 0 if count == 1 else abs(wanted - goal * count / records) < 2
        assert quotas.most[label] < count
    several = [label for label in counts if counts[label] > 1]
    assert len([label for label in several if quotas.wanted[label]]) >= min(len(several), records // 5)


def test_a_large_corpus_has_a_thousand_validation_records():
    assert record_quotas({None: 10**6}, 10**6).wanted == {None: 1000}
    assert document_quotas(10**9, 10**6).wanted == {None: 10**6}, "a thousand documents of the usual size"


def test_memory_does_not_grow_with_the_corpus():
    documents = (document(str(i), f"l{i % 3}") for i in range(5_000))
    groups, pools = find_candidates(documents, {"l0": 3, "l1": 3, "l2": 3})
    assert len(groups) == sum(map(len, pools.values())) == 3 * (2 * 3 + 8)
    smallest = sorted(key_of(str(i)) for i in range(0, 5_000, 3))[:14]
    assert sorted(pools["l0"]) == smallest


def test_a_text_under_two_labels_is_on_one_side_and_leaves_both_to_learn():
    rows = [("both", "a"), ("both", "b"), ("x", "a"), ("y", "b")]
    documents = [document(text, label) for text, label in rows]
    drawn = draw(lambda: documents, record_quotas(Counter(label for _, label in rows), len(rows)))
    learned = [document.labels[0] for document in documents if not drawn.has(document)]
    assert len(learned) < len(rows)
    assert set(learned) == {"a", "b"}


@given(texts=st.lists(st.integers(0, 40), min_size=2, max_size=80))
def test_the_order_of_the_corpus_does_not_matter(texts):
    documents = [document(str(text), None) for text in texts]
    quotas = record_quotas({None: len(texts)}, len(texts))
    assert draw(lambda: documents, quotas) == draw(lambda: documents[::-1], quotas)


@given(n=st.integers(0, 5_000), count=st.integers(0, 300))
def test_one_of_each_part(n, count):
    drawn = spread(n, count)
    assert len(drawn) == min(n, count)
    assert drawn == sorted(set(drawn))
    assert all(0 <= number < n for number in drawn)
    assert all(after - before < 2 * -(-n // len(drawn)) for before, after in pairwise(drawn))


@given(n=st.integers(1, 2_000), every=st.integers(1, 60))
def test_one_of_each_neighbours_is_drawn(n, every):
    drawn = [number for number in range(n) if is_drawn(number, every)]
    blocks = [number // every for number in drawn]
    assert blocks[: n // every] == list(range(n // every))
    assert drawn[0] == 0


@pytest.mark.parametrize("period", [2, 5, 20, 50])
def test_what_repeats_is_seen_at_every_phase(period):
    """A stride of 50 saw a single phase of each of these."""
    drawn = [number for number in range(20_000) if is_drawn(number, 50)]
    for some in (drawn, spread(20_000, 400)):
        phases = Counter(number % period for number in some)
        assert len(phases) == period
        assert max(phases.values()) < 400 / period + 6 * (400 / period) ** 0.5


def test_it_is_the_same_everywhere():
    assert [pick(block, 1000) for block in (0, 1, 2, 10**12)] == [74, 223, 531, 363]
