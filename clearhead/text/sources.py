"""Sources: the descriptions of a corpus, each of which reads its records from the user's files one at a time.

Aligned files, tables (with delimiters, JSON, Parquet, fastText, CoNLL) and documents.
"""

import csv
import json
import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice, takewhile, zip_longest
from typing import Literal, NamedTuple, NoReturn, final, get_args

from clearhead.calls import public
from clearhead.code_repr import CodeRepr
from clearhead.errors import DataError, OptionError
from clearhead.text.forms import DOCUMENT, LABEL, Form, conll_cells, form_of, is_number, read_head, suffix_of
from clearhead.text.lines import MAX_LINE, PIECE, Line, empty_error, files_of, open_text, read_lines, read_parts
from clearhead.text.parquet import parquet_rows
from clearhead.text.problems import Place, Problems, display_name

Unit = Literal["line", "file"]


class Record(NamedTuple):
    """A text for each field of a source, and the line where the record begins.

    A long document comes as several records, of which only the last one `ends` it.
    """

    fields: tuple[str, ...]
    place: Place
    ends: bool = True


class TableRow(NamedTuple):
    """The values of a record, and the line where it begins."""

    values: tuple[str, ...]
    place: Place


class Source(CodeRepr, ABC):
    """The description of a corpus: its files, and the fields of its records."""

    fields: tuple[str, ...]

    @property
    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """Return every file of it; a folder stands for those in it."""

    @abstractmethod
    def records(self, problems: Problems) -> Iterator[Record]:
        """Yield the records. One with something wrong goes to `problems` and is left out."""

    def check_units(self, *, words: bool) -> None:
        """Raise DataError for files that tag words, unless `words` are what has labels."""

    def check(self) -> None:
        """Raise DataError for what is wrong with the files, as far as it shows without reading them to the end.

        Pipes are passed over: what is read of them is gone.
        """
        for path in dict.fromkeys(self.files):
            if os.path.isfile(path):
                with open_text(path):
                    if not os.path.getsize(path):
                        raise empty_error(path)


@final
@public
@dataclass(frozen=True, kw_only=True)
class Aligned(Source):
    """Files in pairs: line i of the target belongs to line i of the source."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    fields = ("source", "target")

    def __post_init__(self) -> None:
        check_paths("source", self.source)
        check_paths("target", self.target)

    @property
    def files(self) -> tuple[str, ...]:
        return files_of(self.source) + files_of(self.target)

    def check(self) -> None:
        super().check()
        self.pairs()

    def pairs(self) -> list[tuple[str, str]]:
        """Return the files that belong together; DataError where one has no partner."""
        sources, targets = files_of(self.source), files_of(self.target)
        if len(sources) != len(targets):
            counts = f"{len(sources)} of the source and {len(targets)} of the target"
            raise DataError(f"aligned files come in pairs; there are {counts}")
        return list(zip(sources, targets, strict=True))

    def records(self, problems: Problems) -> Iterator[Record]:
        for source, target in self.pairs():
            yield from read_aligned(source, target, problems)


@final
@public
@dataclass(frozen=True, kw_only=True)
class Table(Source):
    """Files with a record a line; `columns` are those that are read, and `fields` what they hold, in the same order.

    The first line of a `tsv` or a `csv` file names its columns. For files without such a line, columns are numbers
    counted from 1, as strings: ("1", "2"). A `tsv` file knows no quotes; a quoted field of a `csv` file may hold ends
    of line; `semicolon` and `pipe` are such files with another sign for the comma. A line of a `jsonl` file, or an
    element of its array, is an object, and columns are its keys. Lines of a `fasttext` file begin with `__label__`s;
    a `conll` file has a word a line. `auto` goes by the name of the file and its first lines (`clearhead.text.forms`).
    Lines without anything are passed over.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    fields: tuple[str, ...]
    form: Form = "auto"

    def __post_init__(self) -> None:
        check_paths("paths", self.paths)
        check_choice("form", self.form, get_args(Form))
        if any(isinstance(names, str) for names in (self.columns, self.fields)):
            given = f"{self.columns!r} for {self.fields!r}"
            raise OptionError(f'columns and fields: expected names in a tuple, as ("text", "label"); came {given}')
        if not self.columns or len(self.columns) != len(self.fields):
            raise OptionError(f"a table needs a column for each field; came {self.columns} for {self.fields}")
        if len(set(self.fields)) != len(self.fields):
            raise OptionError(f"the fields of a table must differ; came {self.fields}")

    @property
    def files(self) -> tuple[str, ...]:
        return files_of(self.paths)

    def check(self) -> None:
        """Raise DataError also where a file does not have the columns, or its form is not known."""
        super().check()
        for path in dict.fromkeys(self.files):
            if os.path.isfile(path):
                next(self.rows(path, Problems(skip=True)), None)

    def rows(self, path: str, problems: Problems) -> Iterator[TableRow]:
        return READERS[self.form_of(path)](path, self.columns, problems)

    def form_of(self, path: str) -> Form:
        return form_of(path, self.columns) if self.form == "auto" else self.form

    def check_units(self, *, words: bool) -> None:
        for path in dict.fromkeys(self.files) if not words else ():
            if self.form_of(path) == "conll":
                raise DataError(
                    f"{display_name(path)}: a word a line, with its tag, and blank lines between sentences (CoNLL): "
                    "tags of words are learned by --task tag. If each line is a record, say so: --form tsv"
                )

    def records(self, problems: Problems) -> Iterator[Record]:
        for path in self.files:
            for values, place in self.rows(path, problems):
                empty = [column for column, value in zip(self.columns, values, strict=True) if not value.strip()]
                if empty:
                    problems.add(place, f"column {quote(empty[0])} is empty", "empty value")
                else:
                    yield Record(values, place)


