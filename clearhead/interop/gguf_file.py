"""The container of a GGUF file: metadata and tensors, every count, length and offset checked before it is believed.

A header may say anything. Nothing is allocated for it beyond what the file itself is long, and every error says where.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import OptionError
from clearhead.extras import import_peer
from clearhead.files import open_regular

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The kinds of a value that is a number, and how struct reads them."""
STRING, ARRAY = 8, 9
LEAST_INFO, LEAST_VALUE = 33, 13
"""Bytes that a tensor's description, and a value with its key, have at least."""
MOST_DIMENSIONS, MOST_NAME = 4, 65_535
ALIGNMENT = "general.alignment"


class Info(NamedTuple):
    """Where a tensor lies. `shape` is as torch has it, the longest stride first; `kind` is ggml's number of it."""

    shape: tuple[int, ...]
    kind: int
    offset: int
    n_bytes: int


@final
@dataclass
class Cursor:
    """Reads a header from its start; it never asks for more bytes than are left."""

    file: BufferedReader
    size: int
    where: str
    at: int = 0

    @property
    def left(self) -> int:
        return self.size - self.at

    def take(self, count: int, what: str) -> bytes:
        if count > self.left:
            raise self.error(f"{what} should have {count:,} bytes, and {self.left:,} are left")
        self.at += count
        return self.file.read(count)

    def number(self, form: str, what: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form), what))[0]

    def text(self, what: str) -> str:
        try:
            return self.take(self.number("Q", what), what).decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8") from None

    def error(self, problem: str) -> OptionError:
        return OptionError(f"{self.where}: byte {self.at:,}: {problem}")


@final
class GGUF(Mapping[str, Tensor]):
    """An open file: `metadata`, and as a mapping the tensors by name, dequantised to float32 when asked for."""

    def __init__(self, path: str | Path) -> None:
        self.where = str(path)
        try:
            self.file = open_regular(path)
        except OSError as error:
            raise OptionError(f"{path}: cannot be read ({error.strerror or error})") from None
        try:
            size = self.file.seek(0, 2)
            self.file.seek(0)
            self.metadata, self.infos = read_header(Cursor(self.file, size, self.where))
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> "GGUF":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def raw(self, name: str) -> np.ndarray:
        """Return a tensor's bytes as they are in the file, a row for each row of it."""
        info = self.infos[name]
        self.file.seek(info.offset)
        data = np.frombuffer(self.file.read(info.n_bytes), np.uint8)
        if len(data) != info.n_bytes:
            raise OptionError(f"{self.where}: {name[:60]}: the file has become shorter since it was opened")
        return data.reshape(*info.shape[:-1], -1)

    def __getitem__(self, name: str) -> Tensor:
        gguf = import_peer("gguf")
        kind = gguf.GGMLQuantizationType(self.infos[name].kind)
        try:
            values = gguf.quants.dequantize(self.raw(name), kind)
        except NotImplementedError:
            raise OptionError(f"{self.where}: {name[:60]} is {kind.name}, which gguf cannot dequantise") from None
        return torch.from_numpy(np.ascontiguousarray(values, np.float32).copy())

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)


def read_header(cursor: Cursor) -> tuple[dict[str, Any], dict[str, Info]]:
    """Return the metadata, and where each tensor lies."""
    if cursor.left < len(MAGIC) or cursor.take(len(MAGIC), "the magic") != MAGIC:
        raise OptionError(f"{cursor.where}: is no GGUF file: it does not begin with GGUF")
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        raise cursor.error(f"version {version} is not supported; there are {', '.join(map(str, VERSIONS))}")
    n_tensors, n_values = (cursor.number("Q", name) for name in ("the number of tensors", "the number of values"))
    if n_tensors > cursor.left // LEAST_INFO or n_values > cursor.left // LEAST_VALUE:
        raise cursor.error(f"{n_tensors:,} tensors and {n_values:,} values have no room in {cursor.left:,} bytes")
    values: dict[str, Any] = {}
    for _ in range(n_values):
        key = cursor.text("a key")
        if key in values or len(key) > MOST_NAME:
            raise cursor.error(f"the key {key[:60]!r} is there twice, or too long")
        values[key] = read_value(cursor, cursor.number("I", key[:60]), key[:60])
    raw = [read_info(cursor) for _ in range(n_tensors)]
    return values, place_tensors(cursor, values, raw)


def read_value(cursor: Cursor, kind: int, key: str) -> Any:
    """Return a value of the metadata: a number, a text, or a list of either."""
    if kind == STRING:
        return cursor.text(key)
    if kind in SCALARS:
        return cursor.number(SCALARS[kind], key)
    if kind != ARRAY:
        raise cursor.error(f"{key} is of a kind {kind} that there is not")
    inner, count = cursor.number("I", key), cursor.number("Q", key)
    if inner == STRING:
        if count > cursor.left // 8:
            raise cursor.error(f"{key}: {count:,} texts have no room in {cursor.left:,} bytes")
        return [cursor.text(key) for _ in range(count)]
    if inner not in SCALARS:
        raise cursor.error(f"{key}: a list of kind {inner} is not supported")
    form = SCALARS[inner]
    data = cursor.take(count * struct.calcsize(form), key)
    return list(struct.unpack(f"<{count}{form}", data))


def read_info(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Return a tensor's name, its shape with the rows first, its kind, and where it lies in the data."""
    name = cursor.text("a tensor's name")
    n_dimensions = cursor.number("I", name[:60])
    if not 1 <= n_dimensions <= MOST_DIMENSIONS:
        raise cursor.error(f"{name[:60]}: has {n_dimensions} dimensions; there are 1 to {MOST_DIMENSIONS}")
    shape = tuple(cursor.number("Q", name[:60]) for _ in range(n_dimensions))
    return name, shape[::-1], cursor.number("I", name[:60]), cursor.number("Q", name[:60])


def place_tensors(
    cursor: Cursor, values: Mapping[str, Any], raw: list[tuple[str, tuple[int, ...], int, int]]
) -> dict[str, Info]:
    """Return where each tensor lies in the file; OptionError where one does not fit into it, or all together do not."""
    alignment = values.get(ALIGNMENT, 32)
    if type(alignment) is not int or not 1 <= alignment <= 65_536 or alignment & (alignment - 1):
        raise cursor.error(f"{ALIGNMENT} must be a power of two up to 65536; came {str(alignment)[:40]}")
    start = -(-cursor.at // alignment) * alignment
    room, total, placed = max(0, cursor.size - start), 0, dict[str, Info]()
    for name, shape, kind, offset in raw:
        n_bytes = count_bytes(cursor, name[:60], shape, kind)
        total += n_bytes
        if name in placed or offset % alignment or offset + n_bytes > room:
            raise cursor.error(
                f"{name[:60]}: {n_bytes:,} bytes from {offset:,} on do not lie in the {room:,} there are, or the name "
                "is there twice"
            )
        placed[name] = Info(shape, kind, start + offset, n_bytes)
    if total > room:
        raise cursor.error(f"the tensors have {total:,} bytes in all, and there are {room:,}")
    return placed


def count_bytes(cursor: Cursor, name: str, shape: tuple[int, ...], kind: int) -> int:
    gguf = import_peer("gguf")
    try:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (KeyError, ValueError):
        raise cursor.error(f"{name}: is of a kind {kind} that gguf does not know") from None
    count = 1
    for n in shape:  # Python's numbers do not overflow
        count *= n
    if count < 1 or shape[-1] % block:
        raise cursor.error(f"{name}: {shape} is no shape of numbers in blocks of {block}")
    return count // block * size
