"""Shards from elsewhere: what is read is what the store has, whatever fails on the way; or the shard is named."""

import gzip
import os

import pytest

from clearhead.errors import DataError
from clearhead.text import remote
from clearhead.text.encoding import Corpus
from clearhead.text.lines import Problems, files_of
from clearhead.text.preparing import Tokenizing, describe_changes, prepare
from clearhead.text.remote import list_remote, local_path
from clearhead.text.sources import Documents, Table
from clearhead.training.tasks import TASKS
from tests.text.shard_server import BUCKET, ShardServer, object_store

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]

SHARDS = {f"part-{i}.txt": "".join(f"line {i} {j} größer\n" for j in range(40)) for i in range(4)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(remote.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "WAIT", 0.0)
    forget()
    yield tmp_path / "cache"
    forget()


def forget():
    """Forget what this process knows of shards, as another process would not know it."""
    remote.listed.cache_clear()
    remote.describe_shard.cache_clear()
    while remote.HANDLES:
        os.close(remote.HANDLES.popitem()[1])


@pytest.fixture
def web(tmp_path):
    pytest.importorskip("aiohttp")
    folder = tmp_path / "web"
    folder.mkdir()
    for name, text in SHARDS.items():
        (folder / name).write_text(text)
    server = ShardServer(folder)
    with server.serve() as address:
        server.address = address
        yield server


def texts(*paths):
    return [record.fields[0] for record in Documents(paths=paths, unit="line").records(Problems())]


def lines(*names):
    return [line for name in names for line in SHARDS[name].splitlines()]


FAULTS = {
    "failing": [503, 500, 502],
    "cut off": ["cut", "cut"],
    "lying": ["short", "long", "short"],
    "stalling": ["stall"],
    "all of it": [500, "cut", "short", 503],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_a_shard_is_asked_for_again_until_it_is_whole(web, monkeypatch, faults):
    monkeypatch.setattr(remote, "SILENCE", 0.5)
    web.faults = {"/part-1.txt": list(faults)}
    assert texts(*(f"{web.address}/{name}" for name in SHARDS)) == lines(*SHARDS)
    assert web.asked == {f"/{name}": 1 + len(faults) * (name == "part-1.txt") for name in SHARDS}


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([503] * 9, r"part-2\.txt: could not be fetched in 5 tries \(.*503"),
        (["short"] * 9, r"part-2\.txt: could not be .* bytes came, and its store says that it has"),
        (["cut"] * 9, r"part-2\.txt: could not be fetched in 5 tries .* Nothing was left out"),
    ],
    ids=["failing", "lying", "cut off"],
)
def test_a_shard_that_cannot_be_had_is_named_and_never_passed_over(web, cache, tmp_path, faults, message):
    web.faults = {"/part-2.txt": list(faults)}
    paths = tuple(f"{web.address}/{name}" for name in SHARDS)
    with pytest.raises(DataError, match=message):
        texts(*paths)
    corpus = Corpus(train=Documents(paths=paths, unit="line"), skip_bad=True)
    web.faults = {"/part-2.txt": list(faults)}
    with pytest.raises(DataError, match=message):
        prepare(corpus, TASKS["generate"].layout(32), Tokenizing(kind="byte"), tmp_path / "data", print)
    assert not [path for path in cache.iterdir() if path.name.startswith(".")], "nothing half fetched is left"


def test_a_shard_of_which_nothing_is_said_at_first_is_asked_for_again(web):
    """fsspec takes every failure for a file that is not there."""
    web.faults = {"HEAD /part-1.txt": [503, 500], "/part-1.txt": [503, 429]}
    assert texts(f"{web.address}/part-1.txt") == lines("part-1.txt")
    assert web.failed == {503: 2, 500: 1, 429: 1}


def test_a_shard_that_changes_while_it_is_read_is_named(web):
    """By the time of the first byte another version is there, of the same size."""
    path = f"{web.address}/part-1.txt"
    remote.describe_shard(path)
    (web.folder / "part-1.txt").write_text(SHARDS["part-1.txt"].replace("line", "LINE"))
    with pytest.raises(
        DataError, match=r"part-1\.txt: could not be fetched .*it has changed in its store since it was"
    ):
        texts(path)


