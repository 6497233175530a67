"""Parts: ids made by any number of processes, in any order, after any kill, are the same byte for byte."""

import itertools

import pytest

from clearhead.errors import DataError, RunError
from clearhead.files import read_sealed, write_sealed
from clearhead.text import parts, preparing
from clearhead.text.encoding import Corpus, Encoding, Layout
from clearhead.text.filtering import LengthFilter
from clearhead.text.parts import PartJob, Team, divide, encode_parts
from clearhead.text.preparing import Tokenizing, load_tokenizers, prepare
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.training.tasks import TASKS
from tests.text import killed_on_shards

BPE = Tokenizing(kind="bpe", size=300)
ONE_LABEL = {"labels": ["a"], "problems": {"first": [], "counts": {}, "encodings": {}}}
LABELLED = {"columns": ("text", "label"), "fields": ("text", "label")}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 150)
    monkeypatch.setattr(parts, "GLANCE_SECONDS", 0.0)


def shards(folder, line, n=7, head=""):
    """Files of different lengths, of which some are smaller than a part."""
    paths = [folder / f"shard-{i}.tsv" for i in range(n)]
    for i, path in enumerate(paths):
        path.write_text(head + "".join(f"{line(i, j)}\n" for j in range(1 + 5 * i)))
    return tuple(map(str, paths))


def corpora(folder):
    def made(name):
        (folder / name).mkdir()
        return folder / name

    lines = shards(made("lines"), lambda i, j: f"text {i} line {j} größer")
    sides = [shards(made(side), lambda i, j, side=side: f"{side} {i} {j}") for side in ("de", "en")]
    classes = shards(made("classes"), lambda i, j: f"text {i} {j}\t{'abcd'[(i * j) % 4]}", head="text\tlabel\n")
    tags = shards(made("tags"), lambda i, j: f"unwordly {i} {j}\tA B {'CD'[j % 2]}", head="text\tlabel\n")
    word = Layout(texts=("text",), label="label", most=12, too_long="drop", label_of="subword")
    return {
        "stream": (Documents(paths=lines, unit="line"), TASKS["generate"].layout(16)),
        "files": (Documents(paths=lines, unit="file"), TASKS["generate"].layout(16)),
        "split": (Documents(paths=lines, unit="file"), TASKS["fill"].layout(16)),
        "pairs": (Aligned(source=sides[0], target=sides[1]), TASKS["translate"].layout(32)),
        "classes": (Table(paths=classes, **LABELLED), TASKS["classify"].layout(16)),
        "words": (Table(paths=tags, **LABELLED), word),
    }


def files_below(home):
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def team_of(count, order):
    """Processes that encode before the first does, in this order, each with tokenisers that it has loaded."""

    def announce(job):
        for rank in order:
            encode_parts(job, load_tokenizers(job.folder.parent), rank, count)

    return Team(count, announce)


@pytest.mark.parametrize("name", ["stream", "files", "split", "pairs", "classes", "words"])
@pytest.mark.slow
def test_any_number_of_processes_makes_the_same_bytes(name, tmp_path):
    source, layout = corpora(tmp_path)[name]
    assert len(divide(source)) > 3
    teams = {"1": Team(), "2": team_of(2, [1]), "3": team_of(3, [2, 1]), "9": team_of(9, [4, 8, 1, 2, 7, 5, 3, 6])}
    for count, team in teams.items():
        told = []
        prepare(Corpus(train=source), layout, BPE, tmp_path / "data" / count, told.append, team=team)
        teams[count] = files_below(tmp_path / "data" / count), told
    assert all(found == teams["1"] for found in teams.values())


def test_filters_and_copies_go_alike_in_any_number_of_processes(tmp_path):
    """Each shard has lines of its neighbours, so copies are far from the first, in other parts."""
    paths = shards(tmp_path, lambda i, j: f"text {(i + j) % 12} line {j % 8} größer")
    corpus = Corpus(train=Documents(paths=paths, unit="line"), filters=(LengthFilter(most=20),), deduplicate="near")
    layout, found = TASKS["generate"].layout(16), []
    for count, team in {1: Team(), 3: team_of(3, [2, 1]), 9: team_of(9, [4, 8, 1, 2, 7, 5, 3, 6])}.items():
        told = []
        prepared = prepare(corpus, layout, BPE, tmp_path / "data" / str(count), told.append, team=team)
        found.append((files_below(tmp_path / "data" / str(count)), told, dict(prepared.notes["left_out"])))
    assert found[0][2].keys() == {"copies", "LengthFilter: too long"}
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_one_part_or_many_make_the_same_bytes(tmp_path, monkeypatch):
    for name, (source, layout) in corpora(tmp_path).items():
        made = []
        for size in (150, 1 << 30):
            monkeypatch.setattr(parts, "PART_BYTES", size)
            prepare(Corpus(train=source), layout, BPE, tmp_path / f"{name}-{size}", print)
            made.append(files_below(tmp_path / f"{name}-{size}"))
        assert made[0] == made[1]


