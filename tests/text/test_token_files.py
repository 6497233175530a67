"""Token files of other programs: what is written is read back, by us and by them; what is damaged is refused."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from clearhead.errors import DataError, OptionError
from clearhead.text import token_files
from clearhead.text.encoding import Corpus
from clearhead.text.filtering import LengthFilter
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Documents
from clearhead.text.token_files import FORMATS, TokenFiles, check_format, read_ids
from clearhead.training.tasks import TASKS
from tests.training import small_runs
from tests.training.tiny import quiet

STREAM = TASKS["generate"].layout(16)


@pytest.fixture
def prepared(tmp_path):
    path = small_runs.write_lines(tmp_path / "lines.txt", [f"line {i} of a text" for i in range(300)])
    corpus = Corpus(train=Documents(paths=(path,), unit="line"))
    return prepare(corpus, STREAM, Tokenizing(kind="bpe", size=300), tmp_path / "data", quiet)


@pytest.fixture(params=FORMATS)
def written(request, prepared, tmp_path):
    """The folder of a corpus as token files, with its tokenizer."""
    home = tmp_path / "tokens"
    home.mkdir()
    for name, store in (("train", prepared.train), ("val", prepared.dev)):
        FORMATS[request.param](store, home / f"{name}.bin")
    prepared.tokenizers["text"].save(home / "tokenizer.json")
    return home


def tokens(home):
    return TokenFiles(paths=(str(home / "train.bin"),)), TokenFiles(paths=(str(home / "val.bin"),))


@pytest.mark.parametrize("piece", [1, 7, 1 << 18])
def test_what_is_written_is_read_back_and_trained_on(written, prepared, tmp_path, monkeypatch, piece):
    monkeypatch.setattr(token_files, "PIECE", piece)
    learned, held = tokens(written)
    assert np.array_equal(read_ids(learned.paths[0]), prepared.train["text"].ids)
    again = prepare(Corpus(train=learned, dev=held), STREAM, Tokenizing(), tmp_path / "again", quiet)
    for ours, theirs in ((again.train, prepared.train), (again.dev, prepared.dev)):
        assert np.array_equal(ours["text"].ids, theirs["text"].ids)
        assert np.array_equal(ours["text"].ends, theirs["text"].ends)
        assert ours.sizes == theirs.sizes


def test_without_a_dev_file_documents_are_held_out(written, prepared, tmp_path):
    again = prepare(Corpus(train=tokens(written)[0]), STREAM, Tokenizing(), tmp_path / "again", quiet)
    assert len(again.dev) > 0
    assert len(again.train) + len(again.dev) == len(prepared.train)


def test_megatron_reads_what_we_write_and_we_read_what_it_writes(prepared, tmp_path):
    megatron = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    FORMATS["megatron"](prepared.train, tmp_path / "ours.bin")
    theirs = megatron.IndexedDataset(str(tmp_path / "ours"))
    rows = prepared.train["text"]
    assert len(theirs) == len(rows)
    assert all(np.array_equal(theirs[i], rows.ids_of(i)) for i in range(len(rows)))
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "made.bin"), dtype=np.int32)
    for i in range(20):
        builder.add_document(rows[i], [len(rows[i])])
    builder.finalize(str(tmp_path / "made.idx"))
    assert np.array_equal(read_ids(str(tmp_path / "made.bin")), rows.ids[: rows.ends[19]])


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_cut_off_is_refused(form, prepared, tmp_path):
    path = tmp_path / "train.bin"
    FORMATS[form](prepared.train, path)
    cut(path)
    with pytest.raises(DataError, match=r"odd number of bytes|its size of another number|and its index tells of"):
        read_ids(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: b"X" + raw[1:], "is no index of Megatron"),
        (lambda raw: raw[:9] + struct.pack("<Q", 2) + raw[17:], "is no index of Megatron"),
        (lambda raw: raw[:17] + b"\x06" + raw[18:], "is no index of Megatron"),
        (lambda raw: raw[:18] + struct.pack("<Q", 1 << 60) + raw[26:], "tells of 1,152,921,504,606,846,976 sequences"),
        (lambda raw: raw[:34] + struct.pack("<i", -5) + raw[38:], "do not lie in the file one after another"),
        (lambda raw: raw[:34] + struct.pack("<i", 5000) + raw[38:], "do not lie in the file one after another"),
        (lambda raw: raw[:60], "is cut off"),
        (lambda raw: raw[:20], "is cut off"),
    ],
)
def test_a_damaged_index_is_refused(change, message, prepared, tmp_path):
    FORMATS["megatron"](prepared.train, tmp_path / "train.bin")
    index = tmp_path / "train.idx"
    index.write_bytes(change(index.read_bytes()))
    with pytest.raises(DataError, match=message):
        read_ids(str(tmp_path / "train.bin"))


def test_a_header_that_tells_of_more_than_there_is_is_refused(prepared, tmp_path):
    path = tmp_path / "train.bin"
    FORMATS["llm.c"](prepared.train, path)
    raw = path.read_bytes()
    for change, message in (((1, 9), "version 1 of llm.c's files"), ((2, -4), "another number")):
        header = np.frombuffer(raw[:1024], "<i4").copy()
        header[change[0]] = change[1]
        path.write_bytes(header.tobytes() + raw[1024:])
        with pytest.raises(DataError, match=message):
            read_ids(str(path))


def test_what_does_not_fit_is_told(written, prepared, tmp_path):
    learned, held = tokens(written)
    text = Documents(paths=(str(tmp_path / "lines.txt"),), unit="line")
    for corpus, layout, message in (
        (Corpus(train=text, dev=held), STREAM, "go with training text in token files"),
        (Corpus(train=learned), TASKS["fill"].layout(16), "are running text, to generate"),
        (Corpus(train=learned, filters=(LengthFilter(),)), STREAM, "look at text"),
        (Corpus(train=learned, deduplicate="near"), STREAM, "look at text"),
    ):
        with pytest.raises(OptionError, match=message):
            prepare(corpus, layout, Tokenizing(), tmp_path / "no", quiet)
    foreign = np.array([4000, 5], "<u2")
    (written / "foreign.bin").write_bytes(foreign.tobytes())
    source = replace(learned, paths=(str(written / "foreign.bin"),))
    with pytest.raises(DataError, match="has the id 4,000, and the tokenizer has 271 tokens"):
        prepare(Corpus(train=source), STREAM, Tokenizing(), tmp_path / "no", quiet)
    (written / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="put the tokenizer that made its ids beside it"):
        prepare(Corpus(train=learned), STREAM, Tokenizing(), tmp_path / "no", quiet)
    with pytest.raises(OptionError, match=r"expected nanogpt, llm\.c, megatron; came 'mds'"):
        check_format(prepared.train, "mds")
