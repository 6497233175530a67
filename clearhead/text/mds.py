"""MDS: the shards of MosaicML Streaming, read sample by sample, and written with the index.json that lists them.

A shard has the number of its samples, the places where each begins and the last one ends (32 bits each), a JSON object
that names its columns, and the samples. A sample has the sizes of those columns that have no fixed one, then the
columns. A packed shard is the same within gzip, bzip2 or zstd. Columns of `pkl` are never unpickled.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead import files, serialization
from clearhead.errors import DataError, RunError
from clearhead.text.lines import PACKED_NAME, display_name, open_text

SHARD = re.compile(r"\.mds(\.\w+)?$")
"""How the name of a shard ends."""
MOST = 1 << 28
"""The most bytes that a sample, or what comes before the first one, may have."""
PIECE = 1 << 20
SHARD_BYTES = 1 << 26
"""The most bytes of a shard that is written, as by MosaicML's writer."""
CONFIG = {"column_names": list[str], "column_encodings": list[str], "column_sizes": list[int | None]}
ARRAYS = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8"}
"""Types of whole numbers, by the byte before an array that has no type in its encoding."""
WIDTHS = {"uint8": "u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8"} | {
    "int8": "i1", "int16": "<i2", "int32": "<i4", "int64": "<i8", "int": "<i8",
}  # fmt: skip
FLOATS = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}
Decode = Callable[[bytes], Any]


class MdsColumn(NamedTuple):
    """A column of a shard; `size` is None if each sample has another one."""

    name: str
    encoding: str
    size: int | None


def read_samples(
    path: str, choose: Callable[[list[str]], list[str]], decoder: Callable[[str], Decode | None]
) -> Iterator[list[Any]]:
    """Yield the values of the columns that are chosen by name, for each sample. DataError if a shard is not whole, or
    is packed or encoded in a way that is not read.
    """
    name = display_name(path)
    if path.endswith((".br", ".snappy")):
        raise DataError(f"{name}: shards packed with Brotli or Snappy are not read; pack them with zstd, gzip or bzip2")
    # A shard is packed if its name says so: the first bytes of others are how many samples there are, such as 1F 8B.
    with open_text(path, unpack=PACKED_NAME.search(path) is not None) as stream:
        columns, sizes = read_head(stream, name)
        names = [column.name for column in columns]
        chosen = [columns[names.index(each)] for each in choose(names)]
        decoders = [(columns.index(column), decoder(column.encoding)) for column in chosen]
        for index, decode in decoders:
            if decode is None:
                raise DataError(
                    f"{name}: column {names[index]!r} is of {columns[index].encoding}, which is not read here"
                )
        for number, size in enumerate(sizes.tolist(), start=1):
            sample = take(stream, size, name)
            try:
                values = split_sample(sample, columns)
                yield [decode(values[index]) for index, decode in decoders if decode]
            except (ValueError, LookupError) as error:
                raise DataError(f"{name}: sample {number:,} is damaged ({error})") from None
        if stream.read(1):
            raise DataError(f"{name}: has bytes after its last sample")


def read_head(stream: BufferedIOBase, name: str) -> tuple[list[MdsColumn], NDArray[np.int64]]:
    """Read what comes before the samples: return the columns, and the size of each sample."""
    count = int.from_bytes(take(stream, 4, name), "little")
    places = np.frombuffer(take(stream, 4 * (count + 1), name), "<u4").astype(np.int64)
    sizes, begins = np.diff(places), 4 * (count + 2)
    try:
        if places[0] < begins or (sizes < 0).any():
            raise ValueError("its samples do not lie one after another")
        found = files.parse_json(take(stream, int(places[0]) - begins, name))
        if not isinstance(found, dict) or (found.get("format"), found.get("version")) != ("mds", 2):
            raise ValueError("its header is not of MDS, version 2")
        fields = [serialization.check_type(found.get(key), hint, key) for key, hint in CONFIG.items()]
        if len(set(map(len, fields))) > 1:
            raise ValueError("its columns have not as many names, encodings and sizes")
        if any(size is not None and size < 0 for size in fields[-1]):
            raise ValueError("a column has a size below 0")
        return [MdsColumn(*each) for each in zip(*fields, strict=True)], sizes
    except (ValueError, RunError) as error:
        raise DataError(f"{name}: is no shard of MDS: {error}") from None


