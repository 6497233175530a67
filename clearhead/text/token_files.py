"""Token ids in the files of other programs: nanoGPT's and llm.c's .bin, Megatron's .bin with .idx, MosaicML's MDS. Read
and written; text of documents is also written, as MDS or as nanochat's Parquet, which are read as tables.

Every number that a file tells of itself is checked before it is used. The tokenizer that made the ids lies beside it as
tokenizer.json. Documents end at its end token, since only Megatron's files know where they end.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from clearhead.calls import public
from clearhead.errors import DataError, OptionError, ShardError
from clearhead.extras import check_extra
from clearhead.text.encoding import Entry, Layout
from clearhead.text.lines import Place, Problems, display_name
from clearhead.text.mds import SHARD, encode_ids, ids_decoder, read_samples, write_shards
from clearhead.text.remote import is_remote, local_path
from clearhead.text.sources import OfPaths, Record, Source, check_paths
from clearhead.text.store import Store
from clearhead.text.table_readers import list_names
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
TOKEN_FILE = re.compile(rf"\.bin$|{SHARD.pattern}|(^|[/\\])index\.json$")
"""How the name of a token file ends, or of the list of its shards."""
TOKENIZER = "tokenizer.json"
NANOCHAT_ROWS, NANOCHAT_CHARACTERS = 1024, 250_000_000
"""Rows of a group, and characters of a file."""


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


def read_megatron(path: str, index: str) -> Ids:
    """Return the ids of all sequences, which must lie in the file in their order."""
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


def read_mds(path: str) -> Iterator[Ids]:
    """Yield the ids of a shard, about PIECE together: those of its samples, one after another."""

    def choose(names: list[str]) -> list[str]:
        found = [name for name in ("tokens", "input_ids") if name in names] or names
        if len(found) != 1:
            raise DataError(
                f"{display_name(path)}: ids are read from a column tokens or input_ids; it has {list_names(names)}"
            )
        return found

    gathered: list[Ids] = []
    count = 0
    for (ids,) in read_samples(path, choose, ids_decoder):
        gathered.append(ids)
        count += len(ids)
        if count >= PIECE:
            yield as_whole(gathered)
            gathered, count = [], 0
    if count:
        yield as_whole(gathered)


def as_whole(samples: list[Ids]) -> Ids:
    """Return the ids of samples in one array. Each may have a type of its own, and some have only floats in common."""
    return np.concatenate(samples, dtype=np.int64, casting="unsafe")


def read_ids(path: str) -> Iterator[Ids]:
    """Yield the ids of a token file in pieces. Its format follows from its name, first number and neighbours."""
    if SHARD.search(path):
        yield from read_mds(path)
        return
    if not path.endswith(".bin"):
        raise DataError(f"{display_name(path)}: is no token file: expected .bin, shards of MDS, or their index.json")
    here, index = local_path(path), find_in(folder_of(path), f"{PurePath(path).stem}.idx")
    try:
        ids = read_mapped(here) if index is None else read_megatron(here, index)
    except DataError as error:  # the cache of shards has other names
        raise DataError(str(error).replace(display_name(here), display_name(path))) from None
    yield from (ids[start : start + PIECE] for start in range(0, len(ids), PIECE))


def read_mapped(path: str) -> Ids:
    with open(path, "rb") as file:
        magic = int.from_bytes(file.read(4), "little")
    return read_llm_c(path) if magic in LLM_C else read_nanogpt(path)


def find_in(folder: str | None, name: str) -> str | None:
    """Return where a file of a folder can be read; None if there is none."""
    if folder is None:
        return None
    if not is_remote(folder):
        here = os.path.join(folder, name)
        return here if os.path.exists(here) else None
    try:
        return local_path(f"{folder}/{name}")
    except ShardError:
        raise
    except DataError:  # the store has none
        return None


def folder_of(path: str) -> str:
    return path.rpartition("/")[0] if is_remote(path) else os.path.dirname(path)


def folder_above(folder: str) -> str | None:
    """Return the folder that a folder lies in; None for the top of a store.

    >>> folder_above("s3://bucket/tokens/train"), folder_above("s3://bucket"), folder_above("")
    ('s3://bucket/tokens', None, '..')
    """
    if is_remote(folder):
        above = folder.rpartition("/")[0]
        return above if above and not above.endswith("/") else None
    return os.path.normpath(os.path.join(folder or os.curdir, os.pardir))


@final
@public
@dataclass(frozen=True, kw_only=True)
class TokenFiles(OfPaths):
    """Token ids that another program made: nanoGPT's or llm.c's .bin files, Megatron's with .idx beside them, or MDS.

    Args:
        paths: The files; for MDS shards or their index.json. The tokenizer that made their ids lies beside the first
            one, or in the folder above, as tokenizer.json; its end token stands between documents.

    Raises:
        OptionError: If the paths are no names of files.

    >>> import clearhead as ch
    >>> source = ch.training.TokenFiles(paths=("tokens/train.bin",))
    """

    fields = ("text",)

    def __post_init__(self) -> None:
        check_paths("paths", self.paths)

    def tokenizer_file(self) -> str:
        first = self.files[0]
        folder = folder_of(first)
        found = find_in(folder, TOKENIZER) or find_in(folder_above(folder), TOKENIZER)
        if found is None:
            raise DataError(
                f"{display_name(first)}: put the tokenizer that made its ids beside it, as {TOKENIZER}, or into the "
                "folder above"
            )
        return found

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer that made the ids."""
        return Tokenizer.load(self.tokenizer_file())

    def documents(self, tokenizer: Tokenizer) -> Iterator[tuple[Place, Ids, bool]]:
        """Yield the ids of each document, a long one in pieces, the last of which is told by True."""
        for path in self.files:
            number, begun, piece = 1, False, np.empty(0, np.int64)
            for piece in read_ids(path):
                least, most = int(piece.min()), int(piece.max())
                if least < 0 or most >= tokenizer.vocabulary:
                    raise DataError(
                        f"{display_name(path)}: has the id {least if least < 0 else most:,}, and the tokenizer has "
                        f"{tokenizer.vocabulary:,} tokens; give the one that made the ids"
                    )
                at = 0
                for end in np.flatnonzero(piece == tokenizer.end).tolist():
                    if begun or end > at:
                        yield Place(path, number), piece[at:end], True
                        number += 1
                    at, begun = end + 1, False
                if at < len(piece):
                    yield Place(path, number), piece[at:], False
                    begun = True
            if begun:
                yield Place(path, number), piece[:0], True

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


