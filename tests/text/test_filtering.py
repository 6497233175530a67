"""Filters and deduplication: what goes, what stays, and that it is counted; near copies by the law of MinHash."""

import random

import numpy as np
import pytest

from clearhead.errors import OptionError
from clearhead.text.encoding import Corpus, filtered_records
from clearhead.text.filtering import (
    BANDS,
    FILTERS,
    ROWS,
    LeftOut,
    LengthFilter,
    QualityFilter,
    TextFilter,
    TextMinima,
    find_copies,
)
from clearhead.text.lines import Place
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Documents, Record
from clearhead.text.validation_split import TextHash
from clearhead.training.tasks import TASKS

STREAM = TASKS["generate"].layout(16)
BYTES = Tokenizing(kind="byte")


def keys_of(text, *, near=True):
    text_hash, minima = TextHash(), TextMinima()
    text_hash.add(text)
    minima.add(text)
    return text_hash.key() + (minima.key() if near else b"")


def words(rng, n):
    return [f"w{rng.randrange(10_000)}" for _ in range(n)]


def changed(rng, text, share):
    """A text with a share of its words replaced at one place, so that about that share of the shingles differs."""
    n = round(len(text) * share)
    return [*text[:-n], *words(rng, n)] if n else list(text)


def test_the_share_of_equal_minima_is_that_of_equal_shingles():
    rng = random.Random(0)
    for share in (0.1, 0.5):
        text = words(rng, 400)
        other = changed(rng, text, share)
        minima = []
        for some in (text, other):
            made = TextMinima()
            made.add(" ".join(some))
            minima.append(made.minima)
        kept = 1 - share
        jaccard = kept / (2 - kept)
        assert np.mean(minima[0] == minima[1]) == pytest.approx(jaccard, abs=0.17)


def test_near_copies_are_found_and_others_are_not():
    rng = random.Random(1)
    texts = [" ".join(words(rng, 200)) for _ in range(60)]
    near = [" ".join(changed(rng, text.split(), 0.02)) for text in texts[:20]]
    far = [" ".join(changed(rng, text.split(), 0.7)) for text in texts[20:40]]
    exact = [text.upper() for text in texts[40:45]]
    copies, nearly = find_copies(map(keys_of, [*texts, *near, *far, *exact]), "near")
    assert copies.tolist() == list(range(100, 105))
    assert nearly.tolist() == list(range(60, 80))
    copies, nearly = find_copies([keys_of(text, near=False) for text in [*texts, *near, *exact]], "exact")
    assert (copies.tolist(), nearly.tolist()) == (list(range(80, 85)), [])


def test_the_first_of_several_copies_stays_in_every_order():
    texts = ["a b c", "d", "A  b\nc", "d", "e", "a b c"]
    copies, _ = find_copies([keys_of(text, near=False) for text in texts], "exact")
    assert copies.tolist() == [2, 3, 5]
    copies, _ = find_copies([], "near")
    assert copies.tolist() == []


def test_groups_of_minima_fill_a_key():
    assert len(TextMinima().key()) == 8 * BANDS
    assert TextMinima().minima.shape == (BANDS * ROWS,)


GOOD = "the ship that sails to the harbour of the town has a crew that sings " * 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD, None),
        ("the ship of the town", "too few words"),
        ("a b c d the to " * 20, "words of odd length"),
        (GOOD + "# " * 20, "too many symbols"),
        ("\n".join("- " + line for line in [GOOD] * 5), "nearly all lines are bullet points"),
        ("\n".join([GOOD, GOOD + "…", GOOD + "…"]), "many lines break off"),
        (GOOD + "1234 " * 40, "many words without a letter"),
        ("das Schiff segelt heute in den Hafen " * 10, "no stop words"),
    ],
)
def test_quality_leaves_out_what_is_no_running_text(text, reason):
    assert QualityFilter().refuses([text]) == reason


def test_length_counts_characters():
    assert LengthFilter(least=2, most=3).judge([["ab"], ["a"], ["abcd"], ["ab", "c"]]) == [
        None,
        "too short",
        "too long",
        "too short",
    ]
    with pytest.raises(OptionError, match="0 <= least <= most"):
        LengthFilter(least=3, most=2)
    assert set(FILTERS) >= {"length", "quality"}


def test_a_document_in_pieces_is_judged_by_its_first():
    source = Documents(paths=("any",))
    pieces = [("good", False), ("bad", True), ("bad", False), ("good", False), ("good", True), ("good", True)]
    records = [Record((text,), Place("any", i), ends) for i, (text, ends) in enumerate(pieces)]
    left_out = LeftOut()
    kept = list(filtered_records(records, source, STREAM, [Only("good")], left_out))
    assert [record.place.line for record in kept] == [0, 1, 5]
    assert left_out.to_json() == {"Only: not good": [1, 11]}


class Only(TextFilter):
    def __init__(self, word):
        self.word = word

    def refuses(self, texts):
        return None if texts[0] == self.word else f"not {self.word}"


def prepare_lines(folder, lines, **options):
    path = folder / "text.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    logged = []
    corpus = Corpus(train=Documents(paths=(str(path),), unit="line"), **options)
    prepared = prepare(corpus, STREAM, BYTES, folder / "data", logged.append)
    return prepared, logged


def test_what_was_left_out_is_counted_and_nothing_else_is_lost(tmp_path):
    lines = [f"line number {i} of a text" for i in range(100)]
    given = [*lines, *lines[:30], "short", *(line.upper() for line in lines[:5])]
    prepared, logged = prepare_lines(tmp_path, given, filters=(LengthFilter(least=10),), deduplicate="exact")
    assert prepared.notes["left_out"] == {
        "LengthFilter: too short": [1, 5],
        "copies": [35, sum(map(len, lines[:30])) + sum(map(len, lines[:5]))],
    }
    assert [line for line in logged if line.startswith("left out")] == [
        "left out: 35 records, 0.0 MB: copies",
        "left out: 1 records, 0.0 MB: LengthFilter: too short",
    ]
    tokenizer = prepared.tokenizers["text"]
    stored = [tokenizer.decode(s["text"][i].tolist()) for s in (prepared.train, prepared.dev) for i in range(len(s))]
    assert sorted(stored) == sorted(lines)
    assert prepared.notes["records"] == 100
    assert prepared.copies.tolist() == [*range(100, 135)]


def test_without_them_everything_stays(tmp_path):
    prepared, logged = prepare_lines(tmp_path, ["a text"] * 50)
    assert prepared.notes["left_out"] == {}
    assert prepared.copies is None
    assert len(prepared.train) + len(prepared.dev) == 50
    assert not any(line.startswith("left out") for line in logged)
