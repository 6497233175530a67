"""Lines: what wc -l counts, in UTF-8, streamed; and what cannot be read is told, never a traceback."""

import bz2
import gzip
import io
import lzma
import os
import random
import re
import sys
import threading
import tracemalloc

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from clearhead import bounds
from clearhead.errors import ClearheadError, DataError
from clearhead.text import lines
from clearhead.text.lines import (
    MAX_LINE,
    NOT_UTF8,
    PIECE,
    Line,
    Place,
    Problems,
    files_of,
    read_lines,
    read_parts,
    spool,
)
from tests.covering import few, share_of

LINE_TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0\n\r"))
BYTES = st.lists(
    st.one_of(
        st.binary(max_size=6),
        st.sampled_from(
            [b"\n", b"\r\n", b"\r", b"\0", b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xe2\x80\xa8", b"a", b"\x1f\x8b"]
        ),
    )
).map(b"".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all examples of a module: hypothesis writes over the same file."""
    return tmp_path_factory.mktemp("lines")


@pytest.fixture
def file(tmp_path):
    def write(content: bytes, name: str = "a.txt") -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return write


def texts_of(path: str, problems: Problems | None = None) -> list[str | None]:
    return [line and line.text for line in read_lines(path, problems or Problems())]


def give_stdin(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\n", [""]),
        (b"\n\n a \n", ["", "", " a "]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf\r\nb", ["", "b"]),
        (b"a\rb\r\r\nc\r", ["a\rb\r", "c\r"]),
        ("x\u2028y\x0bz\x0c\x85\x1c\x1d\x1e\nb".encode(), ["x\u2028y\x0bz\x0c\x85\x1c\x1d\x1e", "b"]),
        ("straße 😀\n".encode(), ["straße 😀"]),
    ],
)
def test_a_line_ends_at_a_line_feed_and_only_there(file, content, wanted):
    path, problems = file(content), Problems()
    assert list(read_lines(path, problems)) == [Line(text, Place(path, i + 1)) for i, text in enumerate(wanted)]
    assert problems.counts == {}


@pytest.mark.parametrize(
    ("bad", "kind", "what"),
    [
        (b"a\xffb", "invalid UTF-8", "byte 2 of the line is 0xff"),
        (b"\xed\xa0\x80", "invalid UTF-8", "byte 1 of the line is 0xed"),
        (b"ab\xc3", "invalid UTF-8", "byte 3 of the line is 0xc3 \\(unexpected end of data\\)"),
        (b"a\0b", "NUL character", "the line holds a NUL character"),
        (b"x" * (MAX_LINE + 1), "line too long", "longer than 1,000,000 characters"),
        (b"x" * (5 * MAX_LINE), "line too long", "longer than 1,000,000 characters"),
        ("😀".encode() * (MAX_LINE + 1), "line too long", "longer than 1,000,000 characters"),
        ("😀".encode() * (MAX_LINE + 3), "line too long", "longer than 1,000,000 characters"),
    ],
    ids=["stray", "surrogate", "cut", "nul", "one-over", "many-over", "wide", "wider"],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_nothing_stands_in_the_place_of_a_bad_line(file, bad, kind, what, end):
    path, problems = file(b"a\n" + bad + end + (b"c\n" if end else b"")), Problems()
    assert texts_of(path, problems) == (["a", None, "c"] if end else ["a", None])
    assert problems.counts == {kind: 1}
    with pytest.raises(DataError, match=f"{re.escape(path)}:2: .*{what}"):
        problems.settle()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("char", ["x", "é", "😀"])
def test_a_line_may_be_as_long_as_the_limit(file, char, mark, end):
    content = mark + char.encode() * MAX_LINE + end + (b"b" if end else b"")
    problems = Problems()
    assert texts_of(file(content), problems) == [char * MAX_LINE] + (["b"] if end else [])
    assert problems.counts == {}


@pytest.mark.parametrize("size", range(lines.MOST_BYTES - 3, lines.MOST_BYTES + 4))
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_where_a_long_line_is_cut_the_next_one_is_whole(file, size, mark):
    line = mark + b"x" * (size - len(mark) - 1) + b"\n"
    assert len(line) == size
    assert texts_of(file(line + b"b\nc"), Problems()) == [None, "b", "c"]


def zstd(content):
    return bytes(pytest.importorskip("pyarrow").compress(content, "zstd", asbytes=True))


PACK = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstd}


@pytest.mark.parametrize("pack", PACK.values(), ids=PACK)
@pytest.mark.parametrize("name", ["a.gz", "a.txt"])
def test_packed_text_is_known_by_what_it_is_not_by_its_name(file, name, pack):
    content = b"\xef\xbb\xbfa\r\n\xff\nc"
    packed = file(pack(content[:5]) + pack(content[5:]), name)
    assert texts_of(packed, Problems()) == ["a", None, "c"]
    assert texts_of(file(content, "plain.gz"), Problems()) == ["a", None, "c"]


def test_a_text_that_begins_as_a_packed_file_does_is_text(file):
    for text in ("BZ", "BZh9 is what a file of bzip2 begins with"):
        assert texts_of(file(text.encode())) == [text]


@pytest.mark.parametrize("packing", ["bzip2", "xz", "zstd"])
def test_a_damaged_packed_file_is_refused(file, packing):
    packed = PACK[packing](random.Random(0).randbytes(50_000).hex().encode())
    damaged = packed[:2000] + b"\xff" * 300 + packed[2300:]
    # A zstd file need not have a checksum, and pyarrow writes none.
    for content in (packed[:-9], packed[:2000], *([damaged] if packing != "zstd" else [])):
        with pytest.raises(DataError, match=rf"a\.txt: the {packing} file (ends too early|is damaged)"):
            texts_of(file(content))


@pytest.mark.parametrize("packing", ["bzip2", "xz"])
def test_nothing_after_a_damaged_stream_is_lost_without_a_word(file, packing):
    """Several streams stand in one file where it was packed in parallel; Python's own files end at such a one."""
    first, second = (PACK[packing](f"{name}\n".encode()) for name in "ab")
    assert texts_of(file(first + bytes(8) + second + bytes(4))) == ["a", "b"]
    for rest in (b"X" + second[1:], b"rest"):
        with pytest.raises(DataError, match=rf"a\.txt: the {packing} file is damaged"):
            texts_of(file(first + rest))
    with pytest.raises(DataError, match=rf"a\.txt: the {packing} file ends too early"):
        texts_of(file(first + second[:3]))


def test_zstd_without_pyarrow_is_named(file, monkeypatch):
    monkeypatch.setattr(lines, "has_package", lambda name: False)
    with pytest.raises(DataError, match=r"a\.txt: cannot be read: zstd takes pyarrow: pip install 'pyarrow"):
        texts_of(file(b"\x28\xb5\x2f\xfd..."))


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", gzip.compress(b"")], ids=["empty", "mark", "gzip"])
def test_an_empty_file_is_refused(file, content):
    with pytest.raises(DataError, match=r"a\.txt: the file is empty"):
        texts_of(file(content))


PACKED = gzip.compress(random.Random(0).randbytes(50_000).hex().encode(), mtime=0)


@pytest.mark.parametrize("size", [2, 5, 12, 30_000, len(PACKED) - 9, len(PACKED) - 1])
def test_a_gzip_file_that_ends_too_early_is_refused(file, size):
    with pytest.raises(DataError, match=r"a\.txt: the gzip file ends too early"):
        texts_of(file(PACKED[:size]))


@pytest.mark.parametrize(
    "content",
    [
        PACKED[:20_000] + b"\xff" * 3_000 + PACKED[23_000:],
        PACKED[:-8] + b"1234" + PACKED[-4:],
        b"\x1f\x8b\x07" + PACKED[3:],
        PACKED + b"rest",
    ],
    ids=["middle", "sum", "method", "rest"],
)
def test_a_damaged_gzip_file_is_refused(file, content):
    with pytest.raises(DataError, match=r"a\.txt: the gzip file is damaged"):
        texts_of(file(content))


def test_a_folder_or_no_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="this is a folder, and a file is expected"):
        texts_of(str(tmp_path))
    with pytest.raises(DataError, match=r"missing\.txt: there is no such file"):
        texts_of(str(tmp_path / "missing.txt"))
    with pytest.raises(DataError, match=r"a\\x00b: cannot be read: .*null"):
        texts_of("a\0b")
    with pytest.raises(DataError, match=r"cannot be read: .*too long"):
        texts_of("a" * 5000)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_file_that_may_not_be_read_is_refused(file):
    path = file(b"a")
    os.chmod(path, 0)
    with pytest.raises(DataError, match=r"a\.txt: cannot be read: Permission denied"):
        texts_of(path)


def test_a_read_that_fails_is_told(file, monkeypatch):
    class Failing(io.BytesIO):
        def read1(self, size=-1):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Failing(b"abc\n")))
    with pytest.raises(DataError, match="stdin: cannot be read: Input/output error"):
        texts_of("-")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("\ufeffab\n".encode("utf-16-le"), "is UTF-16 text; convert it to UTF-8"),
        ("\ufeffab\n".encode("utf-16-be"), "is UTF-16 text; convert it to UTF-8"),
        (gzip.compress("\ufeffab\n".encode("utf-16-le")), "is UTF-16 text; convert it to UTF-8"),
        (b"PK\x03\x04...", "is a zip archive; unpack it"),
    ],
    ids=["little", "big", "inside-gzip", "zip"],
)
@pytest.mark.parametrize("read", [read_lines, read_parts])
def test_what_is_no_utf_8_at_all_is_refused_at_once(file, read, content, what):
    with pytest.raises(DataError, match=what):
        list(read(file(content), Problems()))


