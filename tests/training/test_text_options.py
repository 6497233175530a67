"""The text options: what each task takes, what goes together, and the corpus that comes of it."""

import io
import sys
from types import SimpleNamespace

import pytest

from clearhead.errors import DataError, WordError
from clearhead.options import group_of, read_words, words_of
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import open_prepared
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.training.checkpoints import remove_folder
from clearhead.training.resume import resume
from clearhead.training.tasks import TASKS
from clearhead.training.text_options import TextOptions, as_corpus, ask_form, check_text, with_spooled
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.tiny import differences, quiet, recipe_for

CORPORA = [
    (
        "translate",
        {"source": ["a", "b"], "target": ["c", "d"]},
        Corpus(train=Aligned(source=("a", "b"), target=("c", "d"))),
    ),
    (
        "translate",
        {"source": ["a"], "target": ["b"], "dev_source": ["c"], "dev_target": ["d"], "skip_bad": True},
        Corpus(train=Aligned(source=("a",), target=("b",)), dev=Aligned(source=("c",), target=("d",)), skip_bad=True),
    ),
    (
        "translate",
        {"table": ["a.tsv"], "dev": ["b.tsv"], "columns": "de, en"},
        Corpus(
            train=Table(paths=("a.tsv",), columns=("de", "en"), fields=("source", "target")),
            dev=Table(paths=("b.tsv",), columns=("de", "en"), fields=("source", "target")),
        ),
    ),
    (
        "translate",
        {
            "source": ["a", "b"],
            "target": ["c", "d"],
            "repeats": "2, 1",
            "dev_source": ["e"],
            "dev_target": ["f"],
        },
        Corpus(
            train=Aligned(source=("a", "a", "b"), target=("c", "c", "d")),
            dev=Aligned(source=("e",), target=("f",)),
        ),
    ),
    (
        "classify",
        {"table": ["a"], "form": "csv"},
        Corpus(train=Table(paths=("a",), columns=("text", "label"), fields=("text", "label"), form="csv")),
    ),
    ("generate", {"text": ["a"]}, Corpus(train=Documents(paths=("a",), unit="file"))),
    ("generate", {"text": ["a"], "documents": "line"}, Corpus(train=Documents(paths=("a",), unit="line"))),
    ("generate", {"table": ["a.jsonl"]}, Corpus(train=Table(paths=("a.jsonl",), columns=("text",), fields=("text",)))),
    (
        "fill",
        {"text": ["a"], "dev": ["b"]},
        Corpus(train=Documents(paths=("a",), unit="line"), dev=Documents(paths=("b",), unit="line")),
    ),
]

WRONG = [
    ("translate", {}, "source", "translate takes --source with --target or --table"),
    *(
        ("generate", {"text": ["a", "b"], "dev": ["c"], "repeats": weights}, "repeats", message)
        for weights, message in (
            ("1,2,3", "there are 3 numbers, and 2 files with --text: give as many"),
            ("1,0", "takes whole numbers from 1 to 999,999, such as 3,1; came '1,0'"),
            ("1," + "9" * 5000, "takes whole numbers from 1 to 999,999, such as 3,1; came '1,99"),
            ("1,-1", "takes whole numbers from 1 to 999,999, such as 3,1; came '1,-1'"),
            ("0.5,", "takes whole numbers from 1 to 999,999, such as 3,1; came '0.5,'"),
        )
    ),
    (
        "generate",
        {"text": ["a", "b"], "repeats": "1,2"},
        "repeats",
        "a record that is read twice cannot be held out of training: give --dev",
    ),
    (
        "translate",
        {"source": ["a", "b"], "target": ["c"], "repeats": "1,2"},
        "repeats",
        "takes as many files with --target as with --source, one beside the other",
    ),
    ("translate", {"text": ["a"]}, "text", "translate takes --source with --target or --table"),
    ("translate", {"source": ["a"]}, "target", "--source needs its other side"),
    ("translate", {"target": ["a"]}, "source", "--target needs its other side"),
    (
        "translate",
        {"source": ["a"], "target": ["b"], "dev_target": ["c"]},
        "dev_source",
        "--dev-target needs its other side",
    ),
    (
        "translate",
        {"source": ["a"], "target": ["b"], "table": ["c"]},
        "source",
        "not --source with --target and --table together",
    ),
    ("translate", {"source": ["a"], "target": ["b"], "dev": ["c"]}, "dev", "goes with --table"),
    ("translate", {"table": ["a.csv"], "dev_source": ["b"]}, "dev_source", "goes with --source with --target"),
    ("translate", {"source": ["a"], "target": ["b"], "columns": "a,b"}, "columns", "goes with --table"),
    ("translate", {"table": ["a.csv"], "columns": "a"}, "columns", "takes 2, for source, target; came 'a'"),
    ("translate", {"source": ["-"], "target": ["-"]}, "-", "stdin can be read only once"),
    ("translate", {"table": ["a.csv"], "documents": "line"}, "documents", "is not for translate from --table"),
    ("classify", {"text": ["a"]}, "text", "classify takes --table"),
    ("classify", {"source": ["a"]}, "source", "classify takes --table"),
    ("classify", {"table": ["-"]}, "form", "a table from stdin has no name to tell its form by"),
    ("classify", {"table": ["a"], "form": "xml"}, "form", "there is no 'xml'; there are auto, tsv, csv, semicolon"),
    ("generate", {"text": ["a"], "form": "tsv"}, "form", "goes with --table"),
    ("generate", {"text": ["a"], "documents": "page"}, "documents", "there is no 'page'; there are line, file"),
    ("fill", {}, "text", "fill takes --text or --table"),
]


