"""Tables in Parquet files, read a few thousand rows at a time. It takes pyarrow, of the extra `parquet`."""

from collections.abc import Iterator, Sequence
from typing import Any

from clearhead.errors import DataError
from clearhead.extras import has_package, how_to_install
from clearhead.text.lines import MAX_LINE
from clearhead.text.problems import Place, Problems, display_name

ROWS = 4096


def parquet_rows(path: str, columns: Sequence[str], problems: Problems) -> Iterator[tuple[tuple[str, ...], Place]]:
    """Yield the values of these columns in every row, as text, and where the row is; columns by name, or by number.

    A row whose value is missing, or is neither text nor a number, goes to `problems`.
    """
    if not has_package("pyarrow"):
        raise DataError(f"{display_name(path)}: Parquet takes pyarrow: {how_to_install('parquet')}")
    import pyarrow  # pyright: ignore[reportMissingImports]
    from pyarrow.parquet import ParquetFile  # pyright: ignore[reportMissingImports]

    try:
        with ParquetFile(path) as file:
            names = pick_names(path, columns, file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches(batch_size=ROWS, columns=list(dict.fromkeys(names))):
                by_column = {name: batch.column(name).to_pylist() for name in names}
                for values in zip(*(by_column[name] for name in names), strict=True):
                    number += 1
                    place = Place(path, number)
                    if (texts := as_texts(values, columns, place, problems)) is not None:
                        yield texts, place
    except pyarrow.ArrowException as error:
        raise DataError(f"{display_name(path)}: cannot be read as Parquet ({str(error).splitlines()[0]})") from None


def pick_names(path: str, columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names of the columns that are asked for, each by its name or its number from 1."""
    picked = []
    for column in columns:
        by_number = column.isascii() and column.isdecimal() and 1 <= int(column) <= len(names)
        if names.count(column) != 1 and not by_number:
            raise DataError(f"{display_name(path)}: there is no column {column!r}; its columns are {', '.join(names)}")
        picked.append(column if column in names else names[int(column) - 1])
    return picked


def as_texts(values: Sequence[Any], columns: Sequence[str], place: Place, problems: Problems) -> tuple[str, ...] | None:
    """Return the values of a row as text; add to `problems` and return None if one of them cannot be used."""
    for column, value in zip(columns, values, strict=True):
        if value is None:
            problems.add(place, f"column {column!r} has no value", "empty value")
            return None
        if not isinstance(value, str | int | float):
            problems.add(place, f"column {column!r} is no text but {type(value).__name__}", "not text")
            return None
        if isinstance(value, str) and ("\0" in value or len(value) > MAX_LINE):
            problems.add(place, f"column {column!r} holds a NUL, or more than {MAX_LINE:,} characters", "not text")
            return None
    return tuple(map(str, values))