@final
@public
@dataclass(frozen=True, kw_only=True)
class Documents(Source):
    """Running text: a document a `line`, where blank lines are passed over, or a document a `file`.

    A file comes as pieces of about a megabyte. They end at an end of line unless the line is longer than that, and
    together they are the file's text, with line feeds as its ends of line; a megabyte or more of blank at its
    beginning is left out.
    """

    paths: tuple[str, ...]
    unit: Unit = "file"

    fields = ("text",)

    def __post_init__(self) -> None:
        check_paths("paths", self.paths)
        check_choice("unit", self.unit, get_args(Unit))

    @property
    def files(self) -> tuple[str, ...]:
        return files_of(self.paths)

    def records(self, problems: Problems) -> Iterator[Record]:
        read = UNITS[self.unit]
        for path in self.files:
            yield from read(path, problems)


@final
@dataclass(frozen=True, kw_only=True)
class Messages(Source):
    """Conversations as JSON lines: `messages`, a list of objects with `role` and `content`, the last of an assistant.

    The prompt of a record is the JSON of all messages but the last, whose content is the answer.
    """

    paths: tuple[str, ...]

    fields = ("prompt", "answer")

    def __post_init__(self) -> None:
        check_paths("paths", self.paths)

    @property
    def files(self) -> tuple[str, ...]:
        return files_of(self.paths)

    def records(self, problems: Problems) -> Iterator[Record]:
        for path in self.files:
            for fields, place in json_objects(path, problems):
                try:
                    yield Record(split_messages(fields.get("messages")), place)
                except Unfit as unfit:
                    problems.add(place, *unfit.args)


def split_messages(messages: object) -> tuple[str, str]:
    """Return the JSON of the messages before the last, and the last one's content; Unfit where they are none."""
    if not isinstance(messages, list) or len(messages) < 2:
        raise Unfit('expected "messages", a list of two or more', "no messages")
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise Unfit("a message has no role and content, both texts", "no messages")
    last = messages[-1]
    if last["role"] != "assistant":
        raise Unfit(f"the last message is of {quote(last['role'])}, and not of an assistant", "no answer")
    answer = json_value(last, "content")
    if not answer.strip():
        raise Unfit("the answer is empty", "empty value")
    return json.dumps(messages[:-1], ensure_ascii=False), answer