class TokenSet(NamedTuple):
    """What is written: a store, its tokenizer, the name of its file without an ending, and the tokens of a window."""

    store: Store
    tokenizer: Tokenizer
    path: Path
    context: int

    def rows(self) -> Iterator[Ids]:
        return (self.store["text"].ids_of(row) for row in range(len(self.store)))

    def texts(self) -> Iterator[str]:
        """Yield the text of each document."""
        return (self.tokenizer.decode(ids.tolist()) for ids in self.rows())


def write_nanogpt(tokens: TokenSet) -> None:
    write_all(tokens.path.with_suffix(".bin"), b"", tokens.rows(), np.dtype("<u2"))


def write_llm_c(tokens: TokenSet) -> None:
    store = tokens.store
    magic = 20240520 if store.vocabularies["text"] <= 1 << 16 else 20240801
    header = np.zeros(LLM_C_HEADER, "<i4")
    header[:3] = magic, LLM_C[magic][0], check_count(store.sizes["text"].tokens)
    write_all(tokens.path.with_suffix(".bin"), header.tobytes(), tokens.rows(), LLM_C[magic][1])


def write_megatron(tokens: TokenSet) -> None:
    store, path = tokens.store, tokens.path
    dtype = np.dtype("<u2" if store.vocabularies["text"] <= 1 << 16 else "<i4")
    write_all(path.with_suffix(".bin"), b"", tokens.rows(), dtype)
    ends = np.asarray(store["text"].ends)
    lengths = np.diff(ends, prepend=0)
    check_count(int(lengths.max(initial=0)))
    counts = np.array([len(ends), len(ends) + 1], "<u8").tobytes()
    head = MEGATRON + np.array([1], "<u8").tobytes() + bytes([8 if dtype.itemsize == 2 else 4]) + counts
    numbers = lengths.astype("<i4"), ((ends - lengths) * dtype.itemsize).astype("<i8"), np.arange(len(ends) + 1)
    path.with_suffix(".idx").write_bytes(head + b"".join(some.tobytes() for some in numbers))