def test_stdin_is_read_and_only_once(monkeypatch):
    give_stdin(monkeypatch, b"a\r\nb\n")
    assert [str(line and line.place) for line in read_lines("-", Problems())] == ["stdin:1", "stdin:2"]
    with pytest.raises(DataError, match="stdin can be read only once"):
        texts_of("-")
    assert not sys.stdin.buffer.closed
    give_stdin(monkeypatch, gzip.compress(b"c\n"))
    assert texts_of("-") == ["c"]


def test_stdin_of_which_some_was_read_cannot_be_read_again(monkeypatch):
    give_stdin(monkeypatch, b"a\nb\n")
    next(read_lines("-", Problems()))
    with pytest.raises(DataError, match="stdin can be read only once"):
        texts_of("-")


def test_stdin_that_is_closed_or_empty_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="stdin is closed"):
        texts_of("-")
    give_stdin(monkeypatch, b"")
    with pytest.raises(DataError, match="stdin: the file is empty"):
        texts_of("-")
    give_stdin(monkeypatch, b"")
    with pytest.raises(DataError, match="stdin: the file is empty"):
        spool("-", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_stdin_is_spooled_and_then_read_twice(monkeypatch, tmp_path):
    give_stdin(monkeypatch, b"a\nb\n")
    path = spool("-", tmp_path / "new" / "folder")
    assert os.listdir(tmp_path / "new" / "folder") == ["stdin"]
    assert texts_of(path) == texts_of(path) == ["a", "b"]
    with pytest.raises(DataError, match="stdin can be read only once"):
        spool("-", tmp_path)


def test_what_is_a_file_is_not_spooled(file, tmp_path):
    path = file(b"a")
    assert spool(path, tmp_path / "new") == path
    assert spool("missing", tmp_path / "new") == "missing"
    assert not (tmp_path / "new").exists()


def test_where_nothing_can_be_written_spooling_is_refused(monkeypatch, file, tmp_path):
    give_stdin(monkeypatch, b"a\n")
    with pytest.raises(DataError, match=r"stdin cannot be copied to .*a\.txt.stdin: "):
        spool("-", tmp_path / os.path.basename(file(b"a")))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
@pytest.mark.parametrize("content", [b"a\nb\n", gzip.compress(b"a\nb\n")], ids=["plain", "gzip"])
def test_a_pipe_is_read_whatever_the_sizes_of_its_writes(tmp_path, content):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)

    def write():
        with open(pipe, "wb", buffering=0) as stream:
            for byte in content:
                stream.write(bytes([byte]))

    for read in (texts_of, lambda path: texts_of(spool(path, tmp_path / "copies"))):
        writer = threading.Thread(target=write)
        writer.start()
        assert read(pipe) == ["a", "b"]
        writer.join()


