"""MDS: what MosaicML's writer writes is read, and what we write its reader reads; what is damaged is refused."""

import bz2
import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from clearhead.errors import DataError
from clearhead.text import mds
from clearhead.text.lines import Problems, files_of
from clearhead.text.sources import Documents, Table
from clearhead.text.token_files import read_ids
from tests.text.test_lines import PACK

TEXTS = ["one", "größer als zwei", "家"]
ENDINGS = {"gzip": ".gz", "bzip2": ".bz2", "xz": ".xz", "zstd": ".zstd"}
COLUMNS = [("label", "uint8", 1), ("text", "str", None), ("value", "str_int", None)]


def shard(columns, samples, **changes):
    """A shard as its format is documented: written here by hand, of samples that are encoded."""
    names, encodings, sizes = zip(*columns, strict=True)
    head = {"version": 2, "format": "mds", "column_names": names, "column_encodings": encodings, "column_sizes": sizes}
    head = json.dumps(head | {"compression": None, "hashes": [], "size_limit": 1 << 26} | changes).encode()
    packed = []
    for sample in samples:
        lengths = [len(value) for value, (_, _, size) in zip(sample, columns, strict=True) if size is None]
        packed.append(struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(sample))
    places = [4 * (len(packed) + 2) + len(head)]
    for sample in packed:
        places.append(places[-1] + len(sample))
    return struct.pack(f"<{len(places) + 1}I", len(packed), *places) + head + b"".join(packed)


LABELLED = shard(COLUMNS, [(bytes([i]), text.encode(), str(10**i).encode()) for i, text in enumerate(TEXTS)])


def rows_of(*paths, columns=("text", "label", "value"), problems=None):
    table = Table(paths=tuple(map(str, paths)), columns=columns, fields=columns)
    return [record.fields for record in table.records(problems or Problems())]


@pytest.mark.parametrize("packing", [None, *PACK])
def test_columns_of_text_and_numbers_are_read(tmp_path, packing):
    path = tmp_path / f"shard.00000.mds{ENDINGS[packing] if packing else ''}"
    path.write_bytes(PACK[packing](LABELLED) if packing else LABELLED)
    assert rows_of(path) == [(text, str(i), str(10**i)) for i, text in enumerate(TEXTS)]
    assert rows_of(path, columns=("2",)) == [(text,) for text in TEXTS]


def array(numbers, encoding):
    """An array as it lies in a shard: type and shape before it, where its encoding has none."""
    kind = np.dtype(encoding.split(":")[1] if ":" in encoding else "uint16")
    head = b"" if ":" in encoding else bytes([16])
    if encoding.count(":") < 2:
        head += bytes([(1 << 2) | 1]) + struct.pack("<H", len(numbers))
    return head + np.array(numbers, kind).tobytes()


@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:int32", "ndarray:uint64", "ndarray:int16:3", "bytes"])
def test_ids_are_read_from_arrays_and_bytes(tmp_path, monkeypatch, encoding):
    monkeypatch.setattr("clearhead.text.token_files.PIECE", 4)
    rows = [[1, 2, 3], [4, 5, 600], [7, 8, 9]]
    values = [np.array(row, "<i8").tobytes() if encoding == "bytes" else array(row, encoding) for row in rows]
    size = 6 if encoding.endswith(":3") else None
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(shard([("other", "str", None), ("tokens", encoding, size)], [(b"x", value) for value in values]))
    pieces = [piece.tolist() for piece in read_ids(str(path))]
    assert pieces == [[1, 2, 3, 4, 5, 600], [7, 8, 9]]


def test_a_shard_with_as_many_samples_as_a_gzip_file_begins_with_is_read(tmp_path):
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(shard([("tokens", "ndarray:uint8:1", 1)], [(b"\x05",)] * 0x8B1F))
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert [len(piece) for piece in read_ids(str(path))] == [0x8B1F]


def test_samples_without_ids_and_of_different_types_are_read_together(tmp_path):
    path = tmp_path / "shard.00000.mds"
    rows = [np.array([], "<u2"), np.array([1, 2], "<u8"), np.array([3], "<i8")]
    codes = {np.dtype(name): code for code, name in mds.ARRAYS.items()}
    values = [bytes([codes[row.dtype], 1 << 2, len(row)]) + row.tobytes() for row in rows]
    path.write_bytes(shard([("tokens", "ndarray", None)], [(value,) for value in values]))
    [piece] = read_ids(str(path))
    assert (piece.tolist(), piece.dtype.kind) == ([1, 2, 3], "i")
    path.write_bytes(shard([("tokens", "ndarray", None)], [(values[0],)] * 3))
    assert list(read_ids(str(path))) == []


