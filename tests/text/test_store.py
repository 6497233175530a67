"""Stores: what is written comes back, whatever it is; and what is not whole is never taken for a store."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import RunError
from clearhead.files import sha256_of_file, write_sealed
from clearhead.text import store as module
from clearhead.text.store import FieldSize, Store, StoreWriter

ROWS = st.lists(st.lists(st.integers(0, 999), max_size=9), max_size=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all examples: each writes over the one before, as a store may."""
    return tmp_path_factory.mktemp("stores") / "store"


def written(folder, rows, vocabulary=1000, name="text"):
    with StoreWriter(folder, {name: vocabulary}) as writer:
        for row in rows:
            writer.add({name: row}, {name: 2 * len(row)})
        return writer.close({"made": "here"})


@given(rows=ROWS)
def test_what_is_written_comes_back(folder, rows):
    store = written(folder, rows)
    assert len(store) == len(rows) == len(store["text"])
    assert [store["text"][i].tolist() for i in range(len(rows))] == rows
    assert store.sizes["text"] == FieldSize(
        tokens=sum(map(len, rows)), longest=max(map(len, rows), default=0), text_bytes=2 * sum(map(len, rows))
    )
    assert store.notes == {"made": "here"}
    assert store["text"].ids.tolist() == [one for row in rows for one in row]


@given(rows=ROWS.filter(len), width=st.integers(0, 12), draw=st.data())
def test_padded_rows_are_cut_or_filled(folder, rows, width, draw):
    text = written(folder, rows)["text"]
    which = draw.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))
    expected = [(rows[i] + [1001] * width)[:width] for i in which]
    assert text.padded(np.array(which), width, 1001).tolist() == expected
    assert text.lengths(np.array(which)).tolist() == [len(rows[i]) for i in which]


def test_fields_of_one_record_stay_together(folder):
    with StoreWriter(folder, {"text": 10, "label": 2}) as writer:
        writer.add({"text": [1, 2, 3], "label": [1]}, {"text": 5})
        writer.add({"text": [4], "label": [0]}, {"text": 1})
        store = writer.close({})
    assert [store["text"][i].tolist() for i in (0, 1)] == [[1, 2, 3], [4]]
    assert [store["label"][i].tolist() for i in (0, 1)] == [[1], [0]]
    assert (store.sizes["text"].text_bytes, store.sizes["label"].text_bytes) == (6, 0)


def test_a_record_can_come_in_pieces(folder):
    with StoreWriter(folder, {"text": 10}) as writer:
        writer.add({"text": [1, 2]}, {"text": 2}, ends=False)
        writer.add({"text": []}, {"text": 0}, ends=False)
        writer.add({"text": [3]}, {"text": 1})
        writer.add({"text": [4]}, {"text": 1})
        store = writer.close({})
    assert [store["text"][i].tolist() for i in (0, 1)] == [[1, 2, 3], [4]]
    assert store.sizes["text"] == FieldSize(tokens=4, longest=3, text_bytes=4)


def test_more_ids_than_a_writer_gathers(folder, monkeypatch):
    monkeypatch.setattr(module, "FULL", 7)
    rows = [[i] * (i % 5) for i in range(100)]
    store = written(folder, rows)
    assert [store["text"][i].tolist() for i in range(100)] == rows


@pytest.mark.parametrize(("vocabulary", "size"), [(65_536, 2), (65_537, 4)])
def test_ids_take_no_more_room_than_they_need(folder, vocabulary, size):
    store = written(folder, [[0, vocabulary - 1]], vocabulary)
    assert store["text"].ids.dtype.itemsize == size
    assert store["text"][0].tolist() == [0, vocabulary - 1]
    assert (folder / "text.ids").stat().st_size == 2 * size


def test_a_full_disk_leaves_nothing(tmp_path):
    """What was gathered does not fit; neither does it when the files are closed."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            written(tmp_path / "store", [[1] * 1000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_fails_leaves_the_store_that_was_there(tmp_path):
    written(tmp_path / "store", [[1, 2]])
    with pytest.raises(OverflowError), StoreWriter(tmp_path / "store", {"text": 10}) as writer:
        writer.add({"text": [1 << 20]}, {})
    assert Store(tmp_path / "store")["text"][0].tolist() == [1, 2]


KILLED = """
    import os, signal
    from pathlib import Path
    from clearhead.text import store
    store.FULL = 4
    writer = store.StoreWriter(Path("{folder}"), {{"text": 10}})
    for _ in range(9000):
        writer.add({{"text": [1, 2, 3]}}, {{}})
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_no_store(tmp_path):
    folder = tmp_path / "store"
    code = textwrap.dedent(KILLED).format(folder=folder)
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.getcwd()}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "store.partial" / "text.ids").stat().st_size > 0
    with pytest.raises(RunError, match="not a whole store"):
        Store(folder)
    assert len(written(folder, [[5]])) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def cut(path, n):
    path.write_bytes(path.read_bytes()[:-n])


def without(name):
    def take(folder):
        told = json.loads((folder / "store.json").read_text())
        del told[name]
        (folder / "store.json").write_text(json.dumps(told))

    return take


def other(name, value):
    def put(folder):
        told = json.loads((folder / "store.json").read_text()) | {name: value}
        (folder / "store.json").write_text(json.dumps(told))

    return put