def test_a_line_is_there_before_the_input_ends(monkeypatch):
    read, write = os.pipe()
    with open(read, "rb") as source, open(write, "wb", buffering=0) as sink:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(source))
        sink.write(b"first\n")
        stream = read_lines("-", Problems())
        assert next(stream) == Line("first", Place("-", 1))
        sink.write(b"second\n")
        assert next(stream) == Line("second", Place("-", 2))


def test_a_folder_stands_for_its_files_by_name(tmp_path):
    for name in ["b.txt", "a/z.txt", "a/b/c.txt", "a.txt", ".hidden", ".git/config", "a/.b/c"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    names = ["a/b/c.txt", "a/z.txt", "a.txt", "b.txt"]
    wanted = tuple(str(tmp_path / name) for name in names)
    assert files_of([str(tmp_path)]) == wanted
    assert files_of(["-", str(tmp_path / "b.txt"), str(tmp_path / "a")]) == ("-", wanted[3], *wanted[:2])
    assert files_of([str(tmp_path / ".git")]) == (str(tmp_path / ".git" / "config"),)


def test_a_folder_without_files_or_a_missing_file_is_refused(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / ".hidden").write_bytes(b"x")
    with pytest.raises(DataError, match="there is no file in this folder"):
        files_of([str(tmp_path)])
    with pytest.raises(DataError, match="missing: there is no such file"):
        files_of([str(tmp_path / "missing")])


def test_links_are_followed_but_not_in_a_circle(tmp_path):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "a.txt").write_bytes(b"x")
    (tmp_path / "data" / "deep" / "back").symlink_to(tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert files_of([str(tmp_path / "link")]) == (str(tmp_path / "link" / "deep" / "a.txt"),)
    (tmp_path / "data" / "lost").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match="lost: there is no such file"):
        [texts_of(path) for path in files_of([str(tmp_path / "data")])]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"a\r\n\r\nb", ["a\n", "\n", "b"]),
        (b"\xef\xbb\xbfa\n\n", ["a\n", "\n"]),
        (b"a\n\xff\nb\0\nc\n", ["a\n", "c\n"]),
        (b"a\rb\r", ["a\rb", "\r"]),
        (b"", []),
    ],
)
def test_parts_keep_the_ends_of_line(file, content, wanted):
    assert [part.text for part in read_parts(file(content), Problems(skip=True))] == wanted