def pickled(columns=(("text", "pkl", None),)):
    return shard(columns, [(b"cos\nsystem\n(S'false'\ntR.",)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"12", "is cut off: 2 bytes more should follow"),
        (b"\xff" * 40, "is no shard of MDS, or one with a sample of"),
        (b"\xff\xff\xff\x00" * 40, "is cut off"),
        (LABELLED[:-1], "is cut off: 1 bytes more should follow"),
        (LABELLED + b"1", "has bytes after its last sample"),
        (shard(COLUMNS, [], version=3), "is no shard of MDS: its header is not of MDS, version 2"),
        (shard(COLUMNS, [], column_sizes="x"), "is no shard of MDS: column_sizes: expected"),
        (shard(COLUMNS, [], column_names=["a"]), "is no shard of MDS: its columns have not as many names"),
        (shard(COLUMNS, [], column_sizes=[1, None, -1]), "is no shard of MDS: a column has a size below 0"),
        (struct.pack("<3I", 1, 500, 20) + LABELLED, "is no shard of MDS: its samples do not lie one after another"),
        (LABELLED.replace(b"\x03\0\0\0\x01\0\0\0", b"\x09\0\0\0\x01\0\0\0"), "sample 1 is damaged .it has 13 bytes"),
        (pickled(), "column 'text' is of pkl, which is not read here"),
        (shard([("words", "str", None)], [(b"a",)]), "there is no column 'text'; its columns are words"),
    ],
)
def test_what_is_no_whole_shard_is_refused(tmp_path, content, message):
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"shard\.00000\.mds: {message}"):
        rows_of(path, columns=("text",))


def test_packings_without_a_reader_are_named(tmp_path):
    path = tmp_path / "shard.00000.mds.br"
    path.write_bytes(b"\x0b\x10\x80" * 9)
    with pytest.raises(DataError, match=r"mds\.br: shards packed with Brotli or Snappy are not read"):
        rows_of(path)


def test_a_value_that_is_no_text_is_told_with_its_place(tmp_path):
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(shard([("text", "str", None)], [(b"a",), (b"b\0",), (b"\xff",), (b"c",)]))
    problems = Problems()
    assert rows_of(path, columns=("text",), problems=problems) == [("a",), ("c",)]
    with pytest.raises(DataError, match=r"mds:2: column 'text' holds a NUL.*\n.*mds:3: column 'text' is no text but b"):
        problems.settle()
    path.write_bytes(LABELLED)
    with pytest.raises(DataError, match="ids are read from a column tokens or input_ids; it has 'label', "):
        list(read_ids(str(path)))


def index(folder, *shards):
    content = {"version": 2, "shards": [{"format": "mds", "raw_data": None, "zip_data": None} | one for one in shards]}
    (folder / "index.json").write_text(json.dumps(content))
    return str(folder / "index.json")


def test_an_index_names_the_shards(tmp_path):
    (tmp_path / "b.mds").write_bytes(LABELLED)
    (tmp_path / "a.mds.gz").write_bytes(gzip.compress(LABELLED))
    (tmp_path / "not-listed.mds").write_bytes(LABELLED)
    raw, packed = ({"basename": name} for name in ("a.mds", "a.mds.gz"))
    listed = index(tmp_path, {"raw_data": {"basename": "b.mds"}}, {"raw_data": raw, "zip_data": packed})
    expected = tuple(str(tmp_path / name) for name in ("b.mds", "a.mds.gz"))
    assert files_of([listed]) == files_of([str(tmp_path)]) == expected
    assert len(rows_of(listed)) == 6
    (tmp_path / "b.mds").unlink()
    with pytest.raises(DataError, match=r"b\.mds: there is no such file"):
        rows_of(listed)
    for shard_of, message in (({}, "lists a shard without"), ({"raw_data": {"basename": "../x"}}, "lists a shard")):
        with pytest.raises(DataError, match=rf"index\.json: {message}"):
            files_of([index(tmp_path, shard_of)])
    with pytest.raises(DataError, match=r"index\.json: lists no shard"):
        files_of([index(tmp_path)])
    (tmp_path / "index.json").write_text('{"text": "of another program"}')
    assert rows_of(tmp_path / "index.json", columns=("text",)) == [("of another program",)]


