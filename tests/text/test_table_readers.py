"""Parquet: the same records as from JSON lines, and a clear word where pyarrow is missing."""

import importlib.util

import pytest

from clearhead import bounds
from clearhead.errors import DataError
from clearhead.text.lines import Problems
from clearhead.text.sources import Table

there = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")


def records(path, columns=("text", "label"), **problems):
    table = Table(paths=(str(path),), columns=columns, fields=("text", "label"))
    return [record.fields for record in table.records(Problems(**problems))]


@pytest.fixture
def written(tmp_path):
    """A file of 10,000 rows, in several row groups."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {"label": [i % 3 for i in range(10_000)], "text": [f"Zeile {i}, größer" for i in range(10_000)]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet", row_group_size=999)
    return tmp_path / "t.parquet"


@there
def test_rows_are_read_in_order_by_name_and_by_number(written):
    found = records(written)
    assert len(found) == 10_000
    assert found[:2] == [("Zeile 0, größer", "0"), ("Zeile 1, größer", "1")]
    assert records(written, ("2", "1")) == found


@there
def test_a_column_that_is_not_there_is_told(written):
    with pytest.raises(DataError, match="there is no column 'mood'; its columns are label, text"):
        records(written, ("text", "mood"))


@there
def test_values_that_are_missing_or_no_text_are_problems(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {"text": ["a", None, "c", "d\0"], "label": ["x", "y", " ", "z"], "list": [[1], [2], [3], [4]]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    assert records(tmp_path / "t.parquet", skip=True) == [("a", "x")]
    assert records(tmp_path / "t.parquet", ("text", "list"), skip=True) == []


@there
@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", b"text\tlabel\n"])
def test_a_file_that_is_no_parquet_is_told(tmp_path, content):
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        records(tmp_path / "t.parquet")


def test_without_pyarrow_it_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"Parquet takes pyarrow: pip install 'pyarrow>=16'"):
        records(tmp_path / "t.parquet")


@there
@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "rows", "message"),
    [
        (900_000, 20_000, "as Parquet: takes more than 2 GB"),  # 18 GB; it took 6.4 GB before it was told
        (10_000, 2_000, "it unpacks to more than 100 times its size"),
    ],
)
def test_a_small_file_that_claims_a_long_text_is_given_up(tmp_path, monkeypatch, length, rows, message):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows), pyarrow.array(["a" * length]))
    table, path = pyarrow.table({"text": texts}), tmp_path / "bomb.parquet"
    parquet.write_table(table, path, compression="brotli", write_statistics=False, store_schema=False)
    assert path.stat().st_size < 1000
    monkeypatch.setattr(bounds, "UNPACKED", 1_000_000)
    with pytest.raises(DataError, match=rf"bomb.parquet: {message}"):
        records(path, ("text", "text"))
