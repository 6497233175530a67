"""What trains: the plan and shape of batches, and the counts of labels that are printed before."""

import pytest

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.text.preparing import Corpus, Layout, Tokenizing, prepare
from clearhead.text.sources import Table
from clearhead.training.scores import Measure
from clearhead.training.tasks.learning import count_labels, describe_labels
from tests.training.small_runs import write_lines
from tests.training.tasks.echo import Echo, echo_task


def test_it_takes_an_encoder_of_its_vocabulary():
    task = echo_task()
    assert task.fitted(presets.bert("tiny", vocabulary=9)).vocabulary == task.tokenizer.vocabulary
    with pytest.raises(OptionError, match="to echo takes an encoder; the model is a Decoder"):
        task.fitted(presets.gpt2("tiny", vocabulary=9))


def test_the_best_checkpoint_has_most_of_its_score_or_the_least_loss():
    assert echo_task().goal({"accuracy": 0.5}, 2.0) == 0.5
    assert echo_task().goal({}, 2.0) == -2.0


def test_the_best_checkpoint_has_least_of_a_score_that_is_an_error():
    class Error(Echo):
        measures = (Measure("word_error", "word error %", 100, higher=False),)
        best_by = "word_error"

    assert Error(tokenizers={}, context=8).goal({"word_error": 0.25}, 2.0) == -0.25


LABELLED = Layout(texts=("text",), label="label")


@pytest.fixture
def lines(tmp_path):
    """Return the lines about so many records of each label on either side."""

    def table(name, labels, counts):
        rows = [label for label, count in zip(labels, counts, strict=True) for _ in range(count)]
        path = write_lines(tmp_path / name, ["text\tlabel", *(f"{name} {i}\t{label}" for i, label in enumerate(rows))])
        return Table(paths=(path,), columns=("text", "label"), fields=("text", "label"))

    def describe(train, dev, labels):
        corpus = Corpus(train=table("train.tsv", labels, train), dev=table("dev.tsv", labels, dev))
        prepared = prepare(corpus, LABELLED, Tokenizing(kind="byte"), tmp_path / "data", lambda _: None)
        return describe_labels(labels, prepared, "label")

    return describe


@pytest.mark.parametrize(
    ("dev", "told"),
    [
        ((1, 2, 3), "6 dev records: 'c' 3, 'b' 2, 'a' 1"),
        ((1, 2, 0), "3 dev records: 'b' 2, 'a' 1; no dev record has 'c': scores say nothing about them"),
        ((0, 2, 0), "2 dev records: 'b' 2; they have one label only: accuracy says nothing about the others"),
    ],
)
def test_dev_records(lines, dev, told):
    assert lines((30, 40, 50), dev, "abc")[1] == told


def test_rare_labels_are_named(lines):
    assert lines((30, 3), (1, 1), "ab")[0] == (
        "2 labels in 33 training records: 'a' 30, 'b' 3; too rare to be learned well: 'b'. Accuracy says little about "
        "them: see macro F1"
    )


def test_of_many_labels_the_most_frequent_and_the_rarest_are_counted():
    told = count_labels([f"l{i}" for i in range(50)], range(1, 51))
    assert told.startswith("'l49' 50, 'l48' 49, ")
    assert told.endswith("'l1' 2, 'l0' 1")
    assert told.count(",") == 20
    assert ", …, " in told
