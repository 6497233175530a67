"""Tables in Parquet files, read a few thousand rows at a time. It takes pyarrow, of the extra `parquet`.

A file of 252 bytes can say that it holds 18 GB, so pyarrow works in a bounded process, and texts come from there.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from clearhead.bounds import TABLE, check_unpacked, stream_bounded
from clearhead.errors import DataError
from clearhead.extras import has_package, how_to_install
from clearhead.text.lines import MAX_LINE
from clearhead.text.problems import Place, Problems, display_name

ROWS, BATCH, PIECE = 4096, 64_000_000, 4_000_000
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
    arguments = {"path": os.path.abspath(path), "columns": list(columns), "name": name}
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
            check_unpacked(unpacked, os.path.getsize(path))
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
                    if size > PIECE or len(ready) == ROWS:
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
