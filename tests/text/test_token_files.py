"""Token files of other programs: what is written is read back, by us and by them; what is damaged is refused."""

import os
import struct
from dataclasses import replace

import numpy as np
import pytest

from clearhead.errors import DataError, OptionError
from clearhead.text import remote, token_files
from clearhead.text.encoding import Corpus
from clearhead.text.filtering import LengthFilter
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Documents, Table
from clearhead.text.token_files import FORMATS, TEXTS, TokenFiles, TokenSet, check_format, read_ids
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks import TASKS
from tests.text.shard_server import ShardServer
from tests.training import small_runs
from tests.training.tiny import quiet

STREAM = TASKS["generate"].layout(16)


@pytest.fixture
def prepared(tmp_path):
    path = small_runs.write_lines(tmp_path / "lines.txt", [f"line {i} of a text" for i in range(300)])
    corpus = Corpus(train=Documents(paths=(path,), unit="line"))
    return prepare(corpus, STREAM, Tokenizing(kind="bpe", size=300), tmp_path / "data", quiet)


IDS = [form for form in FORMATS if form not in TEXTS]


def write(prepared, form, home, *, width=100):
    """Write a corpus for another program, with its tokenizer."""
    home.mkdir()
    tokenizer = prepared.tokenizers["text"]
    for name, store in (("train", prepared.train), ("val", prepared.dev)):
        FORMATS[form](TokenSet(store, tokenizer, home / name, width))
    tokenizer.save(home / "tokenizer.json")
    return home


@pytest.fixture(params=IDS)
def written(request, prepared, tmp_path):
    return write(prepared, request.param, tmp_path / "tokens")


def tokens(home):
    names = (home / f"{name}.bin" for name in ("train", "val"))
    return [TokenFiles(paths=(str(name if name.exists() else name.with_suffix("") / "index.json"),)) for name in names]


def all_ids(path):
    return np.concatenate([*read_ids(str(path))])


@pytest.mark.parametrize("piece", [1, 7, 1 << 18])
def test_what_is_written_is_read_back_and_trained_on(written, prepared, tmp_path, monkeypatch, piece):
    monkeypatch.setattr(token_files, "PIECE", piece)
    learned, held = tokens(written)
    assert np.array_equal(np.concatenate([all_ids(path) for path in learned.files]), prepared.train["text"].ids)
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
    home = write(prepared, "megatron", tmp_path / "ours")
    theirs = megatron.IndexedDataset(str(home / "train"))
    rows = prepared.train["text"]
    assert len(theirs) == len(rows)
    assert all(np.array_equal(theirs[i], rows.ids_of(i)) for i in range(len(rows)))
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "made.bin"), dtype=np.int32)
    for i in range(20):
        builder.add_document(rows[i], [len(rows[i])])
    builder.finalize(str(tmp_path / "made.idx"))
    assert np.array_equal(all_ids(tmp_path / "made.bin"), rows.ids[: rows.ends[19]])


def test_a_file_that_is_cut_off_is_refused(written):
    path = tokens(written)[0].files[0]
    with open(path, "rb+") as file:
        file.truncate(os.path.getsize(path) - 1)
    message = r"odd number of bytes|its size of another number|and its index tells of|is cut off: 1 bytes more"
    with pytest.raises(DataError, match=message):
        all_ids(path)


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
    home = write(prepared, "megatron", tmp_path / "tokens")
    index = home / "train.idx"
    index.write_bytes(change(index.read_bytes()))
    with pytest.raises(DataError, match=message):
        all_ids(home / "train.bin")


def test_a_header_that_tells_of_more_than_there_is_is_refused(prepared, tmp_path):
    path = write(prepared, "llm.c", tmp_path / "tokens") / "train.bin"
    raw = path.read_bytes()
    for change, message in (((1, 9), "version 1 of llm.c's files"), ((2, -4), "another number")):
        header = np.frombuffer(raw[:1024], "<i4").copy()
        header[change[0]] = change[1]
        path.write_bytes(header.tobytes() + raw[1024:])
        with pytest.raises(DataError, match=message):
            all_ids(path)


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
    with pytest.raises(OptionError, match=r"expected nanogpt, .*; came 'mosaic'"):
        check_format(prepared.train, prepared.tokenizers["text"], "mosaic")
    with pytest.raises(OptionError, match="mds-text has text, and ids of a tokenizer of the kind word"):
        check_format(prepared.train, Tokenizer.train(["a b"], "word"), "mds-text")


