"""To classify: whatever draws records sees labels that are in step with the lines, and what no score says is told."""

import json
from dataclasses import replace

import pytest

from clearhead.text.preparing import Corpus, Tokenizing, prepare
from clearhead.text.sources import Table
from clearhead.training import Machine, default_recipe, train
from clearhead.training.recipe import Batching, Budget, Checkpointing
from clearhead.training.tasks import Classify
from clearhead.training.tasks import classify as module
from tests.training.small_runs import write_lines

COLUMNS = ("text", "label")


def table(folder, name, labels):
    lines = ["text\tlabel", *(f"text {name} {i} {label}\t{label}" for i, label in enumerate(labels))]
    return Table(paths=(write_lines(folder / f"{name}.tsv", lines),), columns=COLUMNS, fields=COLUMNS)


@pytest.fixture
def in_step(tmp_path):
    """A corpus with the labels a, b, c, d in turn, prepared, and its task."""
    corpus = Corpus(train=table(tmp_path, "train", "abcd" * 100))
    prepared = prepare(corpus, Classify.layout(32), Tokenizing(kind="word"), tmp_path, lambda _: None)
    return corpus, prepared, Classify.of(prepared, 32)


def test_counts_are_printed_on_either_side(in_step):
    _, prepared, task = in_step
    assert task.describe_records(prepared) == [
        "4 labels in 380 training records: 'a' 95, 'b' 95, 'c' 95, 'd' 95",
        "20 dev records: 'a' 5, 'b' 5, 'c' 5, 'd' 5",
    ]


def test_the_linear_model_learns_from_every_label(in_step, monkeypatch):
    """Every fourth record had one label, and the line to beat was far too low."""
    corpus, prepared, task = in_step
    monkeypatch.setattr(module, "most_records", lambda *_: 95)
    fitted = task.baseline(corpus, prepared)
    assert fitted.score.records == 95
    assert fitted.score.accuracy == 1


def test_in_little_time_the_linear_model_learns_from_fewer_records(in_step, monkeypatch):
    """As many as the time of a pilot says; without time, from those of the pilot, and to one step of its fit."""
    corpus, prepared, task = in_step
    monkeypatch.setattr(module, "PILOT_TOKENS", prepared.train.sizes["text"].tokens // 10)
    assert [task.baseline(corpus, prepared, seconds=seconds).score.records for seconds in (0.0, 1e3)] == [38, 380]


@pytest.mark.parametrize(
    ("dev", "told"),
    [
        ("aab", "3 dev records: 'a' 2, 'b' 1; no dev record has 'c', 'd': scores say nothing about them"),
        ("aa", "2 dev records: 'a' 2; they have one label only: accuracy says nothing about the others"),
    ],
)
def test_a_label_that_no_dev_record_has_is_named(tmp_path, dev, told):
    """All of them right was "accuracy 100.0 %", and nothing said of what."""
    corpus = Corpus(train=table(tmp_path, "train", "abcd" * 20), dev=table(tmp_path, "dev", dev))
    recipe = default_recipe("classify", corpus, Machine(device="cpu", threads=1))
    recipe = replace(
        recipe,
        batching=Batching(tokens=512, context=32),
        budget=Budget(steps=2),
        checkpointing=Checkpointing(evaluate=1, log=1, samples=0),
    )
    said = []
    run = train(tmp_path / "run", recipe, log=said.append)
    assert told in said
    assert any("macro F1" in line for line in said if line.startswith("the line to beat"))
    lines = [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]
    scores = [line["scores"] for line in lines if "scores" in line]
    assert scores
    assert all(score["labels_asked"] == len(set(dev)) and 0 <= score["macro_f1"] <= 1 for score in scores)
    assert run.folder.read_evaluation()["linear"].keys() == {"accuracy", "macro_f1", "features"}
