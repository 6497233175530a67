"""Sources: every corpus comes as records, and what is wrong with it as problems, never as a traceback."""

import csv
import gzip
import io
import json
import re
import sys
import tracemalloc
from dataclasses import asdict

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from clearhead.errors import ClearheadError, DataError, OptionError
from clearhead.text.lines import MAX_LINE, PIECE, Place, Problems
from clearhead.text.sources import Aligned, Documents, Record, Source, Table, check_choice, check_paths
from tests.covering import share_of

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0\n\r"))
FULL = TEXT.filter(str.strip)
BROKEN = [b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\n", b"\r\n", b"\r", b" ", b"a", b"1"]
ROWS = [b"a\tb\n", b"\t", b"a,b\n", b",", b'"', b'""', b'a,"b\nc"\n']
OBJECTS = [b'{"a": "x", "b": 1}\n', b"{", b"}", b'"a":', b"[", b'"\\ud800"', b"NaN", b"1e999", b"true", b"null", b":"]
BYTES = st.lists(st.one_of(st.sampled_from(BROKEN + ROWS + OBJECTS), st.binary(max_size=6))).map(b"".join)
PAIR = {"columns": ("a", "b"), "fields": ("source", "target")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all examples of a module: hypothesis writes over the same files."""
    return tmp_path_factory.mktemp("sources")


@pytest.fixture
def file(tmp_path):
    def write(name: str, content: bytes | str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def read(source: Source, problems: Problems | None = None) -> list[tuple[str, ...]]:
    """The fields of all records, nothing being wrong or what is wrong being skipped."""
    problems = problems or Problems()
    found = [record.fields for record in source.records(problems)]
    problems.settle()
    return found


def told(source: Source) -> list[str]:
    """What is wrong, as it is told, without the folder."""
    problems = Problems()
    for _ in source.records(problems):
        pass
    with pytest.raises(DataError) as caught:
        problems.settle()
    return [re.sub(r"^  \S*/", "", line) for line in str(caught.value).splitlines()[1:-1]]


def test_aligned_files_come_in_pairs(file):
    source = Aligned(
        source=(file("a.de", "eins\nzwei\n"), file("b.de", "drei")),
        target=(file("a.en", "one\ntwo"), file("b.en", "three\n")),
    )
    assert list(source.records(Problems())) == [
        Record(("eins", "one"), Place(source.source[0], 1)),
        Record(("zwei", "two"), Place(source.source[0], 2)),
        Record(("drei", "three"), Place(source.source[1], 1)),
    ]
    assert source.fields == ("source", "target")
    assert source.files == (*source.source, *source.target)


def test_folders_are_aligned_by_the_names_in_them(file, tmp_path):
    for name in ("2", "1"):
        file(f"de/{name}.txt", f"de {name}\n")
        file(f"en/{name}.txt", f"en {name}\n")
    source = Aligned(source=(str(tmp_path / "de"),), target=(str(tmp_path / "en"),))
    assert read(source) == [("de 1", "en 1"), ("de 2", "en 2")]
    assert [path.removeprefix(str(tmp_path)) for path in source.files] == [
        "/de/1.txt",
        "/de/2.txt",
        "/en/1.txt",
        "/en/2.txt",
    ]
    file("en/3.txt", "more")
    with pytest.raises(DataError, match="come in pairs; there are 2 of the source and 3 of the target"):
        read(source)


@pytest.mark.parametrize("counts", [(3, 5), (5, 3), (1, 2), (2, 1), (1, 1201)])
def test_files_with_different_numbers_of_lines_are_refused(file, counts):
    paths = [file(name, "x\n" * count) for name, count in zip(("a.de", "a.en"), counts, strict=True)]
    source = Aligned(source=(paths[0],), target=(paths[1],))
    with pytest.raises(DataError, match=rf"a\.de has {counts[0]:,} lines and \S*a\.en has {counts[1]:,} lines"):
        read(source)


@pytest.mark.parametrize("blank", ["", " ", "\t\u3000\xa0"])
def test_a_blank_line_on_either_side_is_a_problem(file, blank):
    source = Aligned(source=(file("a.de", f"1\n{blank}\n3\n4"),), target=(file("a.en", f"a\nb\n{blank}\nd"),))
    assert read(source, problems := Problems(skip=True)) == [("1", "a"), ("4", "d")]
    assert problems.counts == {"empty line": 2}
    assert told(source)[0] == "a.de:2: the line is empty, and its partner waits for a text"
    assert told(source)[1].startswith("a.en:3: ")


def test_a_bad_line_takes_its_partner_along(file):
    source = Aligned(source=(file("a.de", b"1\n\xff\n3\n4\n\n"),), target=(file("a.en", b"a\nb\n\0\nd\n\xff\n"),))
    assert read(source, problems := Problems(skip=True)) == [("1", "a"), ("4", "d")]
    assert problems.counts == {"invalid UTF-8": 2, "NUL character": 1}
    assert len(told(source)) == 3


def test_both_sides_cannot_be_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    with pytest.raises(DataError, match="stdin can be read only once"):
        read(Aligned(source=("-",), target=("-",)))


def test_a_source_with_stdin_is_read_once(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    source = Documents(paths=("-",), unit="line")
    assert read(source) == [("a",), ("b",)]
    with pytest.raises(DataError, match="stdin can be read only once"):
        read(source)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tsv", "b\tno\ta\nB\t-\tA\nB2\t\tA2\n"),
        ("T.TAB", "b\ta\nB\tA\r\n\nB2\tA2"),
        ("t.csv", 'b,no,a\nB,,"A"\n\n"B2",,A2\n'),
        ("t.jsonl", '{"a": "A", "b": "B"}\n\n {"b": "B2", "a": "A2", "c": [{}]}\n'),
        ("t.ndjson", '{"a": "A", "b": "B"}\r\n{"b": "B2", "a": "A2"}'),
        ("t.json", '\ufeff{"a": "A", "b": "B"}\n{"b": "B2", "a": "A2"}\n'),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_table_has_a_record_a_line_whatever_its_form(file, name, content, packed):
    path = file(f"{name}.gz", gzip.compress(content.encode())) if packed else file(name, content)
    assert read(Table(paths=(path,), **PAIR)) == [("A", "B"), ("A2", "B2")]


def test_a_json_array_may_be_broken_anywhere(file):
    rows = [{"a": f"text {i}, [so]\n", "b": str(i)} for i in range(3)]
    for text in (json.dumps(rows), json.dumps(rows, indent=4), " \n" + json.dumps(rows).replace("}, {", "},\n{")):
        assert read(Table(paths=(file("t.json", text),), **PAIR)) == [(row["a"], row["b"]) for row in rows]


def test_a_long_json_array_is_read_in_pieces(file):
    rows = [{"a": "x" * 90_000, "b": str(i)} for i in range(30)]
    path = file("t.json", json.dumps(rows))
    assert [b for _, b in read(Table(paths=(path,), **PAIR))] == [str(i) for i in range(30)]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('[{"a": "1", "b": "2"}, 7]', "t.json:1: an element of the array is '7', no object"),
        ('[{"a": "1", "b": "2"},\n{"a": "1" "b"}]', "t.json:2: not JSON"),
        ('[{"a": "1", "b": "2"}', "t.json:1: the file ends within its array"),
        ('[{"a": "1"}]', "t.json:1: there is no key 'b'; there are 'a'"),
    ],
)
def test_what_is_wrong_with_a_json_array_has_its_place(file, content, found):
    assert any(found in one for one in told(Table(paths=(file("t.json", content),), **PAIR)))


FASTTEXT = "__label__sport a ball\n__label__sport __label__news a ball  today\nno label\n"


def test_fasttext_has_one_label_or_all(file):
    path = file("t.txt", FASTTEXT)
    one = Table(paths=(path,), columns=("text", "label"), fields=("text", "label"))
    assert told(one) == [
        f"t.txt:{line}: the line has {count} labels, and one is expected; --task label takes any number"
        for line, count in ((2, 2), (3, 0))
    ]
    every = Table(paths=(path,), columns=("text", "labels"), fields=("text", "label"))
    assert read(every) == [("a ball", "sport"), ("a ball today", "sport, news"), ("no label", "-")]
    with pytest.raises(DataError, match="has text, label, labels for columns, and no 'a'"):
        read(Table(paths=(path,), **PAIR))


CONLL = "-DOCSTART- -X- O\n\nThe DT O\ndog NN B-X\n\n# SYM O\nbarks VB O\n"


def test_conll_has_a_sentence_between_blank_lines(file):
    fields = {"fields": ("text", "label")}
    assert read(Table(paths=(file("t.txt", CONLL),), columns=("text", "label"), **fields)) == [
        ("The dog", "O B-X"),
        ("# barks", "O O"),
    ]
    path = file("t.conll", CONLL.replace(" ", "\t"))
    assert read(Table(paths=(path,), columns=("1", "2"), **fields)) == [("The dog", "DT NN"), ("# barks", "SYM VB")]
    universal = "# text = zum\n1-2\tzum\t_\t_\n1\tzu\tzu\tADP\n2\tdem in\tdas\tDET\n"
    assert read(Table(paths=(file("t.conllu", universal),), columns=("text", "label"), **fields)) == [
        ("zu dem_in", "ADP DET")
    ]
    uneven = Table(paths=(file("b.bio", "a b\na b c\n"),), columns=("1", "2"), **fields)
    assert "lines of 2 or 3 columns" in told(uneven)[0]


def test_a_file_of_tagged_words_is_no_table_of_records(file):
    source = Table(paths=(file("t.tsv", CONLL.replace(" ", "\t")),), columns=("1", "3"), fields=("text", "label"))
    source.check_units(words=True)
    with pytest.raises(DataError, match=r"t\.tsv: a word a line.*--task tag.*--form tsv"):
        source.check_units(words=False)


def test_columns_are_names_and_not_letters():
    with pytest.raises(OptionError, match="expected names in a tuple"):
        Table(paths=("x.tsv",), columns="ab", fields=("a", "b"))


@pytest.mark.parametrize(("name", "between"), [("t.tsv", "\t"), ("t.csv", ",")])
def test_columns_that_are_numbers_are_for_files_without_names(file, name, between):
    path = file(name, f"A{between}x{between}B\nA2{between}y{between}B2\n")
    source = Table(paths=(path,), columns=("3", "1"), fields=("source", "target"))
    assert read(source) == [("B", "A"), ("B2", "A2")]
    for column in ("0", "4", "9" * 5000, "01"):
        with pytest.raises(
            DataError, match=rf"{name}: there is no column '{column[:40]}.*; its columns are '1', '2', '3'"
        ):
            read(Table(paths=(path,), columns=("1", column), fields=("source", "target")))


@pytest.mark.parametrize(("name", "between"), [("t.tsv", "\t"), ("t.csv", ",")])
def test_a_column_that_is_not_there_is_refused(file, name, between):
    source = Table(paths=(file(name, between.join(["a", "c", "c"]) + "\n"),), **PAIR)
    with pytest.raises(DataError, match=rf"{name}: there is no column 'b'; its columns are 'a', 'c', 'c'\. If"):
        read(source)
    with pytest.raises(DataError, match=r"there is more than one column 'c'"):
        read(Table(paths=source.paths, columns=("c",), fields=("text",)))
    many = Table(paths=(file(name, between.join(f"column {i}" for i in range(1000))),), **PAIR)
    with pytest.raises(DataError, match=r"'column 19', 980 more\. If"):
        read(many)


@pytest.mark.parametrize("content", [b"\xff\na\tb\n", b"\n\n", b"\n\xff\na\tb\n"])
@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_a_line_of_names_that_cannot_be_read_is_refused(file, name, content):
    """Else the first record would be taken for it."""
    with pytest.raises(DataError, match=rf"{name}: the first line must name the columns"):
        read(Table(paths=(file(name, content.replace(b"\t", b",")),), **PAIR))


def test_every_file_of_a_table_has_its_own_names(file):
    paths = file("1.tsv", "a\tb\nA\tB\n"), file("2.tsv", "b\ta\nB\tA\n"), file("3.csv", "b,a\nB,A\n")
    assert read(Table(paths=paths, **PAIR)) == [("A", "B")] * 3


@pytest.mark.parametrize("columns", [("a", "b"), ("1", "2")])
@pytest.mark.parametrize(("name", "between"), [("t.tsv", "\t"), ("t.csv", ",")])
def test_a_row_with_more_or_fewer_columns_is_a_problem(file, name, between, columns):
    content = "a,b\n1,2\n3\n4,5,6\n7,8\n".replace(",", between)
    source = Table(paths=(file(name, content),), columns=columns, fields=("source", "target"))
    wanted = [("1", "2"), ("7", "8")]
    assert read(source, problems := Problems(skip=True))[-2:] == wanted
    assert problems.counts == {"wrong number of columns": 2}
    assert told(source) == [
        f"{name}:{line}: the line has {n} columns, and the first one has 2" for line, n in ((3, 1), (4, 3))
    ]


def test_numbers_of_columns_pass_over_bad_lines_at_the_start(file):
    source = Table(paths=(file("t.tsv", b"\xff\nA\tB\n"),), columns=("2",), fields=("text",))
    assert read(source, problems := Problems(skip=True)) == [("B",)]
    assert problems.counts == {"invalid UTF-8": 1}
    assert read(Table(paths=(file("u.tsv", b"\xff\n"),), columns=("2",), fields=("text",)), Problems(skip=True)) == []


def test_tsv_knows_no_quotes(file):
    source = Table(paths=(file("t.tsv", 'a\tb\n"A\t"B"\n""\t\'\n'),), **PAIR)
    assert read(source) == [('"A', '"B"'), ('""', "'")]


@pytest.mark.parametrize("blank", ["", "  "])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tsv", "a\tb\nA\tB\nA\t{}\n"),
        ("t.csv", "a,b\nA,B\nA,{}\n"),
        ("t.jsonl", '{{"a": 1, "b": 2}}\n\n{{"a": 3, "b": "{}"}}'),
    ],
)
def test_an_empty_value_is_a_problem(file, name, content, blank):
    source = Table(paths=(file(name, content.format(blank)),), **PAIR)
    assert told(source) == [f"{name}:3: column 'b' is empty"]
    assert len(read(source, problems := Problems(skip=True))) == 1
    assert problems.counts == {"empty value": 1}


def test_a_quoted_field_may_hold_anything(file):
    source = Table(paths=(file("t.csv", 'b,a\n"1,\n\n""x""\r\n3",A\nB,"\t"\n"B2","A\u2028\x0b2"\n'),), **PAIR)
    found = list(source.records(problems := Problems(skip=True)))
    assert [(record.fields, record.place.line) for record in found] == [
        (("A", '1,\n\n"x"\n3'), 2),
        (("A\u2028\x0b2", "B2"), 7),
    ]
    assert problems.counts == {"empty value": 1}
    assert told(source) == ["t.csv:6: column 'a' is empty"]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ('"x,y', "not CSV: ',' expected after '\"'"),
        ('"x"y,z', "not CSV: ',' expected after '\"'"),
        ("x\ry,z", "not CSV: new-line character seen in unquoted field"),
    ],
)
def test_csv_goes_on_after_a_record_that_is_none(file, bad, what):
    content = f'a,b\n1,2\n{bad}\n3,4\n"5","6\n7"\n8,9\n'
    source = Table(paths=(file("t.csv", content),), **PAIR)
    assert read(source, problems := Problems(skip=True)) == [("1", "2"), ("3", "4"), ("5", "6\n7"), ("8", "9")]
    assert problems.counts == {"not CSV": 1}
    assert told(source)[0].startswith(f"t.csv:3: {what}")


def test_a_quote_that_is_never_closed_takes_no_other_record_along(file):
    source = Table(paths=(file("t.csv", 'a,b\n1,2\n"x,y\n3,4\n5,6\n'),), **PAIR)
    assert read(source, Problems(skip=True)) == [("1", "2"), ("3", "4"), ("5", "6")]
    assert told(source) == ["t.csv:3: not CSV: unexpected end of data"]
    rows = "".join(f"{number},{'x' * 1000}\n" for number in range(1200))
    source = Table(paths=(file("t.csv", f'a,b\n"x,y\n{rows}'),), **PAIR)
    assert read(source, Problems(skip=True))[-1] == ("1199", "x" * 1000)
    assert told(source) == ["t.csv:2: not CSV: a quote is not closed for 1,000,000 characters"]


def test_a_record_of_csv_with_a_bad_line_in_it_is_dropped(file):
    source = Table(paths=(file("t.csv", b'a,b\n1,"2\n\xff\n3"\n4,5\n\xff\n6,7\n'),), **PAIR)
    assert read(source, problems := Problems(skip=True)) == [("4", "5"), ("6", "7")]
    assert problems.counts == {"invalid UTF-8": 2, "not CSV": 1, "wrong number of columns": 1}
    assert "t.csv:2: not CSV: the record goes on in a line that cannot be read" in told(source)


def test_a_field_of_csv_may_be_as_long_as_a_line(file):
    longest = "x" * (MAX_LINE - 3)
    before = csv.field_size_limit(10)
    try:
        assert read(Table(paths=(file("t.csv", f"a,b\n1,{longest}\n"),), **PAIR)) == [("1", longest)]
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize(
    ("line", "what", "kind"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes at column 2", "not JSON"),
        ('{"a": "x" "b": 1}', "not JSON: Expecting ',' delimiter at column 11", "not JSON"),
        ('{"a": NaN, "b": 1}', "not JSON: NaN is no number there", "not JSON"),
        ('{"a": "\t", "b": 1}', "not JSON: Invalid control character at at column 8", "not JSON"),
        ("[" * 100_000, "the JSON is nested too deeply", "not JSON"),
        ('{"a":' * 100_000, "the JSON is nested too deeply", "not JSON"),
        ('["a", "b"]', "the line is JSON, but no object", "not an object"),
        ("12", "the line is JSON, but no object", "not an object"),
        ('{"a": "x", "c": 1}', "there is no key 'b'; there are 'a', 'c'", "missing key"),
        ("{}", "there is no key 'a'; there are none", "missing key"),
        ('{"a": null, "b": 1}', "key 'a' holds null, neither a string nor a number", "not a text"),
        ('{"a": "x", "b": []}', "key 'b' holds a list, neither a string nor a number", "not a text"),
        ('{"a": "x", "b": {}}', "key 'b' holds an object, neither a string nor a number", "not a text"),
        (
            '{"a": "x\\ud800", "b": 1}',
            "key 'a' holds half a surrogate pair, U+D800, which is no character",
            "lone surrogate",
        ),
        ('{"a": "x\\u0000", "b": 1}', "key 'a' holds a NUL character", "NUL character"),
        ('{"\\ud800": 1, "a": 1}', "there is no key 'b'; there are '\\ud800', 'a'", "missing key"),
    ],
    ids=lambda value: value[:30],
)
def test_a_line_of_json_that_is_no_record_is_a_problem(file, line, what, kind):
    source = Table(paths=(file("t.jsonl", f'{{"a": 1, "b": 2}}\n{line}\n{{"a": 3, "b": 4}}\n'),), **PAIR)
    assert read(source, problems := Problems(skip=True)) == [("1", "2"), ("3", "4")]
    assert problems.counts == {kind: 1}
    assert told(source) == [f"t.jsonl:2: {what}"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("true", "true"),
        ("false", "false"),
        ("-0", "-0"),
        ("1.50", "1.50"),
        ("1e999", "1e999"),
        ("9" * 10_000, "9" * 10_000),
        ('"\\ud83d\\ude00\\n"', "😀\n"),
    ],
    ids=["true", "false", "zero", "float", "huge", "long", "pair"],
)
def test_numbers_of_json_stay_as_they_are_written(file, value, text):
    assert read(Table(paths=(file("t.jsonl", f'{{"a": {value}, "b": 1}}'),), **PAIR)) == [(text, "1")]


def test_keys_of_json_may_be_numbers(file):
    source = Table(paths=(file("t.jsonl", '{"0": "x", "1": "y"}'),), columns=("0", "1"), fields=("source", "target"))
    assert read(source) == [("x", "y")]


def test_a_document_a_line_passes_over_blank_lines(file):
    source = Documents(paths=(file("a", "\none\r\n \n\u2028\ntwo\n\n"), file("b", b"x\n\xff\ny")), unit="line")
    found = list(source.records(problems := Problems()))
    assert [(record.fields, record.place.line, record.ends) for record in found] == [
        (("one",), 2, True),
        (("two",), 5, True),
        (("x",), 1, True),
        (("y",), 3, True),
    ]
    assert problems.counts == {"invalid UTF-8": 1}
    assert source.fields == ("text",)


def test_a_document_a_file_keeps_its_lines(file, tmp_path):
    file("d/b.txt", b"\xef\xbb\xbf\r\n one\r\n\r\ntwo")
    file("d/a.txt", b"x\n\xff\ny\n\0\n")
    source = Documents(paths=(str(tmp_path / "d"),))
    assert list(source.records(problems := Problems(skip=True))) == [
        Record(("x\ny\n",), Place(str(tmp_path / "d/a.txt"), 1)),
        Record(("\n one\n\ntwo",), Place(str(tmp_path / "d/b.txt"), 1)),
    ]
    assert problems.counts == {"invalid UTF-8": 1, "NUL character": 1}
    assert [line[:8] for line in told(source)] == ["a.txt:2:", "a.txt:4:"]


@pytest.mark.parametrize(
    "content", [b"", b"\xef\xbb\xbf", b" \n\r\n\t", b" " * 3 * PIECE], ids=["none", "mark", "blank", "much"]
)
def test_a_file_without_text_is_a_problem(file, content):
    source = Documents(paths=(file("a", content), file("b", b"x")))
    assert read(source, problems := Problems(skip=True)) == [("x",)]
    assert problems.counts == {"empty file": 1}
    assert told(source) == ["a:1: the file holds no text"]


def test_a_long_file_comes_in_pieces_that_end_with_a_line(file):
    text = "".join(f"line {number}: {'é' * 1500}\n" for number in range(2500))
    records = list(Documents(paths=(file("a", text),)).records(Problems()))
    assert "".join(record.fields[0] for record in records) == text
    assert [record.ends for record in records] == [False] * (len(records) - 1) + [True]
    for record in records:
        assert record.fields[0].startswith(f"line {record.place.line - 1}:")
        assert record.fields[0].endswith("\n")
        assert PIECE <= len(record.fields[0]) < 1.1 * PIECE or record.ends
    assert len(records) == 4


def test_a_long_line_is_cut_between_characters(file):
    text = "a" + "😀" * PIECE + "\n\nb\n"
    records = list(Documents(paths=(file("a", text), file("b", "last"))).records(Problems()))
    assert "".join(record.fields[0] for record in records) == text + "last"
    assert len(records) >= 3
    assert [record.ends for record in records[-2:]] == [True, True]
    assert not any(record.ends for record in records[:-2])
    assert max(len(record.fields[0]) for record in records) < 2 * PIECE


def test_blank_at_the_end_of_a_long_file_is_kept(file):
    text = "x" + "\n" * 20 + " " * (3 * PIECE)
    records = list(Documents(paths=(file("a", text),)).records(Problems()))
    assert "".join(record.fields[0] for record in records) == text
    assert [record.ends for record in records] == [False] * (len(records) - 1) + [True]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Documents(paths=()), "paths: expected one or more names of files"),
        (lambda: check_paths("paths", "train.txt"), "paths: expected one or more names of files.* came 'train.txt'"),
        (lambda: check_paths("paths", (1,)), "paths: expected one or more names of files"),
        (lambda: check_choice("unit", "page", ("line", "file")), "unit must be one of line, file; came 'page'"),
        (lambda: Aligned(source=("a",), target=()), "target: expected one or more names of files"),
        (lambda: Aligned(source=(), target=("a",)), "source: expected one or more names of files"),
        (lambda: Table(paths=(), **PAIR), "paths: expected one or more names of files"),
        (lambda: Table(paths=("a",), columns=("a",), fields=("a", "b")), "a table needs a column for each field"),
        (lambda: Table(paths=("a",), columns=(), fields=()), "a table needs a column for each field"),
        (lambda: Table(paths=("a",), columns=("a", "b"), fields=("a", "a")), "the fields of a table must differ"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_described(make, what):
    with pytest.raises(OptionError, match=what):
        make()


@pytest.mark.parametrize(
    "source",
    [
        Aligned(source=("a", "b"), target=("c", "d")),
        Table(paths=("a",), form="tsv", **PAIR),
        Documents(paths=("a",), unit="line"),
    ],
    ids=lambda source: type(source).__name__,
)
def test_a_description_goes_through_json(source):
    back = json.loads(json.dumps(asdict(source)))
    made = type(source)(**{key: tuple(value) if isinstance(value, list) else value for key, value in back.items()})
    assert made == source


def sources_of(path: str, other: str) -> list[Source]:
    """Every kind, over the same files."""
    tables = [
        Table(paths=(path,), columns=columns, fields=("source", "target"), form=form)
        for form in ("tsv", "csv", "jsonl")
        for columns in (("a", "b"), ("2", "1"))
    ]
    documents = [Documents(paths=(path, other), unit=unit) for unit in ("line", "file")]
    return [Aligned(source=(path,), target=(other,)), *tables, *documents]


@settings(max_examples=share_of(250))
@given(BYTES, BYTES)
@example(b"a\xc3\nb", b"a\n\x1f\n")
@pytest.mark.slow
def test_any_bytes_give_records_or_an_error_of_the_family(folder, one, other):
    paths = str(folder / "one"), str(folder / "other")
    for path, content in zip(paths, (one, other), strict=True):
        with open(path, "wb") as stream:
            stream.write(content)
    for source in sources_of(*paths):
        problems = Problems(skip=True)
        try:
            for record in source.records(problems):
                assert len(record.fields) == len(source.fields)
                assert all(field.encode() and "\0" not in field for field in record.fields)
                assert 1 <= record.place.line <= max(one.count(b"\n"), other.count(b"\n")) + 1
                event(f"{type(source).__name__} gives a record")
        except ClearheadError:
            event(f"{type(source).__name__} is refused")


@settings(max_examples=share_of(100))
@given(BYTES)
@pytest.mark.slow
def test_gzip_and_plain_give_the_same(folder, content):
    outcomes = []
    for written in (content, gzip.compress(content)):
        path = folder / "same"
        path.write_bytes(written)
        outcomes.append([outcome(source) for source in sources_of(str(path), str(path))])
    assert outcomes[0] == outcomes[1] or content.startswith(b"\x1f\x8b")


def outcome(source: Source) -> tuple[list[Record], dict[str, int], str]:
    problems, found = Problems(skip=True), []
    try:
        found.extend(source.records(problems))
    except ClearheadError as error:
        return found, problems.counts, str(error)
    return found, problems.counts, ""


@settings(max_examples=share_of(200))
@given(st.lists(st.tuples(FULL, FULL, st.sampled_from(["fine", "source", "target", "both"])), min_size=1))
@pytest.mark.slow
def test_aligned_files_stay_aligned_without_their_bad_lines(folder, rows):
    bad = [b"\xff", b"\0", b"", b" "]
    sides = {"source": [], "target": []}
    for number, (left, right, what) in enumerate(rows):
        for side, text in (("source", left), ("target", right)):
            sides[side].append(bad[number % 4] if what in (side, "both") else text.encode())
    paths = {side: str(folder / side) for side in sides}
    for side, lines in sides.items():
        (folder / side).write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines) + b"\n")
    problems = Problems(skip=True)
    source = Aligned(source=(paths["source"],), target=(paths["target"],))
    assert [(record.fields, record.place.line) for record in source.records(problems)] == [
        ((left, right), number + 1) for number, (left, right, what) in enumerate(rows) if what == "fine"
    ]
    assert bool(problems.counts) == any(what != "fine" for *_, what in rows)


NAMES = st.lists(
    FULL.filter(lambda name: "\t" not in name and not name.isdecimal()), min_size=1, max_size=4, unique=True
)


@st.composite
def tables(draw, text=FULL):
    names = draw(NAMES)
    return names, draw(st.lists(st.tuples(*[text] * len(names)), min_size=1, max_size=5))


WITH_ENDS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0\r")).filter(str.strip)


@settings(max_examples=share_of(250))
@given(tables(WITH_ENDS), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.booleans())
@pytest.mark.slow
def test_what_csv_writes_comes_back(folder, table, quoting, named):
    names, rows = table
    path = folder / "written.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as stream:
        csv.writer(stream, quoting=quoting).writerows([names, *rows] if named else rows)
    columns = tuple(names) if named else tuple(str(number + 1) for number in range(len(names)))
    source = Table(paths=(str(path),), columns=columns, fields=tuple(names))
    assert read(source) == rows


@settings(max_examples=share_of(250))
@given(tables(WITH_ENDS), st.booleans())
@pytest.mark.slow
def test_what_json_writes_comes_back(folder, table, escaped):
    names, rows = table
    path = folder / "written.jsonl"
    lines = [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=escaped) for row in rows]
    path.write_bytes("\n".join(lines).encode())
    assert read(Table(paths=(str(path),), columns=tuple(names), fields=tuple(names))) == rows


@settings(max_examples=share_of(300))
@given(tables(FULL.map(lambda text: text.replace("\t", " x"))))
@pytest.mark.slow
def test_what_is_between_tabs_comes_back(folder, table):
    names, rows = table
    path = folder / "written.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + "".join("\t".join(row) + "\n" for row in [names, *rows]).encode())
    assert read(Table(paths=(str(path),), columns=tuple(names), fields=tuple(names))) == rows


@settings(max_examples=share_of(300))
@given(st.lists(TEXT, min_size=1).filter(lambda lines: any(map(str.strip, lines))))
@pytest.mark.slow
def test_any_text_comes_back_as_documents(folder, lines):
    path = folder / "text"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert read(Documents(paths=(str(path),))) == [("\n".join(lines),)]
    assert read(Documents(paths=(str(path),), unit="line")) == [(line,) for line in lines if line.strip()]


@pytest.mark.slow
@pytest.mark.thorough
@settings(max_examples=share_of(400))
@given(BYTES, BYTES)
def test_many_more_bytes_give_records_or_an_error_of_the_family(folder, one, other):
    test_any_bytes_give_records_or_an_error_of_the_family.hypothesis.inner_test(folder, one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "line"),
    [
        (lambda path: Documents(paths=(path,)), b"x" * 19_999 + b"\n"),
        (lambda path: Documents(paths=(path,)), b"x" * 20_000),
        (lambda path: Documents(paths=(path,), unit="line"), b"x" * 20_000),
        (lambda path: Aligned(source=(path,), target=(path,)), b"x" * 19_999 + b"\n"),
        (lambda path: Aligned(source=(path,), target=(path,)), b"\xff" * 19_999 + b"\n"),
        (
            lambda path: Table(paths=(path,), columns=("1",), fields=("text",), form="csv"),
            b'"' + b"x" * 19_997 + b"\n\n",
        ),
        (lambda path: Table(paths=(path,), columns=("1",), fields=("text",), form="jsonl"), b"[" * 20_000),
    ],
    ids=["lines", "no-line", "one-line", "aligned", "bad", "quotes", "json"],
)
def test_a_big_file_takes_little_memory(tmp_path, source, line):
    path = tmp_path / "big"
    with path.open("wb") as stream:
        for _ in range(40):
            stream.write(line * (1_000_000 // len(line)))
    tracemalloc.start()
    for _ in source(str(path)).records(Problems(skip=True)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000
