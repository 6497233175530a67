"""The last reading: which records are held out, what becomes of long ones, and that none is both learned and asked."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import DataError, OptionError
from clearhead.text import encoding as module
from clearhead.text import sources
from clearhead.text.encoding import (
    Corpus,
    Encoding,
    Layout,
    chunks,
    cut_in_two,
    every_nth,
    number_records,
    usable_records,
)
from clearhead.text.preparing import survey
from clearhead.text.problems import Place, Problems
from clearhead.text.sources import Aligned, Documents, Record, Table
from clearhead.text.store import Store
from clearhead.text.tokenizer import Tokenizer

BYTE = Tokenizer.train(["any"], "byte")
PAIRS = Layout(texts=("source", "target"), most=8, too_long="drop")
STREAM = Layout(texts=("text",), most=8, too_long="keep", end=True)
LINES = Layout(texts=("text",), most=8, too_long="split")
LABELLED = Layout(texts=("text",), label="label", most=8, too_long="cut")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("encoding")


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def lined(folder, lines, name="lines"):
    return Documents(paths=(write(folder / name, lines),), unit="line")


def encoded(folder, layout, source, dev=None, tokenizer=BYTE):
    """The stores of a corpus as texts, and the encoding itself."""
    found = survey(source, layout, Problems(), None)
    encoding = Encoding(layout, dict.fromkeys(layout.texts, tokenizer), found.labels)
    encoding.write(Corpus(train=source, dev=dev), found, folder)
    return encoding, Store(folder / "train"), Store(folder / "dev")


def read(store, name="text", tokenizer=BYTE):
    """The records of a store as text; an end token is a stop."""
    rows = (store[name][i].tolist() for i in range(len(store)))
    return [tokenizer.decode(row) + "." * row.count(tokenizer.end) for row in rows]


def test_pairs_stay_pairs(folder):
    rows = [(f"de{i}", f"en{i}") for i in range(40)]
    files = [write(folder / name, column) for name, column in zip(("de", "en"), zip(*rows, strict=True), strict=True)]
    source = Aligned(source=(files[0],), target=(files[1],))
    _, train, dev = encoded(folder, PAIRS, source)
    held = [rows[10], rows[30]]
    assert list(zip(read(dev, "source"), read(dev, "target"), strict=True)) == held
    assert list(zip(read(train, "source"), read(train, "target"), strict=True)) == [
        row for row in rows if row not in held
    ]


def test_labels_are_numbers_by_their_order(folder):
    rows = [("text", "label"), *((f"t{i}", "ab"[i % 2] * 2) for i in range(20))]
    source = Table(paths=(write(folder / "t.tsv", map("\t".join, rows)),), columns=rows[0], fields=rows[0])
    encoding, train, dev = encoded(folder, LABELLED, source)
    assert encoding.labels == ("aa", "bb")
    assert [train["label"][i].tolist() for i in range(3)] == [[0], [1], [0]]
    assert (read(dev), dev["label"][0].tolist()) == (["t10"], [0])


def test_a_dev_corpus_is_all_that_is_held_out(folder):
    source, other = lined(folder, ["one", "two"]), lined(folder, ["two", "three"], "other")
    _, train, dev = encoded(folder, STREAM, source, other)
    assert (read(train), read(dev)) == (["one.", "two."], ["two.", "three."])


@given(n=st.integers(2, 50_000))
def test_one_in_twenty_is_held_out_evenly_and_a_thousand_at_most(n):
    held = [number for number in range(n) if every_nth(n)(number)]
    assert 1 <= len(held) <= 1000
    assert len(held) <= max(1, (n + 10) // 20)
    assert len(held) >= min(n // 20, 900), "not many fewer than it might be"
    assert len({after - before for before, after in pairwise(held)}) <= 1
    assert held[0] > 0


def test_one_record_cannot_be_split(folder):
    with pytest.raises(DataError, match="one record cannot be split"):
        encoded(folder, LINES, lined(folder, ["alone"]))


def test_numbers_go_by_documents():
    records = [Record(("a",), Place("f", 1), ends=ends) for ends in (True, False, False, True, True)]
    assert [number for number, _ in number_records(records)] == [0, 1, 1, 1, 2]


@given(lines=st.lists(st.sampled_from([f"line {i}" for i in range(80)]), min_size=20, max_size=60))
@pytest.mark.slow
def test_nothing_held_out_is_learned_unless_it_is_common(folder, lines):
    encoding, train, dev = encoded(folder, Layout(texts=("text",), most=20), lined(folder, lines))
    learned, held = Counter(read(train)), Counter(read(dev))
    equal = sum((Counter(lines) - held)[line] for line in held)
    assert encoding.equal == equal
    if equal <= len(lines) // 10:
        assert encoding.left_out
        assert not learned.keys() & held.keys()
        assert learned.total() == len(lines) - held.total() - equal
    else:
        assert not encoding.left_out
        assert learned + held == Counter(lines)


def test_pairs_are_equal_only_if_both_sides_are(folder):
    sources, targets = ["same"] * 40, [f"t{i}" for i in range(40)]
    targets[3] = targets[10]
    files = write(folder / "a", sources), write(folder / "b", targets)
    encoding, train, dev = encoded(folder, PAIRS, Aligned(source=(files[0],), target=(files[1],)))
    assert encoding.equal == 1
    assert (len(train), len(dev)) == (37, 2)
    assert "t10" not in read(train, "target")


def test_lines_of_a_stream_may_come_again(folder):
    encoding, train, dev = encoded(folder, STREAM, lined(folder, ["ja"] + [f"l{i}" for i in range(38)] + ["l9"]))
    assert encoding.equal == 0
    assert "l9." in read(train)
    assert "l9." in read(dev)


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        ("drop", ["short"]),
        ("cut", ["a long l", "short"]),
        ("split", ["a long l", "ine, too", " long", "short"]),
        ("keep", ["a long line, too long", "short"]),
    ],
)
def test_what_becomes_of_a_long_record(folder, fate, expected):
    layout = Layout(texts=("text",), most=8, too_long=fate)
    source, other = lined(folder, ["a long line, too long", "short"]), lined(folder, ["other"], "other")
    encoding, train, _ = encoded(folder, layout, source, other)
    assert read(train) == expected
    assert encoding.too_long == (fate != "keep")
    assert train.sizes["text"].text_bytes == len("short" if fate == "drop" else "a long line, too longshort")


def test_a_pair_is_as_long_as_its_longer_side(folder):
    layout = Layout(texts=("source", "target"), most=3, too_long="cut")
    source = Aligned(source=(write(folder / "a", ["abcdef", "b"]),), target=(write(folder / "b", ["A", "Bcdefg"]),))
    encoding, train, _ = encoded(folder, layout, source, source)
    assert (read(train, "source"), read(train, "target")) == (["abc", "b"], ["A", "Bcd"])
    assert encoding.too_long == 4


def test_records_without_a_token_are_left_out_and_counted(folder):
    """A given tokeniser may take away all there is in a text."""
    dots = {"type": "Replace", "pattern": {"String": "."}, "content": ""}
    blind = Tokenizer(json.dumps(json.loads(BYTE.to_json()) | {"normalizer": dots}))
    source = lined(folder, ["a", "...", "b.", "....."])
    encoding, train, dev = encoded(folder, LINES, source, source, blind)
    assert read(train) == read(dev) == ["a", "b"]
    assert encoding.nothing == 4
    assert encoding.too_long == 0


def in_two(documents):
    """The records of both sides of a stream; a document is its pieces."""
    records = [
        Record(("other", piece), Place("f", 1), ends=i == len(pieces) - 1)
        for pieces in documents
        for i, piece in enumerate(pieces)
    ]
    n_bytes = sum(len(record.fields[1].encode()) for record in records)
    placed = list(cut_in_two(records, n_bytes, field=1))
    cut = next(i for i, (_, held) in enumerate(placed) if held)
    assert all(held for _, held in placed[cut:])
    return [record for record, _ in placed[:cut]], [record for record, _ in placed[cut:]]


PIECES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=9)


@given(documents=st.lists(st.lists(PIECES, min_size=1, max_size=4), min_size=1, max_size=6))
def test_the_end_of_a_stream_is_held_out(documents):
    """Together both sides are the text, and the last tenth of it is held out, to the character."""
    sides = in_two(documents)
    train, dev = ("".join(record.fields[1] for record in side) for side in sides)
    whole = "".join("".join(pieces) for pieces in documents)
    assert train + dev == whole
    assert dev
    assert 0 <= len(whole.encode()) * 9 // 10 - len(train.encode()) < 4
    assert all(side[-1].ends for side in sides if side)
    assert {record.fields[0] for side in sides for record in side} == {"other"}
    ended = sum(record.ends for side in sides for record in side)
    assert ended in (len(documents), len(documents) + 1), "the document that is cut ends in both"


def test_the_document_that_is_cut_ends_in_both():
    assert [[(one.fields[1], one.ends) for one in side] for side in in_two([["one"], ["0123456789", "x"]])] == [
        [("one", True), ("012345678", True)],
        [("9", False), ("x", True)],
    ]


def test_a_cut_between_documents_adds_none():
    sides = in_two([["123456789"], ["0"]])
    assert [[(one.fields[1], one.ends) for one in side] for side in sides] == [[("123456789", True)], [("0", True)]]


def test_a_cut_between_pieces_ends_the_document():
    sides = in_two([["123456789", "0"]])
    assert [[(one.fields[1], one.ends) for one in side] for side in sides] == [
        [("123456789", False), ("", True)],
        [("0", True)],
    ]


def test_of_a_long_stream_no_more_than_so_many_bytes(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 3)
    _, dev = in_two([["a" * 1000]])
    assert [record.fields[1] for record in dev] == ["aaa"]


def test_a_stream_of_few_documents_is_held_out_at_its_end(folder):
    """The bytes are those of the text, whatever the tokens; an end token closes a document on either side."""
    paths = [write(folder / name, ["größer als", "nichts"]) for name in ("1", "2")]
    source = Documents(paths=tuple(paths), unit="file")
    _, train, dev = encoded(folder, STREAM, source)
    text = "größer als\nnichts\n"
    assert read(train) == [f"{text}.", f"{text[:-4]}."]
    assert read(dev) == [f"{text[-4:]}."]
    assert train.sizes["text"].text_bytes + dev.sizes["text"].text_bytes == 2 * len(text.encode())


def test_a_long_document_is_one_record_of_a_stream(folder, monkeypatch):
    monkeypatch.setattr(sources, "PIECE", 4)
    source = Documents(paths=(write(folder / "d", ["abcdef"] * 30),), unit="file")
    _, train, dev = encoded(folder, STREAM, source)
    assert (len(train), len(dev)) == (1, 1)
    assert read(train)[0][:-1] + read(dev)[0] == "abcdef\n" * 30 + "."


def test_a_stream_too_short_to_foresee_anything_is_told(folder):
    path = folder / "short"
    source = Documents(paths=(str(path),), unit="file")
    path.write_text("a")
    with pytest.raises(DataError, match="no training record left; give more text, or a dev file"):
        encoded(folder, STREAM, source)
    path.write_text("ab")
    _, train, dev = encoded(folder, STREAM, source)
    assert (read(train), read(dev)) == (["a."], ["b."])


def test_it_is_told_if_nothing_is_left(folder):
    source = lined(folder, [f"far too long for it {i}" for i in range(30)])
    with pytest.raises(DataError, match="no training record left"):
        encoded(folder, Layout(texts=("text",), most=8, too_long="drop"), source)


def test_a_layout_without_room_is_told():
    with pytest.raises(OptionError, match="rows would hold 0; raise --context"):
        Layout(texts=("text",), most=0)


def test_unknown_labels_are_problems_by_their_place(folder):
    rows = [("text", "label"), ("a", "x"), ("b", "y" * 100), ("c", "x")]
    source = Table(paths=(write(folder / "t.tsv", map("\t".join, rows)),), columns=rows[0], fields=rows[0])
    problems = Problems()
    assert [record.fields[0] for record in usable_records(source, LABELLED, problems, ("x", "z"))] == ["a", "c"]
    with pytest.raises(DataError, match=r"t\.tsv:3: the label 'y{40}\.\.\.' never occurs .* which have 'x', 'z'"):
        problems.settle()


def test_chunks_are_of_so_many_records_or_so_much_text(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_RECORDS", 3)
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 10)
    records = [Record(("a" * n, "b"), Place("f", 1)) for n in (1, 1, 1, 1, 20, 1)]
    found = list(chunks(records))
    assert [len(chunk) for chunk in found] == [3, 2, 1]
    assert [record for chunk in found for record in chunk] == records
