"""A classifier as a filter of text."""

import pytest

from clearhead.errors import OptionError
from clearhead.training.classified import ClassifierFilter
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
        ClassifierFilter(run=folder, label="fruit", least=2)
