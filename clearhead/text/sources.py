"""Sources: the descriptions of a corpus, each of which reads its records from the user's files one at a time.

Aligned files, tables (with delimiters, JSON, Parquet, fastText, CoNLL) and documents.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal, NamedTuple, final, get_args

from clearhead.calls import CodeRepr, public
from clearhead.errors import DataError, OptionError
from clearhead.text.forms import Form, form_of
from clearhead.text.lines import (
    Line,
    Place,
    Problems,
    display_name,
    empty_error,
    files_of,
    open_text,
    read_lines,
    read_parts,
)
from clearhead.text.mds import SHARD
from clearhead.text.table_readers import READERS, TableRow, Unfit, json_objects, json_value, pieces, quote

Unit = Literal["line", "file"]


class Record(NamedTuple):
    """A text for each field of a source, and the line where the record begins.

    A long document comes as several records, of which only the last one `ends` it.
    """

    fields: tuple[str, ...]
    place: Place
    ends: bool = True


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

    def shards(self) -> "list[Source]":
        """Return sources that give its records one after another: of a file each, or of files that belong together."""
        return [self]

    def of_shards(self, shards: "Sequence[Source]") -> "Source":
        """Return some of its shards as one source."""
        return shards[0]

    def sources(self) -> "list[Source]":
        """Return sources as they were given, of a path each: what has a share of a mixture."""
        return [self]

    @property
    def name(self) -> str:
        """Return what a source of a mixture is called: the path that was given."""
        return self.files[0]

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
    """Files in pairs: line i of the target belongs to line i of the source.

    Args:
        source: Files of the source.
        target: Files of the target, as many.
    """

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
        """Return the files that belong together; DataError if one has no partner."""
        sources, targets = files_of(self.source), files_of(self.target)
        if len(sources) != len(targets):
            counts = f"{len(sources)} of the source and {len(targets)} of the target"
            raise DataError(f"aligned files come in pairs; there are {counts}")
        return list(zip(sources, targets, strict=True))

    def shards(self) -> list[Source]:
        return [Aligned(source=(source,), target=(target,)) for source, target in self.pairs()]

    def sources(self) -> list[Source]:
        if len(self.source) != len(self.target):
            return [self]
        pairs = zip(self.source, self.target, strict=True)
        return [Aligned(source=(source,), target=(target,)) for source, target in pairs]

    @property
    def name(self) -> str:
        return self.source[0]

    def of_shards(self, shards: Sequence[Source]) -> Source:
        sides = [tuple(shard.files[side] for shard in shards) for side in (0, 1)]
        return Aligned(source=sides[0], target=sides[1])

    def records(self, problems: Problems) -> Iterator[Record]:
        for source, target in self.pairs():
            yield from read_aligned(source, target, problems)


@dataclass(frozen=True, kw_only=True)
class OfPaths(Source):
    """A source whose files are read one after another."""

    paths: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        return files_of(self.paths)

    def shards(self) -> list[Source]:
        return [replace(self, paths=(path,)) for path in self.files]

    def sources(self) -> list[Source]:
        return [replace(self, paths=(path,)) for path in self.paths]

    @property
    def name(self) -> str:
        return self.paths[0]

    def of_shards(self, shards: Sequence[Source]) -> Source:
        return replace(self, paths=tuple(path for shard in shards for path in shard.files))


@final
@public
@dataclass(frozen=True, kw_only=True)
class Table(OfPaths):
    """Files with one record per line.

    For files without a header line, columns are numbers counted from 1, as strings: ("1", "2"). A `tsv` file has no
    quotes; a quoted field of a `csv` file may contain line ends; `semicolon` and `pipe` are such files with another
    separator. A line of a `jsonl` file, or an element of its array, is an object whose keys are the columns. Lines of a
    `fasttext` file begin with `__label__`; a `conll` file has one word per line. Empty lines are skipped.

    Args:
        paths: The files.
        columns: Columns to read.
        fields: What they hold, in the same order.
        form: Format of the files; `auto` goes by their names and first lines.

    Raises:
        OptionError: If columns and fields do not match, or the form is unknown.

    >>> import clearhead as ch
    >>> table = ch.training.Table(paths=("pairs.tsv",), columns=("1", "2"), fields=("source", "target"))
    """

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
class Documents(OfPaths):
    """Running text.

    A file is read in pieces of about a megabyte, cut at ends of lines. Together they are the file's text, with line
    feeds as ends of lines; a megabyte or more of white space at its beginning is left out.

    Args:
        paths: Files or folders.
        unit: A `line` is a document (blank lines are skipped), or a `file` is.
    """

    unit: Unit = "file"

    fields = ("text",)

    def __post_init__(self) -> None:
        check_paths("paths", self.paths)
        check_choice("unit", self.unit, get_args(Unit))

    def records(self, problems: Problems) -> Iterator[Record]:
        read = UNITS[self.unit]
        for path in self.files:
            if SHARD.search(path):
                raise DataError(
                    f"{display_name(path)}: is a shard of MDS: give ids as --text FOLDER/index.json, and texts as "
                    "--table FOLDER --columns text"
                )
            yield from read(path, problems)


@dataclass(frozen=True, kw_only=True)
class Messages(OfPaths):
    """Conversations as JSON lines: `messages`, a list of objects with `role` and `content`, the last of an assistant.

    The prompt of a record is the JSON of all messages but the last, whose content is the answer.
    """

    fields = ("prompt", "answer")

    def __post_init__(self) -> None:
        check_paths("paths", self.paths)

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


UNITS: dict[Unit, Callable[[str, Problems], Iterator[Record]]] = {"line": read_line_documents, "file": read_whole}
ENDED = Line("", Place("", 0))
"""Stands for the lines that a shorter file does not have."""
