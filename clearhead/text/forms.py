"""Forms of tables: which one a file has, by its name and its first lines.

The delimiter of a table is found, not assumed: many a .csv has semicolons. Where several would do, the file is refused
with the choices, and nothing is guessed.
"""

import csv
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import PurePath
from typing import Literal

from clearhead.errors import DataError
from clearhead.text.lines import PACKED_NAME, display_name, is_pipe, open_text
from clearhead.text.remote import is_remote

Form = Literal["auto", "tsv", "csv", "semicolon", "pipe", "jsonl", "parquet", "mds", "fasttext", "conll"]
FORMS: dict[str, Form] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".mds": "mds",
    ".conll": "conll",
    ".conllu": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".iob2": "conll",
}
DELIMITERS: dict[Form, str] = {"tsv": "\t", "csv": ",", "semicolon": ";", "pipe": "|"}
LABEL = "__label__"
"""What each label begins with in a file of fastText's."""
DOCUMENT = "-DOCSTART-"
"""The word of a line that begins a document in the files of CoNLL 2003."""
HEAD = 1 << 16
"""Bytes of a file that are looked at."""


def suffix_of(path: str) -> str:
    return PurePath(PACKED_NAME.sub("", path.lower())).suffix


def is_number(column: str) -> bool:
    return column.isascii() and column.isdecimal()


def form_of(path: str, columns: Sequence[str]) -> Form:
    """Return the form of a table; DataError, with the choices, where neither its name nor its first lines tell."""
    found = possible_forms(path, columns)
    if len(found) == 1:
        return found[0]
    name = display_name(path)
    if found:
        apart = " or ".join(repr(DELIMITERS[form]) for form in found)
        choices = " or ".join(f"--form {form}" for form in found)
        raise DataError(f"{name}: there may be {apart} between its columns; say which: {choices}")
    raise DataError(
        f"{name}: neither its name nor its first lines tell the form of the table; give it: --form tsv, csv, "
        "semicolon, pipe, jsonl, parquet, mds, fasttext or conll"
    )


def possible_forms(path: str, columns: Sequence[str]) -> list[Form]:
    """Return the forms that the beginning of a table can be read in; several where it is in doubt."""
    by_name = FORMS.get(suffix_of(path))
    if by_name not in (None, *DELIMITERS) or path == "-" or is_pipe(path) or not is_there(path):
        return [] if by_name is None else [by_name]
    lines = read_head(path)
    first = next((line for line in lines if line.strip()), "")
    if by_name is None and first.lstrip().startswith(("{", "[")):
        return ["jsonl"]
    if by_name is None and first.startswith("PAR1"):
        return ["parquet"]
    if first.startswith(LABEL):
        return ["fasttext"]
    if is_conll(lines):
        return ["conll"]
    fitting: list[Form] = [form for form in DELIMITERS if fits(lines, DELIMITERS[form], columns)]
    if by_name is not None and (by_name in fitting or not fitting):
        return [by_name]
    if len(columns) == 1 and "tsv" in fitting:  # a line is the whole record: no delimiter is needed
        return ["tsv"]
    return fitting


def is_there(path: str) -> bool:
    return is_remote(path) or os.path.exists(path)


def read_head(path: str) -> list[str]:
    """Return the first whole lines of a file."""
    with open_text(path) as stream:
        text = stream.read(HEAD).decode(errors="replace").removeprefix("\ufeff")
    lines = text.split("\n")
    return [line.rstrip("\r") for line in (lines[:-1] if len(text) >= HEAD // 4 and lines[1:] else lines)]


def fits(lines: Sequence[str], delimiter: str, columns: Sequence[str]) -> bool:
    """Return whether a table with this delimiter has the columns: by name in its first line, or by number in all."""
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    try:
        rows = [row for row in csv.reader(lines, delimiter=delimiter, quoting=quoting) if row]
    except csv.Error:
        return False
    if not rows:
        return False
    if not all(map(is_number, columns)):
        return all(rows[0].count(column) == 1 for column in columns)
    rows = rows[:-1] if len(rows) > 20 else rows  # a quoted field of the last may go on
    return len({len(row) for row in rows}) == 1 and set(columns) <= {str(i + 1) for i in range(len(rows[0]))}


def is_conll(lines: Sequence[str]) -> bool:
    """Return whether lines have a word each, with its tags in columns, and blank lines between sentences."""
    texts = [line for line in lines if not line.startswith(DOCUMENT)]
    sentences = [list(group) for blank, group in groupby(texts, lambda line: not line.strip()) if not blank]
    rows = [conll_cells(line) for sentence in sentences for line in sentence]
    return (
        len(sentences) > 1
        and len(rows) >= 2 * len(sentences)
        and {len(row) for row in rows} == {len(rows[0])}
        and len(rows[0]) > 1
        and not any(" " in cell.strip() for row in rows for cell in row)
    )


def conll_cells(line: str) -> list[str]:
    """Return the columns of a line of CoNLL: tabs between them, or else blanks."""
    return line.rstrip().split("\t") if "\t" in line else line.split()