def check_paths(name: str, paths: object) -> None:
    if not isinstance(paths, tuple | list) or not paths or not all(isinstance(path, str) for path in paths):
        raise OptionError(f'{name}: expected one or more names of files, such as ("train.txt",); came {paths!r}')


def check_choice(name: str, choice: object, choices: tuple[str, ...]) -> None:
    if choice not in choices:
        raise OptionError(f"{name} must be one of {', '.join(choices)}; came {choice!r}")


def read_aligned(source: str, target: str, problems: Problems) -> Iterator[Record]:
    """Yield the pairs of lines of two files, which must have the same number of lines."""
    sources, targets = read_lines(source, problems), read_lines(target, problems)
    for number, (source_line, target_line) in enumerate(zip_longest(sources, targets, fillvalue=ENDED)):
        if source_line is ENDED or target_line is ENDED:
            longer = number + 1 + sum(1 for _ in (targets if source_line is ENDED else sources))
            counts = (number, longer) if source_line is ENDED else (longer, number)
            counted = (
                f"{display_name(path)} has {n:,} lines" for path, n in zip((source, target), counts, strict=True)
            )
            raise DataError(f"{' and '.join(counted)}; line by line they must belong together, so both need as many")
        if source_line is None or target_line is None:
            continue
        blank = next((line for line in (source_line, target_line) if not line.text.strip()), None)
        if blank:
            problems.add(blank.place, "the line is empty, and its partner waits for a text", "empty line")
        else:
            yield Record((source_line.text, target_line.text), source_line.place)


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
    if os.path.isfile(path) and "".join(read_head(path)).lstrip().startswith("["):
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


def read_line_documents(path: str, problems: Problems) -> Iterator[Record]:
    """Yield a document for each line that is not blank."""
    for line in read_lines(path, problems):
        if line and line.text.strip():
            yield Record((line.text,), line.place)


def read_whole(path: str, problems: Problems) -> Iterator[Record]:
    """Yield the pieces of a file, which is one document. Each is held back until the next one is there."""
    last = None
    for text, place in pieces(read_parts(path, problems)):
        if last:
            yield last
        if last or text.strip():
            last = Record((text,), place, ends=False)
    if last:
        yield last._replace(ends=True)
    else:
        problems.add(Place(path, 1), "the file holds no text", "empty file")


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


def quote(name: str) -> str:
    """Return a name for a message, cut where it is long."""
    return repr(name if len(name) <= 40 else f"{name[:40]}...")


def list_names(names: Sequence[str]) -> str:
    """Return quoted names for a message: at most 20, and how many more there are."""
    more = [f"{len(names) - 20:,} more"] if len(names) > 20 else []
    return ", ".join([*map(quote, names[:20]), *more]) or "none"


Reader = Callable[[str, Sequence[str], Problems], Iterator[TableRow]]
READERS: dict[str, Reader] = {
    "tsv": read_tsv,
    "csv": read_quoted(","),
    "semicolon": read_quoted(";"),
    "pipe": read_quoted("|"),
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "fasttext": read_fasttext,
    "conll": read_conll,
}
FASTTEXT = ("text", "label", "labels")
JSON_BETWEEN = re.compile(r"[\s,\[\]]*")
"""What stands between the elements of an array."""
UNITS: dict[Unit, Callable[[str, Problems], Iterator[Record]]] = {"line": read_line_documents, "file": read_whole}
ENDED = Line("", Place("", 0))
"""Stands for the lines that a shorter file does not have."""
DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=refuse_constant)
"""A decoder that leaves numbers as strings: Python may change them, and fails on a very long one."""
JSON_NAMES = {type(None): "null", list: "a list", dict: "an object"}
