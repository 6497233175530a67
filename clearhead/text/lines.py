"""Lines: the user's text files read as a stream, plain or packed, from here or elsewhere, and checked as it is read.
Problems with them are reported together with their places, or skipped and counted.
"""

import bz2
import glob
import gzip
import lzma
import os
import re
import shutil
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, NamedTuple, cast
from weakref import WeakSet

from clearhead.bounds import check_unpacked
from clearhead.errors import DataError
from clearhead.extras import has_package, how_to_install
from clearhead.files import is_plain_name, read_json, replacing
from clearhead.text.remote import is_remote, list_remote, local_path


@dataclass(frozen=True)
class Place:
    """A line of a file, counted from 1.

    >>> print(Place("train.de.gz", 17))
    train.de.gz:17
    >>> print(Place("-", 3))
    stdin:3
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{display_name(self.file)}:{self.line}"


NOT_UTF8 = "invalid UTF-8"
TO_UTF8 = " (if the file is in another encoding, such as {0}, convert it: iconv -f {0} -t UTF-8 OLD > NEW)"


class Problems:
    """A collection of what is wrong with lines of the user's files: raised together, or skipped and counted.

    With `skip` nothing is raised: the lines are left out, and `counts` says how many of each kind. The first `shown`
    problems are kept with their places, however many there are.
    """

    def __init__(self, *, skip: bool = False, shown: int = 10) -> None:
        self.skip = skip
        self.shown = shown
        self._first: list[str] = []
        self._counts: Counter[str] = Counter()
        self.encodings: Counter[str] = Counter()
        """What lines that are no UTF-8 are likely to be in, and how many."""

    def add(self, place: Place, message: str, kind: str) -> None:
        """Add a problem: `message` says what is wrong there; `kind` is its short name, the same for all
        like it.
        """
        self._counts[kind] += 1
        if len(self._first) < self.shown:
            self._first.append(f"{place}: {message}")

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of problems of each kind."""
        return dict(self._counts)

    def to_json(self) -> dict[str, Any]:
        """Return what was found, to be added to that of another process."""
        return {"first": self._first, "counts": self.counts, "encodings": dict(self.encodings)}

    def add_json(self, found: Mapping[str, Any]) -> None:
        """Add what another process found, as `to_json` gives it."""
        self._first = [*self._first, *found["first"]][: self.shown]
        self._counts.update(found["counts"])
        self.encodings.update(found["encodings"])

    def settle(self) -> None:
        """Raise DataError with the first problems and their number, unless they are skipped or there are none."""
        total = self._counts.total()
        if self.skip or total == 0:
            return
        kinds = ", ".join(f"{kind}: {count}" for kind, count in self._counts.most_common())
        more = total - len(self._first)
        # One line with a byte that only Windows has tells the encoding of them all.
        encoding = "WINDOWS-1252" if self.encodings["WINDOWS-1252"] else "LATIN1"
        convert = TO_UTF8.format(encoding) if NOT_UTF8 in self._counts else ""
        raise DataError(
            "\n".join(
                [
                    f"{total} {'line' if total == 1 else 'lines'} cannot be used ({kinds})",
                    *(f"  {problem}" for problem in self._first),
                    *([f"  and {more} more"] if more else []),
                    f"mend them{convert}, or pass --skip-bad to leave them out",
                ]
            )
        )


def display_name(path: str) -> str:
    """Return a file's name for messages: "-" is stdin, and what cannot be printed is escaped."""
    if path == "-":
        return "stdin"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in path)


MAX_LINE = 1_000_000
"""The most characters a line may have; a longer one is a problem."""
PIECE = 1 << 20
"""The most bytes of a line that are read at a time where a line may have any length."""