TORN = {
    "one id less": lambda folder: cut(folder / "text.ids", 2),
    "half an id less": lambda folder: cut(folder / "text.ids", 1),
    "no ids": lambda folder: (folder / "text.ids").write_bytes(b""),
    "one end less": lambda folder: cut(folder / "text.ends", 8),
    "part of an end less": lambda folder: cut(folder / "text.ends", 3),
    "no ends": lambda folder: (folder / "text.ends").write_bytes(b""),
    "ids are gone": lambda folder: (folder / "text.ids").unlink(),
    "json is gone": lambda folder: (folder / "store.json").unlink(),
    "half of the json": lambda folder: cut(folder / "store.json", 40),
    "no json": lambda folder: (folder / "store.json").write_bytes(b"\xff\x00"),
    "other json": lambda folder: (folder / "store.json").write_text("[1, 2]"),
    "no sizes": without("fields"),
    "no dtypes": without("dtype"),
    "another format": other("format", 99),
    "another dtype": other("dtype", {"text": "colour"}),
    "another number of records": other("records", 4),
}


@pytest.mark.parametrize("tear", TORN.values(), ids=TORN.keys())
def test_a_torn_store_is_told_by_its_folder(tmp_path, tear):
    folder = tmp_path / "store"
    written(folder, [[1, 2], [], [3]])
    tear(folder)
    with pytest.raises(RunError, match=rf"^{folder}: not a whole store of token ids \(.+\); remove it"):
        Store(folder)


def test_an_empty_store_with_ids_is_torn(tmp_path):
    folder = tmp_path / "store"
    written(folder, [])
    assert len(Store(folder)) == 0
    (folder / "text.ids").write_bytes(b"\0\0")
    with pytest.raises(RunError, match="do not fit together"):
        Store(folder)


def damage(path, draw):
    """Flip a bit, or swap two numbers."""
    data = bytearray(path.read_bytes())
    i, j = draw.sample(range(len(data)), 2)
    if draw.random() < 0.5 or data[i] == data[j]:
        data[i] ^= 1 << draw.randrange(8)
    else:
        data[i], data[j] = data[j], data[i]
    path.write_bytes(data)


def test_no_damaged_file_of_ids_is_trained_on(tmp_path):
    """Of 100 such files 12 were, before there was a checksum."""
    draw, folder = random.Random(13), tmp_path / "store"
    whole = written(folder, [[draw.randrange(1000) for _ in range(draw.randrange(9))] for _ in range(100)])
    whole.verify()
    refused = 0
    for i in range(100):
        path = folder / ("text.ids" if i % 2 else "text.ends")
        before = path.read_bytes()
        damage(path, draw)
        with pytest.raises(RunError, match=rf"^{folder}: not a whole store of token ids \(.+\); remove it"):
            Store(folder).verify()
        refused += 1
        path.write_bytes(before)
    assert refused == 100
    Store(folder).verify()


def reseal(folder):
    """Make the checksums of a store fit its files, as a stranger would."""
    told = json.loads((folder / "store.json").read_text())
    content = {name: value for name, value in told.items() if name not in ("format", "sha256")}
    write_sealed(folder / "store.json", {**content, "files": {n: sha256_of_file(folder / n) for n in told["files"]}})


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("text.ids", [1, 2, 10], r"text\.ids holds a number that is not from 0 to 9"),
        ("text.ends", [2, 1, 3], r"in text\.ends a record ends before the one before it"),
        ("text.ends", [-1, 2, 3], r"text\.ends holds a number that is not from 0 to 3"),
        ("text.ends", [1, 99, 3], r"text\.ends holds a number that is not from 0 to 3"),
    ],
)
def test_a_store_whose_checksums_were_made_to_fit_is_held_to_what_ids_can_be(tmp_path, file, values, message):
    folder = tmp_path / "store"
    written(folder, [[1], [2], [3]], vocabulary=10)
    np.array(values, np.uint16 if file.endswith("ids") else np.int64).tofile(folder / file)
    reseal(folder)
    with pytest.raises(RunError, match=message):
        Store(folder).verify()


def test_ends_must_ascend_from_one_piece_to_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FULL", 2)
    folder = tmp_path / "store"
    written(folder, [[1, 1], [2], [3], [4]])
    np.array([2, 3, 1, 5], np.int64).tofile(folder / "text.ends")
    reseal(folder)
    with pytest.raises(RunError, match="a record ends before"):
        Store(folder).verify()


def test_ids_beyond_the_vocabulary_are_refused_whatever_the_checksum(tmp_path):
    writer = StoreWriter(tmp_path / "store", {"text": 10})
    writer.add({"text": [10]}, {})
    store = writer.close({})
    with pytest.raises(RunError, match=r"text\.ids holds a number that is not from 0 to 9"):
        store.verify()


@pytest.mark.parametrize("name", ["../text", "a/b", ""])
def test_a_field_is_no_path(tmp_path, name):
    folder = tmp_path / "store"
    written(folder, [[1]])
    told = json.loads((folder / "store.json").read_text())
    told["fields"] = {name: told["fields"]["text"]}
    write_sealed(folder / "store.json", {key: one for key, one in told.items() if key not in ("format", "sha256")})
    with pytest.raises(RunError, match="is no name of a field"):
        Store(folder)


@pytest.mark.parametrize("gone", ["sha256", "files", "vocabulary", "notes"])
def test_a_store_that_lost_its_checksum_is_no_old_one(tmp_path, gone):
    folder = tmp_path / "store"
    written(folder, [[1]])
    without(gone)(folder)
    with pytest.raises(RunError, match="not a whole store"):
        Store(folder)


def test_a_device_is_not_mapped(tmp_path):
    folder = tmp_path / "store"
    written(folder, [[1]])
    (folder / "text.ids").unlink()
    (folder / "text.ids").symlink_to("/dev/zero")
    with pytest.raises(RunError, match=r"text\.ids is no regular file"):
        Store(folder)