def test_what_is_not_there_is_told_at_once(web):
    with pytest.raises(DataError, match=r"part-9\.txt: there is no such file"):
        texts(f"{web.address}/part-9.txt")
    assert not web.asked["/part-9.txt"] > 2


def test_ids_are_those_of_the_same_files_here(web, tmp_path):
    def ids(paths, name):
        corpus = Corpus(train=Documents(paths=paths, unit="line"))
        made = prepare(corpus, TASKS["generate"].layout(32), Tokenizing(kind="bpe"), tmp_path / name, print)
        return {file.name: file.read_bytes() for side in (made.train, made.dev) for file in side.folder.glob("*.ids")}

    here = ids((str(web.folder / "part-*.txt"),), "here")
    assert ids(tuple(f"{web.address}/{name}" for name in SHARDS), "there") == here


def test_a_shard_is_fetched_once_and_another_version_again(web):
    path = f"{web.address}/part-0.txt"
    assert texts(path) == texts(path) == lines("part-0.txt")
    assert web.asked["/part-0.txt"] == 1
    forget()
    (web.folder / "part-0.txt").write_text("changed\n")
    assert texts(path) == ["changed"]


def test_the_cache_is_bounded_and_what_is_read_stays(web, cache, monkeypatch):
    size = len(SHARDS["part-0.txt"])
    monkeypatch.setenv(remote.GIGABYTES, str(2.5 * size / 1e9))
    monkeypatch.setattr(remote, "HELD", 1)
    for name in SHARDS:
        here = local_path(f"{web.address}/{name}")
        assert sum(path.stat().st_size for path in cache.iterdir()) <= 2.5 * size
    assert texts(*(f"{web.address}/{name}" for name in SHARDS)) == lines(*SHARDS)
    assert os.path.exists(here) or web.asked["/part-3.txt"] > 1


ETAG = {"ETag": '"1"'}
BOMBS = {
    "of no length": ((200, ETAG), r"has more than the 0\.002 GB that the cache .* set CLEARHEAD_SHARDS_GB"),
    "longer than it says": (None, r"could not be fetched .* its store says that it has"),
    "larger than the cache": ((200, ETAG | {"Content-Length": "3000000"}), r"has more than the 0\.002 GB"),
}


@pytest.mark.parametrize(("headers", "message"), BOMBS.values(), ids=BOMBS)
def test_a_store_cannot_fill_the_disk(web, cache, monkeypatch, headers, message):
    monkeypatch.setenv(remote.GIGABYTES, "0.002")
    for name in ("part-0.txt", "part-1.txt"):
        local_path(f"{web.address}/{name}")
    before = sorted(cache.iterdir())
    web.faults = {"/part-2.txt": ["endless"] * 9}
    web.headers = {"/part-2.txt": headers} if headers else {}
    with pytest.raises(DataError, match=message):
        texts(f"{web.address}/part-2.txt")
    assert web.sent < 30_000_000
    assert sorted(cache.iterdir()) == before, "nothing is left, and nothing was removed for it"


