"""Token ids in memory-mapped files: as many as the disk holds, of which a batch reads its own.

A store is a folder of fields (source and target, or text, or text and label). Each field is two files: the ids of all
records one after another, and where each record ends. It is written under a temporary name and renamed when complete.
store.json is sealed, and has the SHA-256 of every file: `Store.verify` reads them all once before training.
"""

import hashlib
import os
import shutil
import stat
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import RunError
from clearhead.files import flush, read_sealed, write_sealed
from clearhead.serialization import check_fields

IdRow = Sequence[int] | NDArray[np.unsignedinteger]
"""The ids of a record: as a tokeniser gives them, or as a store has them."""
FULL = 1 << 20
"""The number of ids that a writer collects before they go to disk."""
STORE = "store.json"
FIELDS = {
    "records": int,
    "dtype": dict[str, Literal["uint16", "uint32"]],
    "fields": dict[str, dict[str, int]],
    "vocabulary": dict[str, int],
    "files": dict[str, str],
    "notes": dict[str, Any],
}
"""The fields of store.json beside its seal."""


@dataclass(frozen=True, kw_only=True)
class FieldSize:
    """The size of a field: ids in all, the longest record's, and the bytes of the records' text in UTF-8."""

    tokens: int
    longest: int
    text_bytes: int


class Ragged:
    """Rows of ids of different lengths. `ids` and `ends` are memory-mapped."""

    def __init__(self, ids: NDArray[np.unsignedinteger], ends: NDArray[np.int64]) -> None:
        self.ids, self.ends = ids, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        return self.ids_of(row).astype(np.int64)

    def ids_of(self, row: int) -> NDArray[np.unsignedinteger]:
        """Return a row as it lies in the file, without a copy."""
        return self.ids[self.ends[row - 1] if row else 0 : self.ends[row]]

    def starts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(rows > 0, self.ends[np.maximum(rows - 1, 0)], 0)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.ends[rows] - self.starts(rows)

    def padded(self, rows: NDArray[np.int64], width: int, pad: int) -> NDArray[np.int64]:
        """Return these rows as one array, each cut or padded to `width`."""
        columns = np.arange(width)
        lengths = np.minimum(self.lengths(rows), width)[:, None]
        inside = columns < lengths
        index = np.where(inside, self.starts(rows)[:, None] + columns, 0)
        return np.where(inside, self.ids[index] if len(self.ids) else 0, pad).astype(np.int64)


class Store:
    """A complete store, open for reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            header = read_store(folder)
            self.n: int = header["records"]
            self.notes: Mapping[str, object] = header["notes"]
            self.files: Mapping[str, str] = header["files"]
            self.vocabularies: Mapping[str, int] = header["vocabulary"]
            self.sizes = {name: FieldSize(**size) for name, size in header["fields"].items()}
            self.fields = {name: open_field(folder, name, header["dtype"][name], self.n) for name in self.sizes}
        except (OSError, ValueError, LookupError, TypeError, RunError) as error:
            raise store_error(folder, error) from error

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, name: str) -> Ragged:
        return self.fields[name]

    def verify(self) -> None:
        """Read every file once and compare it with its checksum; raise where ids or ends are not what they must be."""
        try:
            for name, field in self.fields.items():
                self.check_file(f"{name}.ids", field.ids, below=self.vocabularies[name])
                longest, size = self.check_file(f"{name}.ends", field.ends, below=len(field.ids) + 1), self.sizes[name]
                if (size.tokens, size.longest) != (len(field.ids), longest):
                    raise ValueError(
                        f"{name} has {len(field.ids):,} ids, in a record {longest:,}; {STORE} says otherwise"
                    )
        except (OSError, ValueError, LookupError) as error:
            raise store_error(self.folder, error) from error

    def check_file(self, file: str, values: NDArray, *, below: int) -> int:
        """Read a mapped file in pieces; raise ValueError unless values are from 0 to `below` - 1, and ends ascend.
        Return the largest step between ends.
        """
        digest, last, longest = hashlib.sha256(), 0, 0
        for start in range(0, len(values), FULL):
            part = values[start : start + FULL]
            digest.update(part.data)
            if int(part.min()) < 0 or int(part.max()) >= below:
                raise ValueError(f"{file} holds a number that is not from 0 to {below - 1:,}")
            if file.endswith(".ends"):
                steps = np.diff(part, prepend=last)
                if steps.min() < 0:
                    raise ValueError(f"in {file} a record ends before the one before it")
                last, longest = int(part[-1]), max(longest, int(steps.max()))
        if digest.hexdigest() != self.files.get(file):
            raise ValueError(f"{file} was changed since it was written: its checksum is wrong")
        return longest


def store_error(folder: Path, error: Exception) -> RunError:
    reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
    return RunError(f"{folder}: not a whole store of token ids ({reason}); remove it, and a new training makes it anew")


def read_store(folder: Path) -> dict[str, Any]:
    """Read store.json, every field checked."""
    sealed = read_sealed(folder / STORE)
    content = {name: value for name, value in sealed.items() if name not in ("format", "sha256")}
    header = check_fields(content, FIELDS, STORE)
    for name in header["fields"]:
        if not name.isidentifier():
            raise ValueError(f"{name[:60]!r} is no name of a field")
    if header["fields"].keys() != header["vocabulary"].keys():
        raise ValueError("fields and vocabulary do not fit together")
    return header


def open_field(folder: Path, name: str, dtype: str, n: int) -> Ragged:
    ids = map_file(folder / f"{name}.ids", np.dtype(dtype))
    ends = map_file(folder / f"{name}.ends", np.dtype(np.int64))
    if len(ends) != n or (int(ends[-1]) if n else 0) != len(ids):
        raise ValueError(f"{name}.ids and {name}.ends do not fit together")
    return Ragged(ids, ends)


def map_file(path: Path, dtype: np.dtype) -> NDArray:
    """Map a regular file as an array; an empty file cannot be mapped, and is an empty array."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{path.name} is no regular file")
    if about.st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r")


