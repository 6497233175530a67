"""Preparing: from files of every kind to stores and tokenisers, once for the same content, and nothing half made."""

import gzip
import io
import json
import shutil
from dataclasses import replace

import pytest

from clearhead.errors import ClearheadError, DataError, OptionError, RunError
from clearhead.text import preparing
from clearhead.text.encoding import Corpus, Encoding
from clearhead.text.lines import spool
from clearhead.text.preparing import Tokenizing, content_key, describe_changes, open_prepared, prepare
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.validation_split import is_drawn
from clearhead.training.tasks import TASKS

DE = [f"das Haus {i} größer" for i in range(60)]
EN = [f"the house {i} larger" for i in range(60)]
LABELS = ["warm", "cold", "größer"]
BYTE = Tokenizing(kind="byte")
LAYOUTS = {name: task.layout(64) for name, task in TASKS.items()}
TEXT = LAYOUTS["generate"]
LABELLED = {"columns": ("text", "label"), "fields": ("text", "label")}


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        text = content if isinstance(content, str | bytes) else "".join(f"{line}\n" for line in content)
        raw = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return str(path)

    return write


@pytest.fixture
def ready(tmp_path):
    """Prepares a corpus, and remembers what was told."""

    def make(source, layout=TEXT, tokenizing=BYTE, **corpus):
        make.told = []
        made = prepare(Corpus(train=source, **corpus), layout, tokenizing, tmp_path / "data", make.told.append)
        return made

    return make


def rows(store, tokenizers):
    """A store as texts: a tuple for each record, its label as a number."""
    found = []
    for i in range(len(store)):
        ids = {name: store[name][i].tolist() for name in store.fields}
        found.append(tuple(tokenizers[name].decode(one) if name in tokenizers else one[0] for name, one in ids.items()))
    return found


def both(prepared):
    return [rows(store, prepared.tokenizers) for store in (prepared.train, prepared.dev)]


def check_split(found, records, held_out):
    """Check that both sides together are all records, each in the order of the corpus, with so many held out."""
    train, dev = found
    assert len(dev) == held_out
    assert dev == [record for record in records if record in dev]
    assert train == [record for record in records if record not in dev]


def by_aligned(file, end):
    return Aligned(source=(file(f"de{end}", DE),), target=(file(f"en{end}", EN),))


def by_table(name, line):
    def make(file, end):
        head = [] if name == "jsonl" else [line("source", "target")]
        content = head + [line(*pair) for pair in zip(DE, EN, strict=True)]
        path = file(f"table.{name}{end}", content)
        return Table(paths=(path,), columns=("source", "target"), fields=("source", "target"))

    return make


PAIRED = {
    "aligned": by_aligned,
    "tsv": by_table("tsv", lambda one, two: f"{one}\t{two}"),
    "csv": by_table("csv", lambda one, two: f'"{one}","{two}"'),
    "jsonl": by_table("jsonl", lambda one, two: json.dumps({"target": two, "source": one})),
}


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("make", PAIRED.values(), ids=PAIRED.keys())
def test_pairs_from_every_kind_of_file(file, ready, make, end):
    prepared = ready(make(file, end), LAYOUTS["translate"])
    check_split(both(prepared), list(zip(DE, EN, strict=True)), 3)
    assert [prepared.train.sizes[name].text_bytes for name in ("source", "target")] == [
        sum(len(line.encode()) for line in side) for side in zip(*both(prepared)[0], strict=True)
    ]
    assert ready.told[0] == "60 records, 0.0 MB of text"


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("task", ["generate", "fill"])
@pytest.mark.slow
def test_documents_of_a_line(file, ready, task, end):
    prepared = ready(Documents(paths=(file(f"text{end}", DE),), unit="line"), LAYOUTS[task])
    check_split(both(prepared), [(line,) for line in DE], 3)
    assert prepared.dev.sizes["text"].text_bytes == sum(len(line.encode()) for (line,) in both(prepared)[1])
    ends = [
        store["text"].ids.tolist().count(prepared.tokenizers["text"].end) for store in (prepared.train, prepared.dev)
    ]
    assert ends == ([57, 3] if task == "generate" else [0, 0])


