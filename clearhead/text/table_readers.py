"""Readers of tables, one for each form: with delimiters, JSON, Parquet, MDS, fastText, CoNLL.

Each yields a row of values a record. What is wrong with a line is told with its place, and with `skip_bad` passed over.

Parquet takes pyarrow, of the extra `parquet`. A file of 252 bytes can say that it holds 18 GB, so pyarrow works in a
bounded process, a few thousand rows at a time, and texts come from there.
"""

import csv
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, islice, takewhile
from typing import Any, NamedTuple, NoReturn

from clearhead.bounds import TABLE, check_unpacked, stream_bounded
from clearhead.errors import DataError
from clearhead.extras import has_package, how_to_install
from clearhead.text import mds, remote
from clearhead.text.forms import DOCUMENT, LABEL, conll_cells, is_number, read_head, suffix_of
from clearhead.text.lines import MAX_LINE, PIECE, Line, Place, Problems, display_name, read_lines, read_parts

ROWS, BATCH, SENT = 4096, 64_000_000, 4_000_000
"""The most rows that are decoded at a time, of about how many bytes; and the characters handed over together."""
LEAST_ROW = 16
"""Bytes that a row counts at least: a file may have billions of rows without a value."""

Rows = list[list[str] | dict[str, str]]
"""Rows as JSON: the texts of its columns, or what is wrong with it."""


def parquet_rows(path: str, columns: Sequence[str], problems: Problems) -> Iterator[tuple[tuple[str, ...], Place]]:
    """Yield the values of these columns in every row, as text, and where the row is; columns by name, or by number.

    A row whose value is missing, or is neither text nor a number, goes to `problems`.
    """
    name = display_name(path)
    if not has_package("pyarrow"):
        raise DataError(f"{name}: Parquet takes pyarrow: {how_to_install('parquet')}")
    here = os.path.abspath(remote.local_path(path))
    arguments = {"path": here, "columns": list(columns), "name": name}
    number = unpacked = 0
    for rows in stream_bounded(read_here, arguments, TABLE, where=f"{name}: as Parquet", error=DataError):
        for row in rows:
            number += 1
            unpacked += LEAST_ROW
            place = Place(path, number)
            if isinstance(row, dict):
                problems.add(place, row["message"], row["kind"])
            else:
                unpacked += sum(map(len, row))
                yield tuple(row), place
        try:
            check_unpacked(unpacked, os.path.getsize(here))
        except (OSError, ValueError) as error:
            raise DataError(f"{name}: {error}") from None


def read_here(path: str, columns: Sequence[str], name: str) -> Iterator[Rows]:
    """Yield the rows in this process, which is a bounded one; `name` is the file's in messages."""
    import pyarrow  # pyright: ignore[reportMissingImports]
    from pyarrow.parquet import ParquetFile  # pyright: ignore[reportMissingImports]

    try:
        with ParquetFile(path) as file:
            names = pick_names(name, columns, file.schema_arrow.names)
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            widest = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1)
            at_once = int(min(max(BATCH / max(widest, 1), 1), ROWS))
            ready, size = Rows(), 0
            for batch in file.iter_batches(at_once, columns=list(dict.fromkeys(names)), use_threads=False):
                for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    ready.append(as_texts(row, columns))
                    size += sum(map(len, ready[-1]))
                    if size > SENT or len(ready) == ROWS:
                        yield ready
                        ready, size = Rows(), 0
            yield ready
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, pyarrow.ArrowMemoryError):
            raise MemoryError from None
        raise DataError(f"{name}: cannot be read as Parquet ({str(error).splitlines()[0][:300]})") from None


