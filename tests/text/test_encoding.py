"""The last reading: which records are held out, what becomes of long ones, and that none is both learned and asked."""

import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clearhead.errors import DataError, OptionError
from clearhead.text import encoding as module
from clearhead.text import table_readers
from clearhead.text.encoding import Encoding, Layout, chunks, cut_in_two, usable_records
from clearhead.text.lines import Place, Problems
from clearhead.text.parts import HeldOut, PartJob, Team, draw_held_out, join_parts, survey_parts
from clearhead.text.preparing import encode_together
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
    with tempfile.TemporaryDirectory() as parts:
        tokenizers = dict.fromkeys(layout.texts, tokenizer)
        job = PartJob(source, layout, None, False, Path(parts)).divided()
        train = encode_together(job._replace(folder=job.folder / "train"), tokenizers, Team())
        found = survey_parts(train, layout, Problems())
        held_out = draw_held_out(train, layout, found) if dev is None else HeldOut()
        dev_job = job._replace(source=dev, folder=job.folder / "dev")
        others = None if dev is None else encode_together(dev_job, tokenizers, Team())
        encoding = Encoding(layout, tokenizers, found.labels)
        join_parts(encoding, train, others, held_out, source=source, home=folder)
    encoding.copies = held_out.copies
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
    held = list(zip(read(dev, "source"), read(dev, "target"), strict=True))
    assert len(held) == 2
    assert held == [row for row in rows if row in held]
    assert list(zip(read(train, "source"), read(train, "target"), strict=True)) == [
        row for row in rows if row not in held
    ]


def test_labels_are_numbers_by_their_order(folder):
    rows = [("text", "label"), *((f"t{i}", "ab"[i % 2] * 2) for i in range(20))]
    source = Table(paths=(write(folder / "t.tsv", map("\t".join, rows)),), columns=rows[0], fields=rows[0])
    encoding, train, dev = encoded(folder, LABELLED, source)
    assert encoding.labels == ("aa", "bb")
    for store in (train, dev):
        numbers = [store["label"][i].tolist() for i in range(len(store))]
        assert numbers == [[int(text[1:]) % 2] for text in read(store)]
    assert len(dev) == 2


def test_a_dev_corpus_is_all_that_is_held_out(folder):
    source, other = lined(folder, ["one", "two"]), lined(folder, ["two", "three"], "other")
    _, train, dev = encoded(folder, STREAM, source, other)
    assert (read(train), read(dev)) == (["one.", "two."], ["two.", "three."])


def test_one_record_cannot_be_split(folder):
    with pytest.raises(DataError, match="one record cannot be split"):
        encoded(folder, LINES, lined(folder, ["alone"]))


def test_long_documents_are_drawn_as_wholes(folder, monkeypatch):
    """The pieces of a document are on one side, and the choice does not depend on where it is cut into them."""
    paths = [folder / f"document {i}" for i in range(40)]
    for i, path in enumerate(paths):
        path.write_text(f"{i} begins\n" + "it goes on\n" * (3 + i % 5) + f"{i} ends\n")
    source = Documents(paths=tuple(map(str, paths)), unit="file")
    sides = []
    for piece in (8, 1 << 20):
        monkeypatch.setattr(table_readers, "PIECE", piece)
        _, train, dev = encoded(folder, STREAM, source)
        sides.append((read(train), read(dev)))
    assert sides[0] == sides[1]
    train, dev = sides[0]
    assert sorted([*train, *dev]) == sorted(f"{path.read_text()}." for path in paths)
    largest = max(map(len, [*train, *dev]))
    assert abs(sum(map(len, dev)) - sum(map(len, [*train, *dev])) / 20) <= largest / 2, "as near as whole ones come"


def test_few_documents_are_held_out_as_wholes(folder):
    """Of two documents one is held out, not the end of both together."""
    texts = ["one " * 50, "another " * 40]
    paths = [folder / name for name in ("one", "another")]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    _, train, dev = encoded(folder, STREAM, Documents(paths=tuple(map(str, paths)), unit="file"))
    assert (read(train), read(dev)) == ([f"{texts[1]}."], [f"{texts[0]}."])


def test_a_document_that_is_nearly_all_of_the_text_is_cut(folder):
    long, short = folder / "long", folder / "short"
    long.write_text("a line of it\n" * 500)
    short.write_text("tiny")
    _, train, dev = encoded(folder, STREAM, Documents(paths=(str(short), str(long)), unit="file"))
    assert read(train)[0] == "tiny."
    assert "tiny." not in read(dev)
    assert len(read(dev)[0]) > 600