@pytest.mark.parametrize("shift", range(5))
@pytest.mark.parametrize("unit", ["é", "€", "😀", "\r"], ids=ascii)
def test_a_part_never_ends_inside_a_character_or_an_end_of_line(file, unit, shift):
    text = "x" * shift + unit * (2 * PIECE // len(unit.encode())) + "\r\nlast"
    problems = Problems()
    parts = list(read_parts(file(text.encode()), problems))
    assert "".join(part.text for part in parts) == text.replace("\r\n", "\n")
    assert problems.counts == {}
    assert parts[-1].place.line == text.count("\n") + 1
    assert max(len(part.text.encode()) for part in parts) <= PIECE + 3


@pytest.mark.parametrize("size", range(PIECE - 4, PIECE + 3))
def test_an_end_of_line_is_one_wherever_it_is_cut(file, size):
    parts = [part.text for part in read_parts(file(b"x" * size + b"\r\n\r\nb"), Problems())]
    assert "".join(parts) == "x" * size + "\n\nb"
    assert len(parts) == 3 + (size + 2 > PIECE)


def test_of_a_line_in_parts_what_comes_before_the_bad_part_is_kept(file):
    long = b"x" * PIECE
    problems = Problems(skip=True)
    parts = list(read_parts(file(b"a\n" + long + b"\xff" + long + b"\0" + long + b"\nb\n"), problems))
    assert ["".join(part.text for part in parts), len(parts)] == ["a\n" + "x" * PIECE + "\nb\n", 4]
    assert [part.place.line for part in parts] == [1, 2, 2, 3]
    assert problems.counts == {"invalid UTF-8": 1}


@settings(max_examples=share_of(500))
@given(st.lists(LINE_TEXT, min_size=1), st.sampled_from(["\n", "\r\n"]))
@example(["\ufeffx"], "\n")
@pytest.mark.slow
def test_any_text_written_as_lines_comes_back(folder, written, end):
    path = folder / "written"
    path.write_bytes(b"\xef\xbb\xbf" + "".join(line + end for line in written).encode())
    assert texts_of(str(path)) == written
    assert "".join(part.text for part in read_parts(str(path), Problems())) == "".join(f"{line}\n" for line in written)


@settings(max_examples=share_of(500))
@given(BYTES)
@pytest.mark.slow
def test_any_bytes_give_as_many_lines_as_they_have(folder, content):
    path, problems = folder / "bytes", Problems(skip=True)
    path.write_bytes(content)
    try:
        texts = texts_of(str(path), problems)
    except ClearheadError:
        assert content.removeprefix(b"\xef\xbb\xbf") == b"" or content.startswith((*lines.PAIRS, *lines.FOREIGN))
        return
    assert len(texts) == content.count(b"\n") + (not content.endswith(b"\n"))
    assert sum(problems.counts.values()) == texts.count(None)
    for raw, text in zip(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), texts, strict=False):
        assert text is None or raw in (text.encode(), text.encode() + b"\r")