class FieldWriter:
    """A field on its way to disk."""

    def __init__(self, folder: Path, name: str, vocabulary: int) -> None:
        self.ids = array("H" if vocabulary <= 1 << 16 else "I")
        self.ends = array("q")
        self.dtype = np.dtype(self.ids.typecode)
        self.name, self.vocabulary = name, vocabulary
        self.digests = hashlib.sha256(), hashlib.sha256()
        self.ids_file: BinaryIO = (folder / f"{name}.ids").open("wb")
        self.ends_file: BinaryIO = (folder / f"{name}.ends").open("wb")
        self.tokens = self.longest = self.text_bytes = self.current = 0

    def add(self, ids: IdRow, n_bytes: int, *, ends: bool) -> None:
        if isinstance(ids, np.ndarray):
            self.ids.frombytes(ids.astype(self.dtype).tobytes())
        else:
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
        files = ((self.ids, self.ids_file), (self.ends, self.ends_file))
        for digest, (gathered, file) in zip(self.digests, files, strict=True):
            file.write(gathered)
            digest.update(gathered)
            del gathered[:]

    @property
    def sums(self) -> dict[str, str]:
        """Return the SHA-256 of each file, computed as it was written."""
        ids, ends = (digest.hexdigest() for digest in self.digests)
        return {f"{self.name}.ids": ids, f"{self.name}.ends": ends}

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


class StoreWriter:
    """A writer of a store, record by record (or a long record piece by piece). `vocabularies` says how large ids
    can be.
    """

    def __init__(self, folder: Path, vocabularies: Mapping[str, int]) -> None:
        self.folder, self.partial = folder, folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        self.fields = {name: FieldWriter(self.partial, name, size) for name, size in vocabularies.items()}
        self.n = 0

    def add(self, record: Mapping[str, IdRow], n_bytes: Mapping[str, int], *, ends: bool = True) -> None:
        for name, field in self.fields.items():
            field.add(record[name], n_bytes.get(name, 0), ends=ends)
        self.n += ends

    def close(self, notes: Mapping[str, object]) -> Store:
        """Return the store, complete and in its place. `notes` are saved with it."""
        sizes = {name: asdict(field.close()) for name, field in self.fields.items()}
        header = {
            "records": self.n,
            "dtype": {name: str(field.dtype) for name, field in self.fields.items()},
            "fields": sizes,
            "vocabulary": {name: field.vocabulary for name, field in self.fields.items()},
            "files": {file: checksum for field in self.fields.values() for file, checksum in field.sums.items()},
            "notes": dict(notes),
        }
        write_sealed(self.partial / STORE, header)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.partial.rename(self.folder)
        flush(self.folder.parent)
        return Store(self.folder)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *failed: object) -> None:
        for field in self.fields.values():
            field.give_up()
        shutil.rmtree(self.partial, ignore_errors=True)