def take(stream: BufferedIOBase, count: int, name: str) -> bytes:
    """Read so many bytes, or raise DataError; no more memory is taken than there are bytes."""
    if count > MOST:
        raise DataError(f"{name}: is no shard of MDS, or one with a sample of {count:,} bytes; up to {MOST:,} are read")
    parts: list[bytes] = []
    while count:
        parts.append(stream.read(min(count, PIECE)))
        count -= len(parts[-1])
        if not parts[-1]:
            raise DataError(f"{name}: is cut off: {count:,} bytes more should follow; copy it again")
    return b"".join(parts)


def split_sample(sample: bytes, columns: Sequence[MdsColumn]) -> list[bytes]:
    counts = np.frombuffer(sample, "<u4", sum(not column.size for column in columns)).tolist()
    begins, given = 4 * len(counts), iter(counts)
    ends = list(itertools.accumulate((column.size or next(given) for column in columns), initial=begins))
    if ends[-1] != len(sample):
        raise ValueError(f"it has {len(sample):,} bytes, and its columns {ends[-1]:,}")
    return [sample[start:end] for start, end in itertools.pairwise(ends)]


def text_decoder(encoding: str) -> Decode | None:
    """Return what makes a text or a number of a column, None for other things."""
    if encoding in ("str", "str_int", "str_float", "str_decimal"):
        return decode_text
    width = (WIDTHS | FLOATS).get(encoding)
    return None if width is None else lambda raw: np.frombuffer(raw, width).item()


def decode_text(raw: bytes) -> str | bytes:
    """Return a text; what is no UTF-8 as it is, for its reader to tell of it."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def ids_decoder(encoding: str) -> Decode | None:
    """Return what makes token ids of a column: an array of whole numbers, or bytes with 64 bits an id."""
    kind, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    if kind == "bytes":
        return lambda raw: np.frombuffer(raw, "<i8")
    if kind != "ndarray" or (dtype and dtype not in WIDTHS):
        return None
    return lambda raw: decode_array(raw, WIDTHS.get(dtype), has_shape=not shape)


def decode_array(raw: bytes, dtype: str | None, *, has_shape: bool) -> NDArray[Any]:
    """Return the numbers of an array; before them may be its type, and its shape."""
    if dtype is None:
        dtype, raw = ARRAYS[raw[0]], raw[1:]
    if has_shape:
        axes, width = raw[0] >> 2, 1 << (raw[0] & 3)
        shape = np.frombuffer(raw[1 : 1 + axes * width], f"<u{width}")
        raw = raw[1 + axes * width :]
        if int(np.prod(shape.astype(object))) * np.dtype(dtype).itemsize != len(raw):
            raise ValueError("an array has another size than its shape")
    return np.frombuffer(raw, dtype)


def encode_ids(ids: NDArray[Any]) -> bytes:
    """Return ids as `ndarray:int32`: how many axes, in how many bytes their lengths are, the lengths, the numbers."""
    width = next(i for i in range(4) if len(ids) < 1 << (8 << i))
    return bytes([1 << 2 | width]) + len(ids).to_bytes(1 << width, "little") + ids.astype("<i4").tobytes()


def write_shards(folder: Path, column: str, encoding: str, values: Iterable[bytes]) -> None:
    """Write samples of one column, whose values are encoded: shards of up to SHARD_BYTES, and index.json."""
    config: dict[str, Any] = {"version": 2, "format": "mds", "compression": None, "hashes": []}
    config |= {"column_names": [column], "column_encodings": [encoding], "column_sizes": [None]}
    config |= {"size_limit": SHARD_BYTES}
    head = json.dumps(config, sort_keys=True).encode()
    folder.mkdir()
    shards: list[dict[str, Any]] = []
    for samples in in_shards((len(value).to_bytes(4, "little") + value for value in values), 8 + len(head)):
        begin = 8 + 4 * len(samples) + len(head)
        places = np.cumsum([begin, *map(len, samples)])
        content = [len(samples).to_bytes(4, "little"), places.astype("<u4").tobytes(), head, *samples]
        name = f"shard.{len(shards):05}.mds"
        (folder / name).write_bytes(b"".join(content))
        about = {"basename": name, "bytes": int(places[-1]), "hashes": {}}
        shards.append({**config, "samples": len(samples), "raw_data": about, "zip_data": None})
    files.write_json(folder / "index.json", {"version": 2, "shards": shards})


def in_shards(samples: Iterable[bytes], empty: int) -> Iterator[list[bytes]]:
    """Yield the samples of each shard; `empty` is how many bytes one without a sample has."""
    waiting: list[bytes] = []
    size = empty
    for sample in samples:
        if waiting and size + 4 + len(sample) > SHARD_BYTES:
            yield waiting
            waiting, size = [], empty
        waiting.append(sample)
        size += 4 + len(sample)
    if waiting:
        yield waiting