BOM = b"\xef\xbb\xbf"
MOST_BYTES = 4 * MAX_LINE + len(BOM + b"\r\n")
"""The most bytes a line of MAX_LINE characters can have; with more it is too long, whatever they are."""
CONTINUING = bytes(range(0x80, 0xC0))
"""The continuation bytes of UTF-8."""
BUFFER = 1 << 16
PACKED_NAME = re.compile(r"\.(gz|bz2|xz|zstd?|br|snappy)$", re.IGNORECASE)
"""How the name of a packed file ends."""
CONVERT = "{} text; convert it to UTF-8 first: iconv -f {} -t UTF-8 OLD > NEW"
FOREIGN = {
    b"\xff\xfe\x00\x00": CONVERT.format("UTF-32", "UTF-32"),
    b"\x00\x00\xfe\xff": CONVERT.format("UTF-32", "UTF-32"),
    b"\xff\xfe": CONVERT.format("UTF-16", "UTF-16"),
    b"\xfe\xff": CONVERT.format("UTF-16", "UTF-16"),
    b"PK\x03\x04": "a zip archive; unpack it first",
}
"""The first bytes of files that are no UTF-8. Each of their lines would be a problem, so they are refused at once."""

TAKEN: WeakSet[BufferedIOBase] = WeakSet()
"""The stdins that have been read."""


class Line(NamedTuple):
    """A line's text, without its end, and its place."""

    text: str
    place: Place


def read_lines(path: str, problems: Problems) -> Iterator[Line | None]:
    """Yield the lines of a UTF-8 file; "-" is stdin, and what is packed is unpacked whatever its name.

    Only a line feed ends a line, or a carriage return with it. A line that is not UTF-8, holds NUL or is longer than
    MAX_LINE goes to `problems`, and None stands in its place, so that aligned files stay aligned. A file that cannot
    be read, holds nothing or is no whole packed file raises DataError.
    """
    number = 0
    with open_text(path) as stream:
        for number, raw in enumerate(cut_in_lines(stream, path), start=1):
            place = Place(path, number)
            text = None if len(raw) > MAX_LINE and too_long(raw, place, problems) else decode_line(raw, place, problems)
            yield None if text is None else Line(text, place)
    if number == 0:
        raise empty_error(path)


def read_parts(path: str, problems: Problems) -> Iterator[Line]:
    """Yield the text of a UTF-8 file with line feeds as ends of line; a line longer than PIECE comes in several parts.

    A line that is not UTF-8 or holds NUL goes to `problems` and is left out. If it comes in parts, only the parts
    from the bad one on are left out, since the earlier ones have been given by then.
    """
    number, broken, begun = 1, False, False
    with open_text(path) as stream:
        for raw in cut_in_parts(stream, path):
            place, ends = Place(path, number), raw.endswith(b"\n")
            text = None if broken else decode_line(raw, place, problems)
            broken = text is None
            if text is not None:
                yield Line(f"{text}\n" if ends else text, place)
            elif ends and begun:
                yield Line("\n", place)
            begun = not ends and (begun or not broken)
            broken = broken and not ends
            number += ends