@pytest.mark.slow
def test_text_is_read_once_with_a_tokeniser_and_twice_without(tmp_path, monkeypatch):
    source, layout = corpora(tmp_path)["stream"]
    read, records = [], Documents.records

    def counting(self, problems):
        read.extend(self.files)
        yield from records(self, problems)

    monkeypatch.setattr(Documents, "records", counting)
    prepare(Corpus(train=source), layout, BPE, tmp_path / "one", print)
    assert sorted(read) == sorted(2 * source.files)
    read.clear()
    [home] = (tmp_path / "one").iterdir()
    prepare(Corpus(train=source), layout, Tokenizing(given=str(home / "tokenizer.json")), tmp_path / "two", print)
    assert sorted(read) == sorted(source.files)


@pytest.mark.parametrize("written", [0, 1, 3])
def test_parts_that_are_whole_are_not_made_again(tmp_path, monkeypatch, written):
    source, layout = corpora(tmp_path)["stream"]
    corpus, write, made = Corpus(train=source), parts.write_part, []

    def stopping(source, job, tokenizers, folder):
        if len(made) == written:
            raise KeyboardInterrupt
        made.append(folder.name)
        write(source, job, tokenizers, folder)

    with monkeypatch.context() as patch:
        patch.setattr(parts, "write_part", stopping)
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, layout, BPE, tmp_path / "data", print)
    assert (tmp_path / "data").exists() == (written > 0)
    again = []
    monkeypatch.setattr(parts, "write_part", lambda *given: again.append(given[3].name) or write(*given))
    if written:
        monkeypatch.setattr(preparing, "train_tokenizers", lambda *_: pytest.fail("the tokeniser was there"))
    prepare(corpus, layout, BPE, tmp_path / "data", print)
    assert sorted(made + again) == [f"{i:06}" for i in range(len(divide(source)))]
    assert [path.name for path in (tmp_path / "data").iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_what_is_wrong_is_told_of_all_parts_together(tmp_path):
    paths = shards(tmp_path, lambda i, j: "text")
    for i in (2, 5):
        with open(paths[i], "ab") as file:
            file.write(b"\xff\n")
    corpus = Corpus(train=Documents(paths=paths, unit="line"))
    layout, given = TASKS["generate"].layout(16), Tokenizing(kind="byte")
    with pytest.raises(DataError, match=r"2 lines cannot be used(.|\n)*shard-2\.tsv:12(.|\n)*shard-5\.tsv:27"):
        prepare(corpus, layout, given, tmp_path / "data", print)
    assert not (tmp_path / "data").exists()


def test_a_part_that_was_changed_is_told(tmp_path):
    source, layout = corpora(tmp_path)["stream"]
    tokenizer = preparing.Tokenizer.train(["any"], "byte")
    encode_parts(PartJob(source, layout, None, False, tmp_path / "parts").divided(), {"text": tokenizer}, 0, 1)
    file = tmp_path / "parts" / "000001" / "text.ids"
    file.write_bytes(file.read_bytes()[:-2] + b"\x01\x00")
    with pytest.raises(RunError, match="not a whole store of token ids"):
        parts.EncodedPart(file.parent, Encoding(layout, {"text": tokenizer}, None))


def killed_half_way(folder, source, layout, monkeypatch):
    """Prepare a corpus up to its fourth part; return the folder that a kill would leave."""
    write = parts.write_part

    def stopping(source, job, tokenizers, folder):
        if folder.name == "000003":
            raise KeyboardInterrupt
        write(source, job, tokenizers, folder)

    with monkeypatch.context() as patch:
        patch.setattr(parts, "write_part", stopping)
        with pytest.raises(KeyboardInterrupt):
            prepare(Corpus(train=source), layout, BPE, folder, print)
    [left] = folder.glob(".*.parts")
    return left


@pytest.mark.parametrize("name", ["", "train", "tokenizer.json"])
def test_nothing_is_written_through_a_link(tmp_path, monkeypatch, name):
    source, layout = corpora(tmp_path)["stream"]
    left = killed_half_way(tmp_path / "data", source, layout, monkeypatch)
    (left / name).rename(tmp_path / "users")
    (left / name).symlink_to(tmp_path / "users")
    before = files_below(tmp_path / "users") or (tmp_path / "users").read_bytes()
    prepare(Corpus(train=source), layout, BPE, tmp_path / "data", print)
    assert (files_below(tmp_path / "users") or (tmp_path / "users").read_bytes()) == before


@pytest.mark.parametrize(
    "changes", [{"vocabulary": {}}, {"notes": {}}, {"notes": ONE_LABEL}], ids=["size", "", "label"]
)
def test_a_part_of_another_corpus_is_told(tmp_path, monkeypatch, changes):
    source, layout = corpora(tmp_path)["classes"]
    store = killed_half_way(tmp_path / "data", source, layout, monkeypatch) / "train" / "000001" / "store.json"
    write_sealed(store, {name: one for name, one in read_sealed(store).items() if name != "sha256"} | changes)
    with pytest.raises(RunError, match=r"not a whole store of token ids|is no part of this corpus"):
        prepare(Corpus(train=source), layout, BPE, tmp_path / "data", print)
    prepare(Corpus(train=source), layout, BPE, tmp_path / "data", print)


def test_a_tokeniser_that_a_kill_left_is_checked(tmp_path, monkeypatch):
    source, layout = corpora(tmp_path)["classes"]
    file = killed_half_way(tmp_path / "data", source, layout, monkeypatch) / "tokenizer.json"
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(RunError, match=r"tokenizer\.json was changed since it was written"):
        prepare(Corpus(train=source), layout, BPE, tmp_path / "data", print)


@pytest.mark.slow
def test_a_process_that_sees_other_sizes_makes_the_same_parts(tmp_path, monkeypatch):
    """Of a shard whose store does not answer, a process knows no size: it goes by what the first has divided."""
    source, layout = corpora(tmp_path)["stream"]
    found = []
    for name in ("alike", "blind"):

        def announce(job, blind=name == "blind"):
            with monkeypatch.context() as patch:
                if blind:
                    patch.setattr(parts, "size_here", lambda path: 0)
                encode_parts(job, load_tokenizers(job.folder.parent), 1, 2)

        prepare(Corpus(train=source), layout, BPE, tmp_path / name, print, team=Team(2, announce))
        found.append(files_below(tmp_path / name))
    assert found[0] == found[1]


def test_parts_of_another_division_are_refused_and_removed(tmp_path):
    source, layout = corpora(tmp_path)["stream"]

    def announce(job):
        other = job._replace(shards=(4, 1, 1, 1))
        encode_parts(other, load_tokenizers(job.folder.parent), 0, 1)

    with pytest.raises(RunError, match=r"has 4 shards of the text, and should have \d; it is removed"):
        prepare(Corpus(train=source), layout, BPE, tmp_path / "data", print, team=Team(1, announce))
    assert not list(tmp_path.glob("data/.*.parts"))


def test_a_process_that_sees_fewer_shards_says_so(tmp_path):
    source, layout = corpora(tmp_path)["stream"]
    job = PartJob(source, layout, None, False, tmp_path / "parts").divided()
    with pytest.raises(RunError, match="the first process sees 7 shards of text, and this one 6"):
        job._replace(source=Documents(paths=source.paths[1:], unit="line")).parts()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_engine_makes_the_same_parts(tmp_path):
    """Ray Data: a row for each part. Another engine needs no more than `encode_parts` for a number."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    source, layout = corpora(tmp_path)["stream"]

    def announce(job):
        count = len(job.shards)

        def encode(batch):
            for number in batch["id"].tolist():
                encode_parts(job, load_tokenizers(job.folder.parent), number, count)
            return batch

        ray.data.range(count, override_num_blocks=count).map_batches(encode, batch_size=1).materialize()

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        prepare(Corpus(train=source), layout, BPE, tmp_path / "engine", print, team=Team(1, announce))
    finally:
        ray.shutdown()
    prepare(Corpus(train=source), layout, BPE, tmp_path / "alone", print)
    assert files_below(tmp_path / "engine") == files_below(tmp_path / "alone")


def test_parts_are_of_neighbours_and_lose_none(tmp_path):
    source, _ = corpora(tmp_path)["pairs"]
    found = [part.pairs() for part in divide(source)]
    assert list(itertools.chain.from_iterable(found)) == source.pairs()


@pytest.mark.parametrize(
    ("store", "kills"), [("web", 3), *(pytest.param(store, 20, marks=pytest.mark.thorough) for store in ("web", "s3"))]
)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_kills_change_nothing(tmp_path, monkeypatch, store, kills):
    for package in {"web": ("aiohttp",), "s3": ("s3fs", "moto", "flask")}[store]:
        pytest.importorskip(package)
    remote, parts = killed_on_shards.remote, killed_on_shards.parts
    for module, name in ((remote, "WAIT"), (remote, "SILENCE"), (parts, "PART_BYTES")):
        monkeypatch.setattr(module, name, getattr(module, name))  # main changes them; this puts them back
    for name in (remote.FOLDER, remote.GIGABYTES):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    killed_on_shards.main(tmp_path / "home", kills, store=store, seed=kills)


def test_labels_of_a_part_have_numbers_of_their_own():
    encoding = Encoding(Layout(texts=("text",), label="label"), {}, None)
    assert [encoding.number_of(label) for label in "baba"] == [1, 2, 1, 2]