def pick_names(path: str, columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names of the columns that are asked for, each by its name or its number from 1."""
    picked = []
    for column in columns:
        by_number = column.isascii() and column.isdecimal() and 1 <= int(column[:9]) <= len(names)
        if names.count(column) != 1 and not by_number:
            raise DataError(f"{path}: there is no column {column!r}; its columns are {', '.join(names)[:1000]}")
        picked.append(column if column in names else names[int(column) - 1])
    return picked


def as_texts(values: Sequence[Any], columns: Sequence[str]) -> list[str] | dict[str, str]:
    """Return the values of a row as text, or what is wrong with one of them."""
    for column, value in zip(columns, values, strict=True):
        if value is None:
            return {"message": f"column {column!r} has no value", "kind": "empty value"}
        if not isinstance(value, str | int | float):
            return {"message": f"column {column!r} is no text but {type(value).__name__}", "kind": "not text"}
        if isinstance(value, str) and ("\0" in value or len(value) > MAX_LINE):
            message = f"column {column!r} holds a NUL, or more than {MAX_LINE:,} characters"
            return {"message": message, "kind": "not text"}
    return list(map(str, values))


class TableRow(NamedTuple):
    """The values of a record, and the line where it begins."""

    values: tuple[str, ...]
    place: Place


def read_tsv(path: str, columns: Sequence[str], problems: Problems) -> Iterator[TableRow]:
    return pick_columns(tsv_rows(path, problems), path, columns, problems)


def read_quoted(delimiter: str) -> "Reader":
    """Return the reader of tables with this delimiter, whose fields may be quoted."""

    def read(path: str, columns: Sequence[str], problems: Problems) -> Iterator[TableRow]:
        return pick_columns(csv_rows(path, problems, delimiter), path, columns, problems)

    return read


def read_jsonl(path: str, columns: Sequence[str], problems: Problems) -> Iterator[TableRow]:
    """Yield the values of every object, as strings; numbers stay as they are written."""
    for fields, place in json_objects(path, problems):
        try:
            yield TableRow(tuple(json_value(fields, column) for column in columns), place)
        except Unfit as unfit:
            problems.add(place, *unfit.args)


def json_objects(path: str, problems: Problems) -> Iterator[tuple[dict[str, object], Place]]:
    """Yield the objects of a file of JSON: one a line, or the elements of an array, however its lines are broken."""
    if (remote.is_remote(path) or os.path.isfile(path)) and "".join(read_head(path)).lstrip().startswith("["):
        yield from array_objects(path, problems)
        return
    for line in read_lines(path, problems):
        if line is None or not line.text.strip():
            continue
        try:
            yield parse_object(line.text), line.place
        except Unfit as unfit:
            problems.add(line.place, *unfit.args)


def array_objects(path: str, problems: Problems) -> Iterator[tuple[dict[str, object], Place]]:
    """Yield the objects of a JSON array, about a megabyte of text at a time. What is no JSON ends it."""
    text, at, place, ended = "", 0, Place(path, 1), False
    for part in chain(pieces(read_parts(path, problems)), [None]):
        text, at = text[at:] + (part.text if part else ""), 0
        while True:
            start = JSON_BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            ended = ended or "]" in text[at:start]
            place = Place(path, place.line + text.count("\n", at, start))
            at = start
            if at == len(text):
                break
            try:
                value, stop = DECODER.raw_decode(text, at)
            except (json.JSONDecodeError, RecursionError, Unfit) as error:
                if part and len(text) - at <= MAX_LINE:
                    break  # it may go on in the next piece
                problems.add(place, f"not JSON ({error}); the rest of the array is not read", "not JSON")
                return
            if isinstance(value, dict):
                yield value, place
            else:
                problems.add(place, f"an element of the array is {quote(text[at:stop])}, no object", "not an object")
            place, at = Place(path, place.line + text.count("\n", at, stop)), stop
    if not ended:
        problems.add(place, "the file ends within its array: there is no closing bracket", "not JSON")


def read_fasttext(path: str, columns: Sequence[str], problems: Problems) -> Iterator[TableRow]:
    """Yield the columns of lines such as `__label__sport the text`: `text`, `label` if there is one, or all `labels`
    with commas between.
    """
    if unknown := [column for column in columns if column not in FASTTEXT]:
        raise DataError(
            f"{display_name(path)}: a fastText file has {', '.join(FASTTEXT)} for columns, and no {quote(unknown[0])}"
        )
    for line in read_lines(path, problems):
        if line is None or not line.text.strip():
            continue
        words = line.text.split()
        labels = [word.removeprefix(LABEL) for word in takewhile(lambda word: word.startswith(LABEL), words)]
        if "label" in columns and len(labels) != 1:
            message = f"the line has {len(labels)} labels, and one is expected; --task label takes any number"
            problems.add(line.place, message, "number of labels")
            continue
        values = {
            "text": " ".join(words[len(labels) :]),
            "label": "".join(labels),
            "labels": ", ".join(labels) or "-",
        }
        yield TableRow(tuple(values[column] for column in columns), line.place)


def read_conll(path: str, columns: Sequence[str], problems: Problems) -> Iterator[TableRow]:
    """Yield a row for each sentence: its words and their tags, each with blanks between.

    Columns are numbers from 1. By name they are the first and the last; in CoNLL-U FORM and UPOS.
    """
    universal = suffix_of(path) == ".conllu"
    indices = [1, 3] if universal else [0, -1]
    if all(map(is_number, columns)):
        indices = [int(column[:9]) - 1 for column in columns]
        if min(indices) < 0:
            raise DataError(f"{display_name(path)}: columns are counted from 1; came {', '.join(columns)}")
    for sentence in conll_sentences(path, problems):
        cells = [conll_cells(line.text) for line in sentence]
        if universal:  # 1-2 is a word made of two that follow, and 8.1 one that was left out of the text
            cells = [row for row in cells if is_number(row[0])]
        place, lengths = sentence[0].place, sorted({len(row) for row in cells})
        if len(lengths) != 1 or lengths[0] <= max(indices) or sum(len(line.text) for line in sentence) > MAX_LINE:
            found = " or ".join(map(str, lengths)) or "no"
            problems.add(
                place,
                f"the sentence has lines of {found} columns; expected as many in each, {max(indices) + 1} or more",
                "wrong number of columns",
            )
        else:
            # A blank within a word would make two of it.
            yield TableRow(tuple(" ".join("_".join(row[i].split()) for row in cells) for i in indices), place)


def conll_sentences(path: str, problems: Problems) -> Iterator[list[Line]]:
    """Yield the lines of each sentence: blank lines are between them; comments and marks of documents are left out."""
    comments = (DOCUMENT, "#") if suffix_of(path) == ".conllu" else (DOCUMENT,)
    words = (line for line in read_lines(path, problems) if line and not line.text.startswith(comments))
    for blank, group in groupby(words, lambda line: not line.text.strip()):
        if not blank:
            yield list(group)


def read_parquet(path: str, columns: Sequence[str], problems: Problems) -> Iterator[TableRow]:
    """Yield the values of every row of a Parquet file."""
    for values, place in parquet_rows(path, columns, problems):
        yield TableRow(values, place)


def read_mds(path: str, columns: Sequence[str], problems: Problems) -> Iterator[TableRow]:
    """Yield the values of every sample of a shard of MDS."""
    choose = partial(pick_names, display_name(path), columns)
    for number, values in enumerate(mds.read_samples(path, choose, mds.text_decoder), start=1):
        row = as_texts(values, columns)
        if isinstance(row, dict):
            problems.add(Place(path, number), row["message"], row["kind"])
        else:
            yield TableRow(tuple(row), Place(path, number))


class Unfit(Exception):
    """A record that cannot be used: what is wrong, and the kind of problem."""


def parse_object(text: str) -> dict[str, object]:
    """Return the JSON object of a line; Unfit where it is none."""
    try:
        parsed = DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise Unfit(f"not JSON: {error.msg} at column {error.colno:,}", "not JSON") from error
    except RecursionError as error:
        raise Unfit("the JSON is nested too deeply", "not JSON") from error
    if not isinstance(parsed, dict):
        raise Unfit("the line is JSON, but no object", "not an object")
    return parsed


def json_value(fields: dict[str, object], column: str) -> str:
    name = quote(column)
    if column not in fields:
        raise Unfit(f"there is no key {name}; there are {list_names(list(fields))}", "missing key")
    value = fields[column]
    if isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, str):
        raise Unfit(f"key {name} holds {JSON_NAMES[type(value)]}, neither a string nor a number", "not a text")
    if "\0" in value:
        raise Unfit(f"key {name} holds a NUL character", "NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"key {name} holds half a surrogate pair, U+{ord(value[error.start]):04X}, which is no character"
        raise Unfit(message, "lone surrogate") from error
    return value


def refuse_constant(name: str) -> NoReturn:
    raise Unfit(f"not JSON: {name} is no number there", "not JSON")


def pick_columns(
    rows: Iterator[TableRow | None], path: str, columns: Sequence[str], problems: Problems
) -> Iterator[TableRow]:
    """Yield these columns of every row; a row with more or fewer than the first is a problem."""
    names, body = (number_columns if all(map(is_number, columns)) else split_header)(rows, path)
    indices = [position(column, names, path) for column in columns] if names else []
    for row in body:
        if len(row.values) == len(names):
            yield TableRow(tuple(row.values[index] for index in indices), row.place)
        else:
            message = f"the line has {len(row.values):,} columns, and the first one has {len(names):,}"
            problems.add(row.place, message, "wrong number of columns")


def split_header(rows: Iterator[TableRow | None], path: str) -> tuple[Sequence[str], Iterator[TableRow]]:
    """Return the names of the columns, from the first row, and the rows after it."""
    head = next(rows, None)
    if head is None:
        raise DataError(f"{display_name(path)}: the first line must name the columns, and cannot be read as such")
    return head.values, filter(None, rows)


def number_columns(rows: Iterator[TableRow | None], path: str) -> tuple[Sequence[str], Iterator[TableRow]]:
    """Return the column numbers "1", "2", …, as many as the first usable row has, and all usable rows."""
    usable = filter(None, rows)
    head = list(islice(usable, 1))
    return [str(number + 1) for row in head for number in range(len(row.values))], chain(head, usable)


def position(column: str, names: Sequence[str], path: str) -> int:
    """Return the index of a column in the header."""
    if names.count(column) != 1:
        problem = "more than one column" if column in names else "no column"
        hint = "" if column in names else ". If its first line is no header, give columns by number: --columns 1,2"
        raise DataError(
            f"{display_name(path)}: there is {problem} {quote(column)}; its columns are {list_names(names)}{hint}"
        )
    return names.index(column)


def tsv_rows(path: str, problems: Problems) -> Iterator[TableRow | None]:
    """Yield a row for each line, None for one that cannot be read."""
    for line in read_lines(path, problems):
        if line is None:
            yield None
        elif line.text:
            yield TableRow(tuple(line.text.split("\t")), line.place)


def csv_rows(path: str, problems: Problems, delimiter: str) -> Iterator[TableRow | None]:
    """Yield a row for each record, None for one that cannot be read; reading goes on in the line after its first."""
    # The module's limit is one for the whole process and may be far below what a line may have here. Raising it harms
    # nobody: it is there against quotes that are never closed, and Feed sees to those.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))
    feed = Feed(line and line.text for line in read_lines(path, problems))
    reader = csv.reader(feed, strict=True, delimiter=delimiter)
    while True:
        place = Place(path, feed.next_record())
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if feed.taken[0] is not None:
                problems.add(place, f"not CSV: {error}", "not CSV")
            feed.give_back()
            yield None
        else:
            if row:
                yield TableRow(tuple(row), place)


class Feed:
    """The lines of a file as the csv module asks for them; those of a record that cannot be read can be given again."""

    def __init__(self, lines: Iterator[str | None]) -> None:
        self.lines = lines
        self.again: deque[str | None] = deque()
        self.taken: list[str | None] = []
        self.size = 0
        self.line = 1

    def __iter__(self) -> "Feed":
        return self

    def __next__(self) -> str:
        text = self.again.popleft() if self.again else next(self.lines)
        self.taken.append(text)
        if text is None:
            raise csv.Error("the record goes on in a line that cannot be read")
        self.size += len(text) + 1
        if self.size > MAX_LINE + 1:
            raise csv.Error(f"a quote is not closed for {MAX_LINE:,} characters")
        return f"{text}\n"

    def next_record(self) -> int:
        """Return the line where the next record begins."""
        self.line += len(self.taken)
        self.taken, self.size = [], 0
        return self.line

    def give_back(self) -> None:
        """Give all lines of the record but the first again."""
        self.again.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]


def quote(name: str) -> str:
    """Return a name for a message, cut where it is long."""
    return repr(name if len(name) <= 40 else f"{name[:40]}...")


def list_names(names: Sequence[str]) -> str:
    """Return quoted names for a message: at most 20, and how many more there are."""
    more = [f"{len(names) - 20:,} more"] if len(names) > 20 else []
    return ", ".join([*map(quote, names[:20]), *more]) or "none"


def pieces(parts: Iterator[Line]) -> Iterator[Line]:
    """Yield the parts joined into pieces that are long enough."""
    texts: list[str] = []
    size, begins = 0, None
    for text, place in parts:
        begins = begins or place
        texts.append(text)
        size += len(text)
        if size >= PIECE:
            yield Line("".join(texts), begins)
            texts, size, begins = [], 0, None
    if begins:
        yield Line("".join(texts), begins)


Reader = Callable[[str, Sequence[str], Problems], Iterator[TableRow]]


READERS: dict[str, Reader] = {
    "tsv": read_tsv,
    "csv": read_quoted(","),
    "semicolon": read_quoted(";"),
    "pipe": read_quoted("|"),
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "mds": read_mds,
    "fasttext": read_fasttext,
    "conll": read_conll,
}


FASTTEXT = ("text", "label", "labels")


JSON_BETWEEN = re.compile(r"[\s,\[\]]*")
"""What stands between the elements of an array."""


DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=refuse_constant)
"""A decoder that leaves numbers as strings: Python may change them, and fails on a very long one."""


JSON_NAMES = {type(None): "null", list: "a list", dict: "an object"}