@pytest.mark.parametrize(("task", "options", "corpus"), CORPORA)
def test_the_corpus_is_what_was_named(task, options, corpus):
    check_text(TASKS[task], TextOptions(**options))
    assert as_corpus(TASKS[task], TextOptions(**options)) == corpus


@pytest.mark.parametrize(("task", "options", "option", "message"), WRONG)
def test_what_a_task_does_not_take_is_told_with_its_option(task, options, option, message):
    with pytest.raises(WordError) as caught:
        check_text(TASKS[task], group_of(TextOptions, read_words(options, words_of(TextOptions))))
    assert message in caught.value.problem
    assert caught.value.words == option


def test_stdin_is_kept_in_the_folder_and_files_stay_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\ntwo\n")))
    kept = with_spooled({"text": ["a.txt", "-"], "steps": 3}, tmp_path / "data")
    assert kept == {"text": ["a.txt", str(tmp_path / "data" / "stdin")], "steps": 3}
    assert (tmp_path / "data" / "stdin").read_text() == "one\ntwo\n"


@pytest.mark.slow
def test_weighted_files_are_read_so_often_and_a_resume_is_exact(tmp_path):
    """The whole way: options, a recipe, ids, training, a lost checkpoint, and the same bytes at the end."""
    rows = ("ab cd", "cd ef"), ("xy", "yz")
    for name, (text, label) in zip(("a", "b", "dev"), (*rows, rows[0]), strict=True):
        lines = [f"{text} {i % 3}\tone\n{label} {i % 5}\ttwo\n" for i in range(20)]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(lines))
    files = [str(tmp_path / f"{name}.tsv") for name in ("a", "b", "dev")]
    options = TextOptions(table=files[:2], repeats="3,1", dev=files[2:])
    check_text(TASKS["classify"], options)
    recipe = recipe_for(small_runs.classifying, tmp_path / "text", corpus=as_corpus(TASKS["classify"], options))
    runs = [train(tmp_path / name, recipe, log=quiet, watcher=quiet) for name in ("whole", "stopped")]
    store = open_prepared(runs[0].folder.data / runs[0].folder.read_description()["data"]).train
    assert len(store) == 3 * 40 + 40
    remove_folder(runs[1].folder.checkpoints.all()[0].folder)
    resume(tmp_path / "stopped", log=quiet, watcher=quiet)
    assert not differences(runs[0].folder, runs[1].folder)


def test_a_delimiter_in_doubt_is_asked_for_on_a_terminal_and_refused_elsewhere(tmp_path, monkeypatch):
    path = tmp_path / "table.txt"
    path.write_text("a,b;c\na,b;c\n")
    options = TextOptions(table=[str(path)], columns="1,2")
    with pytest.raises(DataError, match="say which: --form csv or --form semicolon"):
        as_corpus(TASKS["classify"], options).check()
    ask_form.cache_clear()
    answers = io.StringIO("tab\nsemicolon\n")
    answers.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", answers)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for _ in range(2):  # a recipe is made twice; the question comes once
        assert as_corpus(TASKS["classify"], options).train.form == "semicolon"
    ask_form.cache_clear()


def test_a_file_of_fasttexts_has_all_its_labels_for_label_and_one_for_classify(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("__label__a __label__b text\n")
    options = TextOptions(table=[str(path)])
    assert as_corpus(TASKS["label"], options).train.columns == ("text", "labels")
    assert as_corpus(TASKS["classify"], options).train.columns == ("text", "label")
