"""Token ids in memory-mapped files: as many as the disk holds, of which a batch reads its own.

A store is a folder of fields (source and target, or text, or text and label). Each field is two files: the ids of all
records one after another, and where each record ends. It is written under another name and renamed when it is whole.
"""

import json
import os
import shutil
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import RunError

__all__ = ["FieldSize", "Ragged", "Store", "StoreWriter"]

FORMAT = 1
FULL = 1 << 20
"""How many ids a writer gathers before they go to disk."""


@final
@dataclass(frozen=True, kw_only=True)
class FieldSize:
    """How large a field is: ids in all, the longest record's, and the bytes of the records' text in UTF-8."""

    tokens: int
    longest: int
    text_bytes: int


@final
class Ragged:
    """Rows of ids of different lengths. `ids` and `ends` are memory-mapped."""

    def __init__(self, ids: NDArray[np.unsignedinteger], ends: NDArray[np.int64]) -> None:
        self.ids, self.ends = ids, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        start = self.ends[row - 1] if row else 0
        return self.ids[start : self.ends[row]].astype(np.int64)

    def starts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(rows > 0, self.ends[np.maximum(rows - 1, 0)], 0)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.ends[rows] - self.starts(rows)

    def padded(self, rows: NDArray[np.int64], width: int, pad: int) -> NDArray[np.int64]:
        """These rows as one array, each cut to `width` or filled up to it."""
        places = np.arange(width)
        lengths = np.minimum(self.lengths(rows), width)[:, None]
        inside = places < lengths
        index = np.where(inside, self.starts(rows)[:, None] + places, 0)
        return np.where(inside, self.ids[index] if len(self.ids) else 0, pad).astype(np.int64)


@final
class Store:
    """A whole store, open for reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            told = json.loads((folder / "store.json").read_text(encoding="utf-8"))
            if told["format"] != FORMAT:
                raise ValueError(f"its format is {told['format']}, and this version reads {FORMAT}")
            self.n: int = told["records"]
            self.notes: Mapping[str, object] = told["notes"]
            self.sizes = {name: FieldSize(**size) for name, size in told["fields"].items()}
            self.fields = {name: opened(folder, name, told["dtype"][name], self.n) for name in self.sizes}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunError(
                f"{folder}: not a whole store of token ids ({told_briefly(error)}); remove it, and it is made anew"
            ) from error

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, name: str) -> Ragged:
        return self.fields[name]


def told_briefly(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)


def opened(folder: Path, name: str, dtype: str, n: int) -> Ragged:
    ids = mapped(folder / f"{name}.ids", np.dtype(dtype))
    ends = mapped(folder / f"{name}.ends", np.dtype(np.int64))
    if len(ends) != n or (int(ends[-1]) if n else 0) != len(ids):
        raise ValueError(f"{name}.ids and {name}.ends do not fit together")
    return Ragged(ids, ends)


def mapped(path: Path, dtype: np.dtype) -> NDArray:
    """The file as an array; an empty file cannot be mapped, and is an empty array."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r")


class FieldWriter:
    """One field on its way to disk."""

    def __init__(self, folder: Path, name: str, vocabulary: int) -> None:
        self.ids = array("H" if vocabulary <= 1 << 16 else "I")
        self.ends = array("q")
        self.dtype = np.dtype(self.ids.typecode)
        self.ids_file: BinaryIO = (folder / f"{name}.ids").open("wb")
        self.ends_file: BinaryIO = (folder / f"{name}.ends").open("wb")
        self.tokens = self.longest = self.text_bytes = self.current = 0

    def add(self, ids: Sequence[int], n_bytes: int, *, ends: bool) -> None:
        self.ids.extend(ids)
        self.tokens += len(ids)
        self.current += len(ids)
        self.text_bytes += n_bytes
        if ends:
            self.ends.append(self.tokens)
            self.longest, self.current = max(self.longest, self.current), 0
        if len(self.ids) + len(self.ends) >= FULL:
            self.flush()

    def flush(self) -> None:
        for gathered, file in ((self.ids, self.ids_file), (self.ends, self.ends_file)):
            file.write(gathered)
            del gathered[:]

    def close(self) -> FieldSize:
        self.flush()
        for file in (self.ids_file, self.ends_file):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return FieldSize(tokens=self.tokens, longest=self.longest, text_bytes=self.text_bytes)

    def give_up(self) -> None:
        for file in (self.ids_file, self.ends_file):
            with suppress(OSError):  # what does not fit on a full disk is about to be removed
                file.close()


@final
class StoreWriter:
    """Writes a store, record by record (or a long record piece by piece). `vocabularies` says how large ids can be."""

    def __init__(self, folder: Path, vocabularies: Mapping[str, int]) -> None:
        self.folder, self.partial = folder, folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        self.fields = {name: FieldWriter(self.partial, name, size) for name, size in vocabularies.items()}
        self.n = 0

    def add(self, record: Mapping[str, Sequence[int]], n_bytes: Mapping[str, int], *, ends: bool = True) -> None:
        for name, field in self.fields.items():
            field.add(record[name], n_bytes.get(name, 0), ends=ends)
        self.n += ends

    def close(self, notes: Mapping[str, object]) -> Store:
        """The store, whole and in its place. `notes` are what its maker wants to remember with it."""
        told = {
            "format": FORMAT,
            "records": self.n,
            "dtype": {name: str(field.dtype) for name, field in self.fields.items()},
            "fields": {name: asdict(field.close()) for name, field in self.fields.items()},
            "notes": dict(notes),
        }
        (self.partial / "store.json").write_text(json.dumps(told, indent=1, ensure_ascii=False), encoding="utf-8")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.partial.rename(self.folder)
        return Store(self.folder)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *failed: object) -> None:
        for field in self.fields.values():
            field.give_up()
        shutil.rmtree(self.partial, ignore_errors=True)