def test_documents_of_a_file(file, ready):
    text = "".join(f"{line}\n" for line in DE)
    source = Documents(paths=(file("text", text),), unit="file")
    prepared = ready(source)
    [[[train]], [[dev]]] = both(prepared)
    assert train + dev == text
    assert len(dev.encode()) == -(-len(text.encode()) // 10)
    sizes = [store.sizes["text"] for store in (prepared.train, prepared.dev)]
    assert [size.text_bytes for size in sizes] == [len(train.encode()), len(dev.encode())]
    assert [size.tokens for size in sizes] == [len(train.encode()) + 1, len(dev.encode()) + 1]


def test_labels_are_sorted_whatever_comes_first(file, ready):
    records = [(line, LABELS[i % 3]) for i, line in enumerate(DE)]
    source = Table(paths=(file("t.tsv", ["text\tlabel", *map("\t".join, records)]),), **LABELLED)
    prepared = ready(source, LAYOUTS["classify"])
    assert prepared.labels == ("cold", "größer", "warm")
    check_split(both(prepared), [(text, sorted(LABELS).index(label)) for text, label in records], 3)
    assert {label for _, label in both(prepared)[1]} == {0, 1, 2}


def labelled(file, name, labels):
    return Table(
        paths=(file(name, ["text\tlabel", *(f"t{i}\t{label}" for i, label in enumerate(labels))]),), **LABELLED
    )


def test_labels_that_only_the_dev_file_has_are_told_by_their_place(file, ready):
    train, dev = labelled(file, "train.tsv", "aabb"), labelled(file, "dev.tsv", "abcad")
    with pytest.raises(DataError, match=r"2 lines cannot be used \(unknown label: 2\)\n.*dev\.tsv:4: the label 'c'"):
        ready(train, LAYOUTS["classify"], dev=dev)
    prepared = ready(train, LAYOUTS["classify"], dev=dev, skip_bad=True)
    assert rows(prepared.dev, prepared.tokenizers) == [("t0", 0), ("t1", 1), ("t3", 0)]
    assert prepared.notes["dev_skipped"] == {"unknown label": 2}
    assert ready.told[1] == "3 held-out records; 2 left out: unknown label"


def test_one_label_is_no_choice(file, ready):
    with pytest.raises(DataError, match=r"train\.tsv: every record has the label 'a'; there must be two or more"):
        ready(labelled(file, "train.tsv", "aaaa"), LAYOUTS["classify"])


def test_a_column_of_other_text_is_no_label(file, ready, monkeypatch):
    monkeypatch.setattr(preparing, "MOST_LABELS", 3)
    with pytest.raises(DataError, match=r"train\.tsv:5: more than 3 different labels; is 'label' the right column"):
        ready(labelled(file, "train.tsv", "abcdef"), LAYOUTS["classify"])


def test_bad_lines_are_told_or_counted(file, ready):
    content = "\n".join(DE).encode() + b"\n\xff\xfe\nnu\0l\nlast\n"
    source = Documents(paths=(file("text", content),), unit="line")
    with pytest.raises(DataError, match=r"2 lines cannot be used .*\n.*text:61: invalid UTF-8.*\n.*text:62: .*NUL"):
        ready(source)
    prepared = ready(source, skip_bad=True)
    assert prepared.notes["skipped"] == {"invalid UTF-8": 1, "NUL character": 1}
    assert ready.told == ["61 records, 0.0 MB of text; 1 left out: invalid UTF-8; 1 left out: NUL character"]
    check_split(both(prepared), [(line,) for line in [*DE, "last"]], 3)


def test_what_became_of_records_is_told(file, ready):
    source = Documents(paths=(file("text", [*DE, "x" * 70, DE[10]]),), unit="line")
    prepared = ready(source, replace(LAYOUTS["fill"], too_long="drop"))
    assert ready.told[1:] == ["1 records have more than 62 tokens: they are left out"]
    assert {name: prepared.notes[name] for name in ("too_long", "copies", "without_tokens")} == {
        "too_long": 1,
        "copies": 0,
        "without_tokens": 0,
    }
    assert not set(both(prepared)[0]) & set(both(prepared)[1])
    alike = ready(Documents(paths=(file("alike", ["a", "b"] * 30),), unit="line"), LAYOUTS["fill"])
    assert ready.told[1] == (
        "WARNING: 3 held-out records have the text of training records, since there are too few different texts: their "
        "scores will be too high; give more text, or a dev file"
    )
    assert alike.notes["copies"] == 3
    assert len(alike.train) + len(alike.dev) == 60


def test_another_rule_of_holding_out_is_another_key(file, monkeypatch):
    corpus = Corpus(train=Documents(paths=(file("text", DE),), unit="line"))
    before = preparing.content_key(corpus, TEXT, BYTE)
    monkeypatch.setattr(preparing, "RULE", (*preparing.RULE, "changed"))
    assert preparing.content_key(corpus, TEXT, BYTE) != before


@pytest.mark.parametrize("content", ["", "\n \n\t\n", b"\xef\xbb\xbf"], ids=["empty", "blank", "a mark"])
def test_a_file_without_text_is_told(file, ready, content):
    with pytest.raises(DataError, match=r"text: (the file is empty|there is no usable record)"):
        ready(Documents(paths=(file("text", content),), unit="line"))


def test_one_record_is_enough_only_with_a_dev_file(file, ready):
    one = Documents(paths=(file("text", ["ein Haus"]),), unit="line")
    with pytest.raises(DataError, match="one record cannot be split into training and held-out ones"):
        ready(one, LAYOUTS["fill"])
    assert both(ready(one, LAYOUTS["fill"], dev=one)) == [[("ein Haus",)], [("ein Haus",)]]


def test_a_corpus_without_the_fields_is_told(file, ready):
    with pytest.raises(OptionError, match="records of text and label are needed; these have text"):
        ready(Documents(paths=(file("text", DE),)), LAYOUTS["classify"])
    with pytest.raises(OptionError, match="records of text are needed; these have source and target"):
        ready(Documents(paths=(file("text", DE),)), TEXT, dev=by_aligned(file, ""))


def test_stdin_is_read_again_and_again_once_it_is_spooled(ready, tmp_path, monkeypatch):
    class Stdin:
        buffer = io.BytesIO("".join(f"{line}\n" for line in DE).encode())

    monkeypatch.setattr("sys.stdin", Stdin())
    source = Documents(paths=(spool("-", tmp_path),), unit="line")
    check_split(both(ready(source)), [(line,) for line in DE], 3)
    assert len(ready(source).train) == 57


def test_it_is_made_once(file, ready, monkeypatch):
    source = Documents(paths=(file("text", DE),), unit="line")
    first = ready(source)

    def no_reading(self, problems):
        raise AssertionError("the files were read again")

    monkeypatch.setattr(Documents, "records", no_reading)
    second = ready(source)
    assert both(second) == both(first)
    assert second.notes == first.notes
    assert ready.told == []
    file("text", [*DE, "one more"])
    with pytest.raises(AssertionError, match="read again"):
        ready(source)


def test_the_key_names_all_that_the_ids_are_made_of(file, tmp_path):
    source = Documents(paths=(file("text", DE),), unit="line")
    corpus, tokenizing = Corpus(train=source), Tokenizing()
    given = file("tokenizer.json", Tokenizer.train(DE, "byte").to_json())
    keys = [
        content_key(*parts)
        for parts in (
            (corpus, TEXT, tokenizing),
            (replace(corpus, dev=source), TEXT, tokenizing),
            (replace(corpus, skip_bad=True), TEXT, tokenizing),
            (Corpus(train=replace(source, unit="file")), TEXT, tokenizing),
            (corpus, replace(TEXT, most=9), tokenizing),
            (corpus, TEXT, replace(tokenizing, kind="char")),
            (corpus, TEXT, replace(tokenizing, given=given)),
        )
    ]
    file("tokenizer.json", Tokenizer.train(DE, "char").to_json())
    keys.append(content_key(corpus, TEXT, replace(tokenizing, given=given)))
    file("text", [*DE[:-1], "other"])
    keys.append(content_key(corpus, TEXT, tokenizing))
    assert len(set(keys)) == len(keys)
    file("text", DE)
    assert content_key(corpus, TEXT, tokenizing) == keys[0]
    (tmp_path / "text").unlink()
    with pytest.raises(DataError, match="text: there is no such file"):
        content_key(corpus, TEXT, tokenizing)


def test_changes_of_the_files_are_named(file, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text("\n".join(DE), encoding="utf-8")
    corpus = Corpus(train=Documents(paths=(str(folder),), unit="line"))
    prepared = prepare(corpus, TEXT, Tokenizing(), tmp_path / "data", lambda _: None)
    texts = prepared.notes["texts"]
    assert describe_changes(texts, corpus) is None
    (folder / "d").write_text("more")
    (folder / "b").write_text("other")
    assert describe_changes(texts, corpus) == f"{folder}/b was changed, {folder}/d is new"
    (folder / "c").unlink()
    assert describe_changes(texts, corpus) == f"{folder}/b was changed, {folder}/c is gone"
    for name in "abd":
        (folder / name).unlink()
    assert describe_changes(texts, corpus) is None  # cleared away
    assert describe_changes({}, corpus) is None  # prepared by an earlier version


STAGES = ["make_tokenizers", "save_tokenizers", "describe_losses", "Encoding"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_crash_leaves_nothing_that_is_taken_for_whole(file, ready, tmp_path, monkeypatch, stage):
    source = Documents(paths=(file("text", DE),), unit="line")
    with monkeypatch.context() as patch:
        patch.setattr(preparing, stage, interrupt)
        with pytest.raises(KeyboardInterrupt):
            ready(source)
    assert not [path for path in (tmp_path / "data").glob("*") if not path.name.endswith(".parts")]
    assert len(ready(source).train) == 57
    [home] = (tmp_path / "data").iterdir()
    assert sorted(path.name for path in home.iterdir()) == ["dev", "tokenizer.json", "train", "whole.json"]


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("n", [0, 1, 30])
def test_a_crash_while_ids_are_written(file, ready, tmp_path, monkeypatch, n):
    """At the first record, at the second, and in the midst of them: what was written is thrown away."""
    source = Documents(paths=(file("text", DE),), unit="line")
    add, left = Encoding.add, iter(range(n))

    def crashing(*parts):
        if next(left, None) is None:
            raise KeyboardInterrupt
        add(*parts)

    with monkeypatch.context() as patch:
        patch.setattr(Encoding, "add", crashing)
        with pytest.raises(KeyboardInterrupt):
            ready(source)
    assert not [path for path in (tmp_path / "data").iterdir() if not path.name.endswith(".parts")]
    check_split(both(ready(source)), [(line,) for line in DE], 3)


def test_what_another_run_has_written_meanwhile_is_taken(file, ready, tmp_path, monkeypatch):
    """Two runs that share a folder of ids prepare the same text at once: the second finds those of the first."""
    source = Documents(paths=(file("text", DE),), unit="line")
    write, others = preparing.write_prepared, []

    def write_after_another(*args, **named):
        if not others:
            others.append(None)
            others.append(ready(source))
        write(*args, **named)

    monkeypatch.setattr(preparing, "write_prepared", write_after_another)
    before = sorted(path.stat().st_ino for path in ready(source).train.folder.iterdir())
    [home] = (tmp_path / "data").iterdir()
    assert sorted(path.stat().st_ino for path in (home / "train").iterdir()) == before
    assert others[1].train.folder == home / "train"


@pytest.mark.parametrize("torn", ["", "{", "[1]", "{}", '{"tokenizers": 3, "labels": []}'])
def test_a_torn_note_is_told(file, ready, torn):
    source = Documents(paths=(file("text", DE),), unit="line")
    home = ready(source).train.folder.parent
    (home / "whole.json").write_text(torn)
    with pytest.raises(RunError, match=f"^{home}: there is no text prepared, or not all of it .*; remove the folder"):
        ready(source)


def test_a_folder_that_cannot_be_written_to_is_told(file, ready, tmp_path):
    source = Documents(paths=(file("text", DE),), unit="line")
    (tmp_path / "data").write_text("a file")
    with pytest.raises(RunError, match=r"data/\w+: cannot be written to \(Not a directory\); make room, or choose"):
        ready(source)


@pytest.mark.parametrize("kind", ["bpe", "metaspace", "unigram", "word", "char", "byte"])
def test_every_kind_of_tokeniser_chooses_its_own_size(file, ready, kind):
    """Five hundred different characters in a text so short that one would suggest 320 tokens."""
    wide = [chr(0x4E00 + i) + chr(0x4E00 + (i * 7) % 500) for i in range(500)]
    prepared = ready(Documents(paths=(file("text", wide),), unit="line"), tokenizing=Tokenizing(kind=kind))
    tokenizer = prepared.tokenizers["text"]
    assert tokenizer.kind == kind
    if kind != "word":
        check_split(both(prepared), [(line,) for line in wide], 25)


def test_a_vocabulary_that_is_too_small_is_told(file, ready):
    source = Documents(paths=(file("text", DE),), unit="line")
    with pytest.raises(OptionError, match=r"need a vocabulary of at least 282 tokens; came 100"):
        ready(source, tokenizing=Tokenizing(kind="metaspace", size=100))


def test_one_tokeniser_is_shared_or_each_side_has_its_own(file, ready):
    source = by_aligned(file, "")
    shared = ready(source, LAYOUTS["translate"], Tokenizing(kind="word"))
    assert shared.tokenizers["source"] is shared.tokenizers["target"]
    assert shared.notes["tokenizers"] == {"source": "tokenizer.json", "target": "tokenizer.json"}
    apart = ready(source, LAYOUTS["translate"], Tokenizing(kind="word", shared=False))
    de, en = (apart.tokenizers[name] for name in ("source", "target"))
    assert (de.unseen("das the"), en.unseen("das the")) == ("the", "das")
    assert both(apart) == both(shared)
    assert apart.notes["tokenizers"] == {"source": "tokenizer.source.json", "target": "tokenizer.target.json"}


def test_a_given_tokeniser_is_used_as_it_is(file, ready):
    given = Tokenizer.train(["ganz andere Wörter"], "char")
    source = Documents(paths=(file("text", DE),), unit="line")
    prepared = ready(source, tokenizing=Tokenizing(given=file("given.json", given.to_json())))
    assert prepared.tokenizers["text"].fingerprint() == given.fingerprint()
    assert prepared.train["text"][0].tolist() == [*given.encode(DE[0]), given.end]
    with pytest.raises(DataError, match=r"broken\.json:1: not JSON"):
        ready(source, tokenizing=Tokenizing(given=file("broken.json", "{")))


@pytest.mark.slow
def test_of_a_large_corpus_the_tokeniser_sees_a_sample(file, ready, monkeypatch):
    lines = [f"{i:>1000}" for i in range(2_500)]
    source = Documents(paths=(file("text", lines),), unit="line")
    seen, made = [], Tokenizer.train(["0123456789"], "char")

    def learned(texts, kind, size, *, lower, size_factor):
        seen.extend(texts)
        return made

    monkeypatch.setattr(preparing.Tokenizer, "train", learned)
    ready(source, tokenizing=Tokenizing(sample_mb=1))
    assert [int(line) // 2 for line in seen] == list(range(1_250)), "one of each two neighbours"
    assert 500 < sum(int(line) % 2 for line in seen) < 750, "and not always the first of them"
    assert ready.told[0] == "the tokeniser is trained on one record in 2, drawn by hash"
    with pytest.raises(OptionError, match="sample_mb must be 1 or more; came 0"):
        Tokenizing(sample_mb=0)


def test_lower_case_goes_into_the_ids(file, ready):
    source = Documents(paths=(file("text", ["Das HAUS"] * 19 + ["Ein Garten"] * 21),), unit="line")
    prepared = ready(source, tokenizing=Tokenizing(kind="word", lower=True))
    assert rows(prepared.train, prepared.tokenizers)[0] == ("das haus",)


def test_problems_come_before_anything_is_written(file, ready, tmp_path):
    pairs = Aligned(source=(file("de", DE),), target=(file("en", EN[:-1]),))
    for source, layout in (
        (pairs, LAYOUTS["translate"]),
        (Documents(paths=(file("text", b"\xff\n"),), unit="line"), TEXT),
        (labelled(file, "t.tsv", "a"), LAYOUTS["classify"]),
    ):
        with pytest.raises(ClearheadError):
            ready(source, layout)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("shared", [True, False])
def test_the_sample_takes_the_fields_it_is_asked_for(file, ready, monkeypatch, shared):
    seen, made = [], Tokenizer.train(["any"], "byte")
    monkeypatch.setattr(preparing, "estimate_bytes", lambda source: 7_000_000)
    monkeypatch.setattr(preparing.Tokenizer, "train", lambda texts, *_, **__: seen.append(list(texts)) or made)
    ready(by_aligned(file, ""), LAYOUTS["translate"], Tokenizing(sample_mb=1, shared=shared))
    drawn = [number for number in range(60) if is_drawn(number, 7)]
    sides = [[side[number] for number in drawn] for side in (DE, EN)]
    assert seen == ([[text for pair in zip(*sides, strict=True) for text in pair]] if shared else sides)


BENT = {
    "ids": lambda home: flip(home / "train" / "text.ids"),
    "the held-out ends": lambda home: flip(home / "dev" / "text.ends"),
    "the tokeniser": lambda home: replace_in(home / "tokenizer.json", '"a"', '"b"'),
    "train for dev": lambda home: shutil.copytree(home / "train", home / "dev", dirs_exist_ok=True),
    "a label": lambda home: replace_in(home / "whole.json", '"too_long": 0', '"too_long": 1'),
}


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replace_in(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize("bend", BENT.values(), ids=BENT.keys())
def test_nothing_that_was_changed_is_trained_on(file, ready, bend):
    source = Documents(paths=(file("text", DE),), unit="line")
    home = ready(source).train.folder.parent
    bend(home)
    with pytest.raises(RunError, match=rf"^{home}.*; remove (it|the folder), and a new training makes it anew"):
        ready(source)


def test_ids_of_another_text_are_not_taken_for_these(file, ready):
    home = ready(Documents(paths=(file("text", DE),), unit="line")).train.folder.parent
    moved = home.rename(home.with_name("0" * 24))
    with pytest.raises(RunError, match=r"it was made as \w+, and lies in another place now"):
        open_prepared(moved)


def test_a_device_is_no_tokeniser(file, ready):
    source = Documents(paths=(file("text", DE),), unit="line")
    with pytest.raises(DataError, match=r"/dev/zero: cannot be read \(it is no regular file\)"):
        ready(source, tokenizing=Tokenizing(given="/dev/zero"))