@pytest.mark.parametrize("form", TEXTS)
def test_text_that_is_written_is_read_back(form, prepared, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(token_files, "NANOCHAT_ROWS", 100)
    monkeypatch.setattr(token_files, "NANOCHAT_CHARACTERS", 1000)
    home = write(prepared, form, tmp_path / "written")
    # nanochat sorts its files and validates on the last one.
    paths = [str(home / name / "index.json") for name in ("train", "val")]
    if form == "nanochat":
        paths = sorted(str(path) for path in home.glob("*.parquet"))
        assert len(paths) == 4
    sides = [tuple(paths[:-1]), tuple(paths[-1:])]
    train, dev = (Table(paths=side, columns=("text",), fields=("text",)) for side in sides)
    again = prepare(Corpus(train=train, dev=dev), STREAM, Tokenizing(kind="bpe", size=300), tmp_path / "again", quiet)
    for ours, theirs in ((again.train, prepared.train), (again.dev, prepared.dev)):
        assert [again.tokenizers["text"].decode(ours["text"][i].tolist()) for i in range(len(ours))] == [
            prepared.tokenizers["text"].decode(theirs["text"][i].tolist()) for i in range(len(theirs))
        ]


def test_the_tokenizer_lies_beside_or_in_the_folder_above(tmp_path, monkeypatch):
    home, folder = tmp_path / "tokens", tmp_path / "tokens" / "deeper"
    folder.mkdir(parents=True)
    for path in (home / "train.bin", folder / "train.bin", home / "tokenizer.json"):
        path.touch()
    for where, path, found in (
        (home, "train.bin", "tokenizer.json"),
        (folder, "train.bin", "../tokenizer.json"),
        (tmp_path, "tokens/deeper/train.bin", "tokens/tokenizer.json"),
    ):
        monkeypatch.chdir(where)
        assert TokenFiles(paths=(path,)).tokenizer_file() == found
    assert token_files.folder_of("/train.bin") == "/"  # and not the folder one is in


def test_a_store_is_not_asked_for_what_lies_above_it(monkeypatch):
    """https://host/train.bin has no tokenizer at https://tokenizer.json, which is another machine."""
    asked = []
    monkeypatch.setattr(token_files, "local_path", lambda path: asked.append(path) or refuse(path))
    for path in ("https://host/train.bin", "s3://bucket/tokens/train.bin"):
        monkeypatch.setattr(TokenFiles, "files", (path,))
        with pytest.raises(DataError, match="put the tokenizer that made its ids beside it"):
            TokenFiles(paths=(path,)).tokenizer_file()
    assert asked == [
        "https://host/tokenizer.json",
        "s3://bucket/tokens/tokenizer.json",
        "s3://bucket/tokenizer.json",
    ]


def refuse(path):
    raise DataError(f"{path}: there is no such file")


def test_token_files_may_lie_in_a_store(prepared, tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setenv(remote.FOLDER, str(tmp_path / "cache"))
    home = write(prepared, "megatron", tmp_path / "tokens")
    write(prepared, "mds", home / "mds")
    with ShardServer(home).serve() as address:
        for name in ("train.bin", "mds/train/index.json"):
            source = TokenFiles(paths=(f"{address}/{name}",))
            assert np.array_equal(np.concatenate([all_ids(path) for path in source.files]), prepared.train["text"].ids)
            if name == "train.bin":
                assert source.tokenizer().vocabulary == prepared.tokenizers["text"].vocabulary
        (home / "train.bin").write_bytes(b"1")
        remote.describe_shard.cache_clear()
        with pytest.raises(DataError, match=rf"{address}/train.bin: has 1 bytes"):
            all_ids(f"{address}/train.bin")