def write_mds(tokens: TokenSet) -> None:
    """Write the ids in samples of as many as the context has, as llm-foundry does with `--concat_tokens`."""
    ids, width = tokens.store["text"].ids, tokens.context
    samples = (encode_ids(ids[start : start + width]) for start in range(0, len(ids), width))
    write_shards(tokens.path, "tokens", "ndarray:int32", samples)


def write_mds_text(tokens: TokenSet) -> None:
    write_shards(tokens.path, "text", "str", (text.encode() for text in tokens.texts()))


def write_nanochat(tokens: TokenSet) -> None:
    """Write the text of documents as Parquet. nanochat's last file is its validation set, so that one is not divided.

    Groups of rows, compression and the size of a file are those of nanochat's own corpus.
    """
    check_extra("pyarrow", extra="parquet", what="Parquet")
    import pyarrow  # pyright: ignore[reportMissingImports]
    from pyarrow.parquet import ParquetWriter  # pyright: ignore[reportMissingImports]

    folder, divided = tokens.path.parent, tokens.path.name == "train"
    schema = pyarrow.schema([("text", pyarrow.string())])
    how = {"compression": "zstd", "compression_level": 3, "use_dictionary": False, "write_statistics": False}
    texts = tokens.texts()
    group = list(islice(texts, NANOCHAT_ROWS))
    while group:
        path = folder / f"shard_{len(sorted(folder.glob('*.parquet'))):05}.parquet"
        characters = 0
        with ParquetWriter(path, schema, **how) as file:
            while group and not (divided and characters >= NANOCHAT_CHARACTERS):
                file.write_table(pyarrow.table({"text": group}, schema))
                characters += sum(map(len, group))
                group = list(islice(texts, NANOCHAT_ROWS))


def write_all(path: Path, head: bytes, rows: Iterable[Ids], dtype: np.dtype) -> None:
    with path.open("wb") as file:
        file.write(head)
        for ids in rows:
            file.write(ids.astype(dtype).tobytes())


def check_count(count: int) -> int:
    if count >= 1 << 31:
        raise OptionError(f"{count:,} ids are more than the format has a number for: below 2^31")
    return count


FORMATS: dict[str, Callable[[TokenSet], None]] = {
    "nanogpt": write_nanogpt,
    "llm.c": write_llm_c,
    "megatron": write_megatron,
    "mds": write_mds,
    "mds-text": write_mds_text,
    "nanochat": write_nanochat,
}
"""The formats that are written, by name. Which one a file has is seen when it is read."""
TEXTS = ("mds-text", "nanochat")
"""Those that have text, and no ids."""


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


def check_format(store: Store, tokenizer: Tokenizer, form: str) -> None:
    """Raise OptionError where the ids of a store cannot be written in a format."""
    if form not in FORMATS:
        raise OptionError(f"form: expected {', '.join(FORMATS)}; came {form!r}")
    if "text" not in store.fields or len(store.fields) > 1:
        raise OptionError("token files hold running text: the ids of a run that generates")
    if form in TEXTS and not tokenizer.lossless and tokenizer.kind != "given":
        raise OptionError(f"{form} has text, and ids of a tokenizer of the kind {tokenizer.kind} do not give it back")
    if form == "nanogpt" and store.vocabularies["text"] > 1 << 16:
        raise OptionError("nanoGPT's files hold ids of 16 bits, and the vocabulary is larger; take megatron or llm.c")