def files_of(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the files that are meant: a folder stands for every file in it and below, by name, without hidden ones; a
    name with a * for those that fit it, unless a file has that very name; an address such as s3://bucket/folder for
    what is there.
    """
    return tuple(file for path in paths for file in find_files(path))


def find_files(path: str) -> list[str]:
    if is_remote(path):
        found = list_remote(path)
    elif os.path.isdir(path):
        found = files_in(path)
    elif "*" in path and not os.path.lexists(path):
        found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
        if not found:
            raise DataError(f"{display_name(path)}: no file has such a name")
    else:
        found = [check_exists(path)]
    indices = [name for name in found if re.split(r"[/\\]", name)[-1] == "index.json"]
    listed = [shards_of(index) for index in indices]
    return [shard for shards in listed for shard in shards or ()] if indices and None not in listed else found


def shards_of(index: str) -> list[str] | None:
    """Return the shards of MDS that an index.json lists; None for a file of other JSON."""
    here, folder = local_path(index), index.removesuffix("index.json")
    try:
        found = read_json(here, error=DataError)
    except DataError:
        return None
    shards = found.get("shards") if isinstance(found, dict) else None
    if not isinstance(shards, list) or not all(isinstance(one, dict) and one.get("format") == "mds" for one in shards):
        return None
    if not shards:
        raise DataError(f"{display_name(index)}: lists no shard")
    names: list[str] = []
    for shard in shards:
        files = [shard.get(kind) for kind in ("raw_data", "zip_data")]
        given = [file for file in files if isinstance(file, dict) and is_plain_name(file.get("basename"))]
        there = [file for file in given if not is_remote(index) and os.path.exists(folder + file["basename"])]
        if not given:
            raise DataError(f"{display_name(index)}: lists a shard without the name of a file beside it")
        chosen = [*there, given[-1]][0]
        names.append(folder + chosen["basename"])
        listed = chosen.get("bytes")
        if there and isinstance(listed, int) and (size := os.path.getsize(names[-1])) != listed:
            raise DataError(
                f"{display_name(names[-1])}: has {size:,} bytes, and {listed:,} by its index.json; copy it again"
            )
    return names


def spool(path: str, folder: Path) -> str:
    """Return the path of a file that can be read again and again: stdin or a pipe is copied into `folder`.

    An ordinary file stays where it is.
    """
    if not (path == "-" or is_pipe(path)):
        return path
    name = "stdin" if path == "-" else path.strip("/").replace("/", "-")
    copied = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(copied) as partial:
            with bytes_of(path) as source, partial.open("wb") as copy:
                shutil.copyfileobj(source, copy)
            if partial.stat().st_size == 0:
                raise empty_error(path)
    except OSError as error:
        raise DataError(f"{display_name(path)} cannot be copied to {copied}: {error.strerror or error}") from error
    return str(copied)


class Again(RawIOBase):
    """A stream whose first bytes, already read, are given again: a pipe cannot be rewound. `given` counts its bytes."""

    def __init__(self, head: bytes, rest: BufferedIOBase) -> None:
        self.head, self.rest, self.given = head, rest, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Return what is there after at most one read, so that a typed line can be used before the next one comes."""
        chunk = self.head or self.rest.read1(len(buffer))
        size = min(len(buffer), len(chunk))
        buffer[:size], self.head = chunk[:size], chunk[size:]
        self.given += size
        return size


class Unpacked(RawIOBase):
    """The text of a packed file; DataError if it is damaged, OSError if it becomes far longer than the file."""

    def __init__(self, packed: Again, packing: str, name: str) -> None:
        self.packed, self.packing, self.name, self.given = packed, packing, name, 0
        self.file = PACKINGS[packing][1](BufferedReader(packed, BUFFER))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            size = self.file.readinto(buffer)
        except EOFError as error:
            raise DataError(f"{self.name}: the {self.packing} file ends too early; copy or pack it again") from error
        except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno:  # the disk's, or a shard's that went away
                raise
            raise DataError(
                f"{self.name}: the {self.packing} file is damaged ({error}); copy or pack it again"
            ) from error
        self.given += size
        try:
            check_unpacked(self.given, self.packed.given)
        except ValueError as error:
            raise OSError(str(error)) from None
        return size


class Streams(RawIOBase):
    """What bzip2 or xz has packed, one stream after another, perhaps with zeros between. Python's own files end without
    a word before a stream whose first bytes are damaged.
    """

    def __init__(
        self, packed: BufferedReader, begin: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
    ) -> None:
        self.packed, self.begin, self.stream = packed, begin, begin()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        text = b""
        while not text:
            given = b""
            if self.stream.eof:
                given = self.skip_zeros()
                if not given:
                    return 0
                self.stream = self.begin()
            elif self.stream.needs_input:
                given = self.packed.read1(BUFFER)
                if not given:
                    raise EOFError
            text = self.stream.decompress(given, len(buffer))
        buffer[: len(text)] = text
        return len(text)

    def skip_zeros(self) -> bytes:
        """Return the first bytes after a stream and the zeros that may follow it; none at the end of the file."""
        rest = self.stream.unused_data.lstrip(b"\0")
        while not rest and (more := self.packed.read1(BUFFER)):
            rest = more.lstrip(b"\0")
        return rest


def unpack_zstd(packed: BufferedReader) -> Any:
    """Return the text of a zstd file, by pyarrow: Python has it from 3.14 on."""
    if not has_package("pyarrow"):
        raise OSError(f"zstd takes pyarrow: {how_to_install('parquet')}")
    import pyarrow  # pyright: ignore[reportMissingImports]

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(packed, mode="r"), "zstd")