def test_a_shard_leads_to_no_file_of_this_machine(web, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    web.headers = {"/part-0.txt": (302, {"Location": f"file://{tmp_path}/secret.txt"})}
    with pytest.raises(DataError, match="no such file"):
        texts(f"{web.address}/part-0.txt")
    for path in (f"{web.address}/a.txt::file://{tmp_path}/secret.txt", "reference://::memory://a.json"):
        with pytest.raises(DataError, match="an address with :: in it is not read"):
            texts(path)


def test_a_name_in_the_cache_has_nothing_of_a_strangers_but_its_ending(web, cache):
    for name in (f"a.{'x' * 300}", "b.jsonl.gz"):
        web.headers = {f"/{name}": (200, ETAG | {"Content-Length": "0"})}
        local_path(f"{web.address}/{name}")
    assert {"".join(path.suffixes) for path in cache.iterdir()} == {"", ".jsonl.gz"}


def test_a_bad_bound_of_the_cache_is_told(web, monkeypatch):
    monkeypatch.setenv(remote.GIGABYTES, "much")
    with pytest.raises(DataError, match=r"CLEARHEAD_SHARDS_GB: expected a number above 0; came 'much'"):
        texts(f"{web.address}/part-0.txt")


def test_a_shard_that_another_process_takes_away_meanwhile_does_not_matter(cache, monkeypatch):
    monkeypatch.setattr(type(cache), "iterdir", lambda folder: iter([folder / "gone.txt"]))
    remote.make_room(cache, 10)


def test_a_resumed_run_asks_for_nothing(web):
    paths = (f"{web.address}/part-0.txt",)
    assert describe_changes({paths[0]: "then"}, Corpus(train=Documents(paths=paths))) is None
    assert not web.asked


def test_a_name_with_a_star_stands_for_files(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text("text")
    assert files_of([str(tmp_path / "*.txt")]) == (str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    with pytest.raises(DataError, match=r"\*\.csv: no file has such a name"):
        files_of([str(tmp_path / "*.csv")])


@pytest.mark.parametrize(
    ("path", "package"), [("s3://b/a", "s3fs"), ("gs://b/a", "gcsfs"), ("https://a/b", "aiohttp"), ("hub:a/b", "hugg")]
)
def test_the_package_that_is_missing_is_named(monkeypatch, path, package):
    monkeypatch.setattr(remote, "has_package", lambda name: False)
    with pytest.raises(DataError, match=rf"takes the package {package}.*pip install"):
        list_remote(path)


def test_an_unknown_protocol_is_named():
    with pytest.raises(DataError, match=r"nothing://a: cannot be read .*not known"):
        list_remote("nothing://a")


@pytest.fixture
def bucket():
    """A bucket of a real implementation of S3's protocol, on loopback."""
    for package in ("s3fs", "moto", "flask"):
        pytest.importorskip(package)
    with object_store() as (_, put):
        yield put


def test_bytes_of_an_object_that_do_not_come_are_no_zeros(bucket, monkeypatch):
    """s3fs fetches what is larger than a block in parts, into a file that has its size from the beginning."""
    from s3fs import S3FileSystem

    monkeypatch.setattr(S3FileSystem, "default_block_size", 500)
    for name, text in SHARDS.items():
        bucket(name, text.encode())
    server = ShardServer(upstream=os.environ["AWS_ENDPOINT_URL"].removeprefix("http://"))
    with server.serve() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        faults = {"part-1.txt": [None, None, "short"], "part-2.txt": ["short", "cut", "short", "long", "cut", "cut"]}
        for name, listed in faults.items():
            server.faults = {f"/{BUCKET}/{name}": listed}
            assert texts(f"s3://{BUCKET}/{name}") == lines(name)
        assert server.failed == {None: 1, "short": 2, "cut": 3, "long": 1}


def test_an_object_store_gives_its_files_in_every_form(bucket, tmp_path):
    for name, text in SHARDS.items():
        bucket(f"plain/{name}", text.encode())
    bucket("packed/a.jsonl.gz", gzip.compress(b'{"text": "one"}\n{"text": "two"}\n'))
    assert texts("s3://texts/plain") == lines(*SHARDS)
    assert texts("s3://texts/plain/part-*.txt") == lines(*SHARDS)
    assert texts("s3://texts/plain/part-2.txt") == lines("part-2.txt")
    table = Table(paths=("s3://texts/packed/*",), columns=("text",), fields=("text",))
    assert [record.fields for record in table.records(Problems())] == [("one",), ("two",)]
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["three", "four"]}), tmp_path / "t.parquet")
    bucket("t.parquet", (tmp_path / "t.parquet").read_bytes())
    table = Table(paths=("s3://texts/t.parquet",), columns=("text",), fields=("text",))
    assert [record.fields for record in table.records(Problems())] == [("three",), ("four",)]
    with pytest.raises(DataError, match=r"s3://texts/none: there is no such file"):
        texts("s3://texts/none")