@given(lines=st.lists(st.sampled_from([f"line {i}" for i in range(80)]), min_size=20, max_size=60))
@pytest.mark.slow
def test_nothing_held_out_is_learned_and_nothing_is_lost(folder, lines):
    encoding, train, dev = encoded(folder, Layout(texts=("text",), most=20), lined(folder, lines))
    learned, held = Counter(read(train)), Counter(read(dev))
    assert learned + held == Counter(lines)
    assert 1 <= held.total() <= max(1, len(lines) // 5)
    assert encoding.copies == sum(held[line] for line in held if line in learned)
    if min(Counter(lines).values()) == 1:
        assert not encoding.copies


def test_the_same_text_in_other_case_or_spacing_is_on_one_side(folder):
    """It was learned and asked for before: only records that were equal to the letter were kept apart."""
    lines = [text for i in range(100) for text in (f"number {i} Ä", f"Number  {i}\tä", f"NUMBER {i} A\u0308")]
    _, train, dev = encoded(folder, Layout(texts=("text",), most=40), lined(folder, lines))
    held = [line.split()[1] for line in read(dev)]
    assert len(held) == 15
    assert set(Counter(held).values()) == {3}
    assert not set(held) & {line.split()[1] for line in read(train)}


def test_pairs_are_the_same_only_if_both_sides_are(folder):
    files = write(folder / "a", ["same"] * 40), write(folder / "b", [f"t{i // 2}" for i in range(40)])
    _, train, dev = encoded(folder, PAIRS, Aligned(source=(files[0],), target=(files[1],)))
    assert (len(train), len(dev)) == (38, 2)
    assert not set(read(train, "target")) & set(read(dev, "target"))


def test_a_text_that_comes_again_and_again_is_copied_to_both_sides_only_if_there_is_no_other(folder):
    encoding, train, dev = encoded(folder, LINES, lined(folder, ["a", "b"] * 30))
    assert (len(train), len(dev), encoding.copies) == (57, 3, 3)
    encoding, train, dev = encoded(folder, LINES, lined(folder, ["yes"] * 200 + [f"l{i}" for i in range(200)]))
    assert not encoding.copies
    assert len(dev) == 20
    assert "yes" not in read(dev)


def tabled(folder, rows, name="t.tsv"):
    lines = ["text\tlabel", *(f"{text}\t{label}" for text, label in rows)]
    return Table(paths=(write(folder / name, lines),), columns=("text", "label"), fields=("text", "label"))


def counted(encoding, store):
    return Counter(encoding.labels[number] for number in store["label"].ids)


def test_of_a_label_with_a_single_text_copies_are_held_out_and_counted(folder):
    rows = [("always the same", "a")] * 100 + [(f"t{i}", "b") for i in range(100)]
    encoding, train, dev = encoded(folder, LABELLED, tabled(folder, rows))
    assert counted(encoding, dev) == {"a": 5, "b": 5}
    assert encoding.copies == 5
    assert not {text for text in read(dev) if text[0] == "t"} & set(read(train))


@pytest.mark.parametrize("period", [4, 20])
def test_labels_in_step_with_the_lines_are_on_both_sides_in_proportion(folder, period):
    """Of every twentieth record all had one label (4), and another label was never trained (20)."""
    source = tabled(folder, [(f"text {i}", f"l{i % period}") for i in range(2000)])
    encoding, train, dev = encoded(folder, LABELLED, source)
    assert counted(encoding, dev) == {f"l{i}": 100 // period for i in range(period)}
    assert counted(encoding, train) == {f"l{i}": 1900 // period for i in range(period)}


@given(labels=st.lists(st.sampled_from("aaaaaaaabbbbcdefgh"), min_size=2, max_size=120))
def test_every_label_of_two_records_is_learned_and_asked_for_where_there_is_room(folder, labels):
    assume(1 < len(set(labels)) < len(labels))
    encoding, train, dev = encoded(folder, LABELLED, tabled(folder, [(f"t{i}", x) for i, x in enumerate(labels)]))
    counts, learned, held = Counter(labels), counted(encoding, train), counted(encoding, dev)
    assert learned + held == counts
    assert set(learned) == set(labels)
    assert all(held[label] <= max(1, counts[label] // 5) for label in held)
    several = [label for label in counts if counts[label] > 1]
    assert len(held) >= min(len(several), max(1, len(labels) // 5))


def test_labels_of_a_single_record_are_not_held_out(folder):
    with pytest.raises(DataError, match="there is no held-out record left; give more text, or a dev file"):
        encoded(folder, LABELLED, tabled(folder, [("t0", "a"), ("t1", "b")]))


def test_the_choice_is_by_text_and_not_by_order(folder):
    rows = [(f"text {i}", "ab"[i % 3 == 0]) for i in range(300)]
    _, _, dev = encoded(folder, LABELLED, tabled(folder, rows))
    _, _, other = encoded(folder, LABELLED, tabled(folder, rows[::-1], "turned.tsv"))
    assert sorted(read(dev)) == sorted(read(other))


def test_many_labels_and_labels_of_words_are_on_both_sides(folder):
    rows = [(f"w{i} x", ("common, " * (i % 2 == 0) + "rare" * (i % 50 == 0)).strip(", ") or "-") for i in range(200)]
    encoding, train, dev = encoded(folder, replace(LABELLED, label_of="many"), tabled(folder, rows))
    assert (counted(encoding, train) + counted(encoding, dev)) == {"common": 100, "rare": 4}
    assert counted(encoding, dev)["rare"] == 1
    assert 4 <= counted(encoding, dev)["common"] <= 6
    assert 9 <= len(dev) <= 11
    words = Tokenizer.train([f"w{i}" for i in range(200)], "word")
    rows = [(f"w{i}", "NOUN" if i % 40 else "NAME") for i in range(200)]
    encoding, train, dev = encoded(folder, replace(LABELLED, label_of="word"), tabled(folder, rows), tokenizer=words)
    assert counted(encoding, dev) == {"NOUN": 10, "NAME": 1} or counted(encoding, dev) == {"NOUN": 9, "NAME": 1}
    assert counted(encoding, train)["NAME"] == 4


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


def test_a_stream_of_one_document_is_held_out_at_its_end(folder):
    """The bytes are those of the text, whatever the tokens; an end token closes a document on either side."""
    source = Documents(paths=(write(folder / "1", ["größer als", "nichts"] * 2),), unit="file")
    _, train, dev = encoded(folder, STREAM, source)
    text = "größer als\nnichts\n" * 2
    assert read(train) == [f"{text[:-4]}."]
    assert read(dev) == [f"{text[-4:]}."]
    assert train.sizes["text"].text_bytes + dev.sizes["text"].text_bytes == len(text.encode())


def test_a_long_document_is_one_record_of_a_stream(folder, monkeypatch):
    monkeypatch.setattr(table_readers, "PIECE", 4)
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