PACKINGS: dict[str, tuple[re.Pattern[bytes], Callable[[BufferedReader], Any]]] = {
    "gzip": (re.compile(rb"\x1f\x8b"), lambda packed: gzip.GzipFile(fileobj=packed, mode="rb")),
    "bzip2": (
        re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
        lambda packed: Streams(packed, bz2.BZ2Decompressor),
    ),
    "xz": (re.compile(rb"\xfd7zXZ\x00"), lambda packed: Streams(packed, lzma.LZMADecompressor)),
    "zstd": (re.compile(rb"\x28\xb5\x2f\xfd"), unpack_zstd),
}
"""How files are packed: what such a file begins with, and what unpacks it."""
HEAD = 10
"""Bytes that tell how a file is packed. All begin with one of PAIRS, so that no more is read of a terminal."""
PAIRS = (b"\x1f\x8b", b"BZ", b"\xfd7", b"\x28\xb5")


@contextmanager
def open_text(path: str, *, unpack: bool = True) -> Iterator[BufferedIOBase]:
    """Open the bytes of a file, unpacked; whatever goes wrong while it is open is a DataError that names it."""
    name = display_name(path)
    try:
        with bytes_of(path) as raw:
            head = raw.read(2)
            head += raw.read(HEAD - 2) if head in PAIRS else b""
            again = Again(head, raw)
            packing = next((one for one, (begins, _) in PACKINGS.items() if unpack and begins.match(head)), None)
            yield BufferedReader(again if packing is None else Unpacked(again, packing, name), BUFFER)
    except OSError as error:
        raise DataError(f"{name}: {reason(error)}") from error


def bytes_of(path: str) -> AbstractContextManager[BufferedIOBase]:
    if path == "-":
        return nullcontext(stdin())
    return open(local_path(path) if is_remote(path) else check_exists(path), "rb")


def stdin() -> BufferedIOBase:
    """Return stdin, for the only time it can be read."""
    if sys.stdin is None:
        raise DataError("stdin is closed: give a file, or pipe the text in")
    stream = cast(BufferedIOBase, sys.stdin.buffer)
    if stream in TAKEN:
        raise DataError("stdin can be read only once, and has been read: put the text into a file and give its name")
    TAKEN.add(stream)
    return stream


def cut_in_lines(stream: BufferedIOBase, path: str) -> Iterator[bytes]:
    """Yield the lines of a stream with their ends; beyond MOST_BYTES the rest of a line is read and dropped."""
    first = True
    while raw := stream.readline(MOST_BYTES):
        end = raw
        while len(raw) == MOST_BYTES and end and not end.endswith(b"\n"):  # the rest of a line that is too long
            end = stream.readline(BUFFER)
        raw = without_mark(raw, path) if first else raw
        first = False
        if raw:
            yield raw


def too_long(raw: bytes, place: Place, problems: Problems) -> bool:
    """Return whether a line has more characters than it may, which is added to the problems."""
    line = without_end(raw)
    # Without the bytes that continue a character, as many are left as there are characters.
    if len(line) > 4 * MAX_LINE or len(line.translate(None, CONTINUING)) > MAX_LINE:
        problems.add(place, f"the line is longer than {MAX_LINE:,} characters", "line too long")
        return True
    return False


def decode_line(raw: bytes, place: Place, problems: Problems) -> str | None:
    """Return the text of a line without its end; None if it cannot be used, which is added to the problems."""
    try:
        text = without_end(raw).decode()
    except UnicodeDecodeError as error:
        encoding, start = guess_encoding(raw), max(0, error.start - 12)
        shown = raw[start : error.start + 12].decode(encoding, errors="replace").strip()
        message = f"invalid UTF-8: byte {error.start + 1:,} of the line is 0x{raw[error.start]:02x} ({error.reason})"
        problems.add(place, f"{message}; as {encoding} it is {shown!r}", NOT_UTF8)
        problems.encodings[encoding] += 1
        return None
    if "\0" in text:
        problems.add(place, "the line holds a NUL character; is the file text, and UTF-8?", "NUL character")
        return None
    return text


