"""Token ids in the files of other programs: nanoGPT's and llm.c's .bin, Megatron's .bin with .idx. Read and written.

A file is mapped, and every number that it tells of itself is checked before it is used. The tokenizer that made the ids
lies beside it as tokenizer.json. Documents end at its end token, since only Megatron's files know where they end.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from clearhead.calls import public
from clearhead.errors import DataError, OptionError
from clearhead.text.encoding import Entry, Layout
from clearhead.text.lines import Place, Problems, display_name
from clearhead.text.sources import OfPaths, Record, Source, check_paths
from clearhead.text.store import Store
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.validation_split import SEED

Ids = NDArray[Any]
PIECE = 1 << 18
"""Tokens of a long document that are read together."""
LLM_C = {20240520: (1, np.dtype("<u2")), 20240801: (7, np.dtype("<u4"))}
"""llm.c's files by their first number: its version, and what an id is."""
LLM_C_HEADER = 256
"""Numbers of 32 bits before the ids."""
MEGATRON = b"MMIDIDX\x00\x00"
MEGATRON_DTYPES = {1: "u1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
MEGATRON_HEADER = 34
TOKENIZER, FILES = "tokenizer.json", {"train": "train.bin", "dev": "val.bin"}
"""What is written of a run, and what is read beside a token file."""


def map_array(path: str, dtype: np.dtype, offset: int = 0, count: int | None = None) -> Ids:
    """Map so many numbers of a regular file, or all to its end; DataError unless they are there."""
    size = file_size(path) - offset
    count = size // dtype.itemsize if count is None else count
    if not 0 <= count * dtype.itemsize <= size:
        raise DataError(f"{display_name(path)}: is cut off: {count:,} numbers should follow, and {size:,} bytes do")
    if not count:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r", offset, (count,))


def file_size(path: str) -> int:
    try:
        about = os.stat(path)
    except OSError as error:
        raise DataError(f"{display_name(path)}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(about.st_mode):
        raise DataError(f"{display_name(path)}: is not a regular file")
    return about.st_size


def read_nanogpt(path: str) -> Ids:
    if file_size(path) % 2:
        raise DataError(f"{display_name(path)}: ids of 16 bits are expected, and it has an odd number of bytes")
    return map_array(path, np.dtype("<u2"))


def read_llm_c(path: str) -> Ids:
    header = map_array(path, np.dtype("<i4"), 0, LLM_C_HEADER)
    version, dtype = LLM_C[int(header[0])]
    if int(header[1]) != version:
        raise DataError(f"{display_name(path)}: version {version} of llm.c's files is read; it is {int(header[1])}")
    count = int(header[2])
    if file_size(path) != 4 * LLM_C_HEADER + count * dtype.itemsize:
        raise DataError(f"{display_name(path)}: its header tells of {count:,} ids, and its size of another number")
    return map_array(path, dtype, 4 * LLM_C_HEADER, count)


def read_megatron(path: str) -> Ids:
    """Return the ids of all sequences, which must lie in the file in their order."""
    index = index_of(path)
    raw = map_array(index, np.dtype("u1"), 0, MEGATRON_HEADER).tobytes()
    version, code = int.from_bytes(raw[9:17], "little"), raw[17]
    if raw[:9] != MEGATRON or version != 1 or code not in MEGATRON_DTYPES:
        raise DataError(f"{display_name(index)}: is no index of Megatron's token files, version 1, with whole numbers")
    dtype, sequences = np.dtype(MEGATRON_DTYPES[code]), int.from_bytes(raw[18:26], "little")
    if sequences > file_size(index):
        raise DataError(f"{display_name(index)}: is cut off: it tells of {sequences:,} sequences")
    lengths = map_array(index, np.dtype("<i4"), MEGATRON_HEADER, sequences)
    starts = map_array(index, np.dtype("<i8"), MEGATRON_HEADER + 4 * sequences, sequences)
    expected = 0
    for at in range(0, sequences, PIECE):
        some = lengths[at : at + PIECE].astype(np.int64)
        ends = np.cumsum(some)
        if (some < 0).any() or not np.array_equal(starts[at : at + PIECE], expected + (ends - some) * dtype.itemsize):
            raise DataError(f"{display_name(index)}: its sequences do not lie in the file one after another")
        expected += int(ends[-1]) * dtype.itemsize
    if file_size(path) != expected:
        raise DataError(f"{display_name(path)}: has {file_size(path):,} bytes, and its index tells of {expected:,}")
    return map_array(path, dtype)


def index_of(path: str) -> str:
    return os.fspath(Path(path).with_suffix(".idx"))


def read_ids(path: str) -> Ids:
    """Return the ids of a token file, mapped. Its format follows from its first number and its neighbours."""
    if os.path.exists(index_of(path)):
        return read_megatron(path)
    with open(path, "rb") as file:
        magic = int.from_bytes(file.read(4), "little")
    return read_llm_c(path) if magic in LLM_C else read_nanogpt(path)


@final
@public
@dataclass(frozen=True, kw_only=True)
class TokenFiles(OfPaths):
    """Token ids that another program made: nanoGPT's or llm.c's .bin files, or Megatron's with .idx beside them.

    Args:
        paths: The files. The tokenizer that made their ids lies beside the first one as tokenizer.json; its end token
            stands between documents.

    Raises:
        OptionError: If the paths are no names of files.

    >>> import clearhead as ch
    >>> source = ch.training.TokenFiles(paths=("tokens/train.bin",))
    """

    fields = ("text",)

    def __post_init__(self) -> None:
        check_paths("paths", self.paths)

    def tokenizer_file(self) -> str:
        path = Path(self.files[0]).with_name(TOKENIZER)
        if not path.exists():
            raise DataError(f"{self.files[0]}: put the tokenizer that made its ids beside it, as {path}")
        return os.fspath(path)

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer that made the ids."""
        return Tokenizer.load(self.tokenizer_file())

    def documents(self, tokenizer: Tokenizer) -> Iterator[tuple[Place, Ids, bool]]:
        """Yield the ids of each document, a long one in pieces, the last of which is told by True."""
        for path in self.files:
            ids, number, begun = read_ids(path), 1, False
            for start in range(0, len(ids), PIECE):
                piece = ids[start : start + PIECE]
                if int(piece.min()) < 0 or int(piece.max()) >= tokenizer.vocabulary:
                    raise DataError(
                        f"{display_name(path)}: has the id {int(piece.max()):,}, and the tokenizer has "
                        f"{tokenizer.vocabulary:,} tokens; give the one that made the ids"
                    )
                at = 0
                for end in np.flatnonzero(piece == tokenizer.end).tolist():
                    if begun or end > at:
                        yield Place(path, number), piece[at:end], True
                        number += 1
                    at, begun = end + 1, False
                if at < len(piece):
                    last = start + PIECE >= len(ids)
                    yield Place(path, number), piece[at:], last
                    begun = not last

    def records(self, problems: Problems) -> Iterator[Record]:
        tokenizer = self.tokenizer()
        for place, ids, ends in self.documents(tokenizer):
            yield Record((tokenizer.decode(ids.tolist()),), place, ends)

    def entries(self, tokenizers: Mapping[str, Tokenizer]) -> Iterator[Entry]:
        """Yield the documents as they are stored: with these very ids, and the end token after each."""
        tokenizer = tokenizers["text"]
        digest = hashlib.blake2b(digest_size=16, key=SEED)
        for _, ids, ends in self.documents(tokenizer):
            digest.update(ids.astype("<u4").tobytes())
            size = len(tokenizer.decode(ids.tolist()).encode())
            closed = np.append(ids, tokenizer.end) if ends else ids
            yield Entry({"text": closed.astype(np.uint32)}, {"text": size}, [], digest.digest() if ends else None)
            digest = hashlib.blake2b(digest_size=16, key=SEED) if ends else digest


def write_nanogpt(store: Store, path: Path) -> None:
    write_all(path, b"", (store["text"].ids_of(row) for row in range(len(store))), np.dtype("<u2"))


def write_llm_c(store: Store, path: Path) -> None:
    magic = 20240520 if store.vocabularies["text"] <= 1 << 16 else 20240801
    header = np.zeros(LLM_C_HEADER, "<i4")
    header[:3] = magic, LLM_C[magic][0], check_count(store.sizes["text"].tokens)
    write_all(path, header.tobytes(), (store["text"].ids_of(row) for row in range(len(store))), LLM_C[magic][1])


def write_megatron(store: Store, path: Path) -> None:
    dtype = np.dtype("<u2" if store.vocabularies["text"] <= 1 << 16 else "<i4")
    write_all(path, b"", (store["text"].ids_of(row) for row in range(len(store))), dtype)
    ends = np.asarray(store["text"].ends)
    lengths = np.diff(ends, prepend=0)
    check_count(int(lengths.max(initial=0)))
    counts = np.array([len(ends), len(ends) + 1], "<u8").tobytes()
    head = MEGATRON + np.array([1], "<u8").tobytes() + bytes([8 if dtype.itemsize == 2 else 4]) + counts
    numbers = lengths.astype("<i4"), ((ends - lengths) * dtype.itemsize).astype("<i8"), np.arange(len(ends) + 1)
    Path(index_of(os.fspath(path))).write_bytes(head + b"".join(some.tobytes() for some in numbers))


def write_all(path: Path, head: bytes, rows: Iterable[Ids], dtype: np.dtype) -> None:
    with path.open("wb") as file:
        file.write(head)
        for ids in rows:
            file.write(ids.astype(dtype).tobytes())


def check_count(count: int) -> int:
    if count >= 1 << 31:
        raise OptionError(f"{count:,} ids are more than the format has a number for: below 2^31")
    return count


FORMATS: dict[str, Callable[[Store, Path], None]] = {
    "nanogpt": write_nanogpt,
    "llm.c": write_llm_c,
    "megatron": write_megatron,
}
"""The formats that are written, by name. Which one a file has is seen when it is read."""


def check_tokens(train: Source, dev: Source | None, layout: Layout, *, changes_text: bool) -> None:
    """Raise where token files cannot be used as text can."""
    if not isinstance(train, TokenFiles):
        if isinstance(dev, TokenFiles):
            raise OptionError("token files as a validation set go with training text in token files")
        return
    if not layout.end or layout.label is not None:
        raise OptionError("token files are running text, to generate")
    if changes_text:
        raise OptionError("filters and near copies look at text, and token files have ids: leave them out")


def check_format(store: Store, form: str) -> None:
    """Raise OptionError where the ids of a store cannot be written in a format."""
    if form not in FORMATS:
        raise OptionError(f"form: expected {', '.join(FORMATS)}; came {form!r}")
    if "text" not in store.fields or len(store.fields) > 1:
        raise OptionError("token files hold running text: the ids of a run that generates")
    if form == "nanogpt" and store.vocabularies["text"] > 1 << 16:
        raise OptionError("nanoGPT's files hold ids of 16 bits, and the vocabulary is larger; take megatron or llm.c")