def test_a_shard_of_another_size_than_its_index_says_is_refused(tmp_path):
    mds.write_shards(tmp_path / "out", "text", "str", [b"one", b"two"])
    (tmp_path / "out" / "shard.00000.mds").write_bytes(LABELLED)
    with pytest.raises(DataError, match=r"shard\.00000\.mds: has 292 bytes, and 199 by its index\.json; copy it again"):
        files_of([str(tmp_path / "out" / "index.json")])


def test_shards_are_not_read_as_plain_text(tmp_path):
    mds.write_shards(tmp_path / "out", "text", "str", [b"one", b"two"])
    with pytest.raises(
        DataError, match=r"shard\.00000\.mds: is a shard of MDS: give ids as --text FOLDER/index\.json, and"
    ):
        list(Documents(paths=(str(tmp_path / "out"),)).records(Problems()))


@pytest.mark.parametrize("content", ["", "{}", '{"shards": null}', '{"version": 2, "shards": [{"form', "[" * 100_000])
def test_an_index_that_lists_no_shards_is_no_token_file(tmp_path, content):
    """Its bytes would be ids of 16 bits."""
    (tmp_path / "index.json").write_text(content)
    for path in files_of([str(tmp_path / "index.json")]):
        with pytest.raises(DataError, match=r"index\.json: is no token file: expected \.bin, shards of MDS, or their"):
            list(read_ids(path))


@pytest.mark.parametrize("n_bytes", [400, 1 << 26])
def test_what_is_written_is_read_back_in_shards_of_a_bounded_size(tmp_path, monkeypatch, n_bytes):
    monkeypatch.setattr(mds, "SHARD_BYTES", n_bytes)
    texts = [f"text {i} " * i for i in range(1, 20)]
    mds.write_shards(tmp_path / "out", "text", "str", (text.encode() for text in texts))
    assert rows_of(tmp_path / "out" / "index.json", columns=("text",)) == [(text,) for text in texts]
    sizes = [path.stat().st_size for path in sorted((tmp_path / "out").glob("*.mds"))]
    assert (len(sizes) > 5) == (n_bytes == 400)
    assert all(size <= n_bytes for size in sizes)


def test_mosaicmls_own_writer_and_reader_agree(tmp_path):
    streaming = pytest.importorskip("streaming")
    ids = [np.arange(i, 3 * i, dtype=np.int32) for i in range(1, 300)]
    texts = [f"größer {i} " * i for i in range(1, 300)]
    mds.write_shards(tmp_path / "ours-ids", "tokens", "ndarray:int32", map(mds.encode_ids, ids))
    mds.write_shards(tmp_path / "ours-text", "text", "str", (text.encode() for text in texts))
    for name, column, encoding, rows in (("ids", "tokens", "ndarray:int32", ids), ("text", "text", "str", texts)):
        for packing in (None, "zstd", "gz", "bz2"):
            folder = tmp_path / f"{name}-{packing}"
            with streaming.MDSWriter(out=str(folder), columns={column: encoding}, compression=packing) as out:
                for row in rows:
                    out.write({column: row})
            paths = files_of([str(folder / "index.json")])
            if name == "ids":
                assert np.array_equal(
                    np.concatenate([i for path in paths for i in read_ids(path)]), np.concatenate(ids)
                )
            else:
                assert rows_of(*paths, columns=("text",)) == [(text,) for text in texts]
            if packing is None:  # ours are the very same bytes
                ours = files_of([str(tmp_path / f"ours-{name}" / "index.json")])
                for mine, theirs in zip(ours, paths, strict=True):
                    assert Path(mine).read_bytes() == Path(theirs).read_bytes()
        read = streaming.LocalDataset(str(tmp_path / f"ours-{name}"))
        assert all(np.array_equal(read[i][column], row) for i, row in enumerate(rows))


def test_bzip2_is_unpacked_within_its_bound(tmp_path, monkeypatch):
    monkeypatch.setattr("clearhead.bounds.UNPACKED", 100_000)
    path = tmp_path / "shard.00000.mds.bz2"
    path.write_bytes(bz2.compress(shard([("text", "str", None)], [(b"a" * 900_000,)] * 20)))
    with pytest.raises(DataError, match="it unpacks to more than 100 times its size"):
        rows_of(path, columns=("text",))
