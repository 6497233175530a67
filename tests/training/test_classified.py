"""A classifier as a filter of text."""

from types import SimpleNamespace

import pytest

from clearhead.errors import OptionError
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing, content_key
from clearhead.text.sources import Documents
from clearhead.training import classified
from clearhead.training.classified import ClassifierFilter
from clearhead.training.tasks import TASKS
from tests.training import small_runs


def test_records_with_another_label_are_left_out(tmp_path_factory):
    folder = str(small_runs.trained(small_runs.classifying, tmp_path_factory).folder.path)
    records = [["red plum", "x"], ["old dog"], ["old apple"]]
    assert ClassifierFilter(run=folder, label="fruit").judge(records) == [None, "not fruit", None]
    assert ClassifierFilter(run=folder, label="beast").judge(records) == ["not beast", None, "not beast"]
    assert ClassifierFilter(run=folder, label="fruit", least=1.0).refuses(["old dog"]) == "not fruit"
    with pytest.raises(OptionError, match="has no label 'tree'; it has"):
        ClassifierFilter(run=folder, label="tree").judge(records)
    with pytest.raises(OptionError, match="a probability"):
        ClassifierFilter(run=folder, label="fruit", least=2.0)


def test_text_is_prepared_again_once_the_classifier_is_another(tmp_path_factory, tmp_path, monkeypatch):
    folder = str(small_runs.trained(small_runs.classifying, tmp_path_factory).folder.path)
    text = tmp_path / "text"
    text.write_text("red plum\n")
    rule = ClassifierFilter(run=folder, label="fruit")
    corpus = Corpus(train=Documents(paths=(str(text),)), filters=(rule,))

    def key():
        return content_key(corpus, TASKS["generate"].layout(8), Tokenizing(kind="byte"))

    before = key()
    assert key() == before
    trained_anew = SimpleNamespace(folder=SimpleNamespace(id=lambda: "another"), step=60)
    monkeypatch.setattr(classified, "load_classifier", lambda run: trained_anew)
    assert key() != before