@settings(max_examples=share_of(500))
@given(BYTES.map(lambda content: gzip.compress(content, mtime=0)), st.data())
@pytest.mark.slow
def test_gzip_files_with_any_damage_are_read_or_refused(folder, packed, data):
    path = folder / "damaged"
    place = data.draw(st.integers(0, len(packed) - 1))
    path.write_bytes(packed[:place] + data.draw(st.binary(max_size=3)) + packed[place + data.draw(st.integers(0, 3)) :])
    try:
        texts_of(str(path), Problems(skip=True))
    except ClearheadError:
        event("refused")


@pytest.mark.slow
@pytest.mark.parametrize("packed", few([True, False], 1))
def test_a_huge_line_takes_little_memory(tmp_path, packed):
    path = tmp_path / "huge"
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as stream:
        stream.write(b"a\n")
        for _ in range(200):
            stream.write(b"x" * 1_000_000)
        stream.write(b"\nb\n")
    for read, wanted in ((read_lines, 3), (read_parts, 2 + -(-200_000_000 // PIECE))):
        tracemalloc.start()
        count = sum(1 for _ in read(str(path), Problems(skip=True)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == wanted
        assert peak < 12_000_000


@pytest.mark.parametrize(
    ("encoding", "named"),
    [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-32", "UTF-32")],
)
def test_a_file_in_another_unicode_encoding_is_named(tmp_path, encoding, named):
    path = tmp_path / "text"
    path.write_bytes("Ein Café, zwei Cafés\n".encode(encoding))
    with pytest.raises(DataError, match=rf"is {named[:6]} text; convert it to UTF-8 first: iconv -f {named} -t UTF-8"):
        list(read_lines(str(path), Problems()))


@pytest.mark.parametrize(("encoding", "sign"), [("LATIN1", "é"), ("WINDOWS-1252", "’")])
def test_a_line_in_an_older_encoding_is_named_and_shown(tmp_path, encoding, sign):
    path, problems = tmp_path / "text", Problems()
    path.write_bytes(f"ein Caf{sign}\n".encode("cp1252"))
    assert list(read_lines(str(path), problems)) == [None]
    with pytest.raises(DataError, match=rf"as {encoding} it is 'ein Caf{sign}'(?s:.*)iconv -f {encoding} -t UTF-8"):
        problems.settle()


def test_a_gzip_file_far_longer_than_its_bytes_is_given_up(file, monkeypatch):
    """Twenty megabytes of blanks in 20 kB; a text that packs to a tenth is read whole, however long."""
    monkeypatch.setattr(bounds, "UNPACKED", 100_000)
    with pytest.raises(DataError, match="cannot be read: it unpacks to more than 100 times its size"):
        texts_of(file(gzip.compress((b" " * 1000 + b"\n") * 20_000)), Problems())
    numbers = [f"{i * 7919 % 100_003} is a number" for i in range(20_000)]
    assert texts_of(file(gzip.compress("\n".join(numbers).encode())), Problems()) == numbers


def test_a_place_is_a_file_and_a_line():
    assert str(Place("train.de.gz", 17)) == "train.de.gz:17"
    assert str(Place("-", 3)) == "stdin:3"


def test_a_name_that_cannot_be_printed_is_escaped():
    assert str(Place("a\nb\x1b[31m\udcff", 1)) == "a\\nb\\x1b[31m\\udcff:1"


def test_without_problems_nothing_is_raised():
    problems = Problems()
    problems.settle()
    assert problems.counts == {}


def test_one_problem_is_told_with_its_place():
    problems = Problems()
    problems.add(Place("train.de", 17), "the line is blank", "empty line")
    with pytest.raises(DataError) as caught:
        problems.settle()
    assert str(caught.value) == (
        "1 line cannot be used (empty line: 1)\n"
        "  train.de:17: the line is blank\n"
        "mend them, or pass --skip-bad to leave them out"
    )


def test_of_many_the_first_are_told_and_all_are_counted():
    problems = Problems(shown=2)
    for number in range(1, 6):
        problems.add(Place("a", number), f"number {number}", "odd" if number % 2 else "even")
    with pytest.raises(DataError) as caught:
        problems.settle()
    assert str(caught.value).splitlines() == [
        "5 lines cannot be used (odd: 3, even: 2)",
        "  a:1: number 1",
        "  a:2: number 2",
        "  and 3 more",
        "mend them, or pass --skip-bad to leave them out",
    ]
    assert problems.counts == {"odd": 3, "even": 2}


def test_ten_are_told_unless_asked_otherwise():
    problems = Problems()
    for number in range(1, 13):
        problems.add(Place("a", number), "bad", "bad")
    with pytest.raises(DataError, match=r"a:10: bad\n  and 2 more"):
        problems.settle()


def test_what_is_skipped_is_counted_and_nothing_is_raised():
    problems = Problems(skip=True)
    for number in range(20):
        problems.add(Place("a", number), "bad", "bad")
    problems.settle()
    assert problems.counts == {"bad": 20}


def test_counts_are_a_copy():
    problems = Problems()
    problems.counts["made up"] = 3
    assert problems.counts == {}


def test_lines_that_are_not_utf8_may_be_in_another_encoding():
    """To leave out every line with an umlaut would be a way, and rarely the right one."""
    problems = Problems()
    problems.add(Place("a", 1), "bad", NOT_UTF8)
    with pytest.raises(DataError, match=r"a:1: bad\nmend them \(.*iconv -f LATIN1 -t UTF-8.*\), or pass --skip-bad"):
        problems.settle()