def without_end(raw: bytes) -> bytes:
    return raw[: -2 if raw.endswith(b"\r\n") else -1] if raw.endswith(b"\n") else raw


def without_mark(raw: bytes, path: str) -> bytes:
    """Return the first bytes of a file without a byte order mark; raise DataError for a file that is no UTF-8 text."""
    for mark, encoding in FOREIGN.items():
        if raw.startswith(mark):
            raise DataError(f"{display_name(path)} is {encoding}")
    if (encoding := unmarked_utf16(raw)) is not None:
        raise DataError(f"{display_name(path)} is {CONVERT.format('UTF-16', encoding)}")
    return raw.removeprefix(BOM)


def unmarked_utf16(raw: bytes) -> str | None:
    """Return the name of UTF-16 without a byte order mark: in most scripts half of the first bytes are the same few."""
    ascii_first, ascii_second = (raw[:64][start::2].count(0) for start in (1, 0))
    least = len(raw[:64]) // 2 - 2  # the last pair may be cut in two
    if least >= 2 and max(ascii_first, ascii_second) >= least and min(ascii_first, ascii_second) <= 1:
        return "UTF-16LE" if ascii_first > ascii_second else "UTF-16BE"
    return None


def guess_encoding(raw: bytes) -> str:
    """Return what a line that is no UTF-8 is likely to be in: bytes from 0x80 to 0x9f are letters in Windows alone."""
    return "WINDOWS-1252" if any(0x80 <= byte < 0xA0 for byte in raw) else "LATIN1"


def cut_in_parts(stream: BufferedIOBase, path: str) -> Iterator[bytes]:
    """Yield the lines of a stream with their ends; one longer than PIECE in parts, each of whole characters."""
    unfinished, first = b"", True
    while raw := stream.readline(PIECE):
        raw = unfinished + (without_mark(raw, path) if first else raw)
        first = False
        end = len(raw) if raw.endswith(b"\n") else last_cut(raw)
        if end:
            yield raw[:end]
        unfinished = raw[end:]
    if unfinished:
        yield unfinished


def last_cut(raw: bytes) -> int:
    """Return the last place where a part may end: not inside a character, and not between the two that end a line."""
    if raw.endswith(b"\r"):
        return len(raw) - 1
    leads = (len(raw) - back for back in (1, 2, 3) if raw[-back:][:1] >= b"\xc0")
    return next(leads, len(raw))


def files_in(folder: str) -> list[str]:
    """Return every file in a folder and its subfolders; a link back to a folder above is not entered again."""
    files: list[str] = []
    waiting = [(folder, frozenset({os.path.realpath(folder)}))]
    while waiting:
        inside, above = waiting.pop()
        for path in (os.path.join(inside, name) for name in names_in(inside) if not name.startswith(".")):
            real = os.path.realpath(path)
            if os.path.isdir(path) and real not in above:
                waiting.append((path, above | {real}))
            elif not os.path.isdir(path) and not is_pipe(path):
                files.append(path)
    if not files:
        raise DataError(f"{display_name(folder)}: there is no file in this folder")
    return sorted(files, key=lambda path: Path(path).parts)


def names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise DataError(f"{display_name(folder)}: the folder cannot be read: {error.strerror}") from error


def check_exists(path: str) -> str:
    try:
        if path != "-":
            os.stat(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{display_name(path)}: {reason(error)}") from error
    return path


def is_pipe(path: str) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path)
    except (OSError, ValueError):
        return False


def empty_error(path: str) -> DataError:
    return DataError(f"{display_name(path)}: the file is empty")


def reason(error: OSError | ValueError) -> str:
    """Return why a file cannot be read, in the user's words."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "this is a folder, and a file is expected"
    return f"cannot be read: {error.strerror if isinstance(error, OSError) and error.strerror else error}"
