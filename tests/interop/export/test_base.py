"""What formats share: names of parts, and tensors of which none is forgotten."""

from dataclasses import replace

import pytest

from clearhead.attention.heads import Heads
from clearhead.errors import OptionError
from clearhead.interop.export.base import ModelTensors, unknown_fields
from clearhead.model import presets
from clearhead.model.outputs import Classes, NgramLogits


def test_fields_that_a_format_does_not_know_are_named():
    heads = Heads(4, kv=2, bias=True)
    assert list(unknown_fields(heads, ("count", "kv"))) == ["Heads(bias=True)"]
    assert list(unknown_fields(heads, ("count", "kv", "bias"))) == []


def test_a_tensor_that_nobody_asked_for_is_noticed():
    weights = ModelTensors(presets.gpt2("tiny", vocabulary=10).build())
    for name in weights.tensors:
        if name != "stack.norm.gamma":
            weights[name].zero_()  # a copy
    with pytest.raises(OptionError, match=r"x: there is no place for 1 tensors .*stack\.norm\.gamma"):
        weights.check_all_taken("x")
    assert weights["stack.norm.gamma"].all()
    weights.check_all_taken("x")


def test_buffers_of_a_model_need_a_place_too():
    """The wide part of a classifier is made of them."""
    output = Classes(2, ngrams=NgramLogits(buckets=8))
    assert "output.wide.bias" in ModelTensors(replace(presets.bert("tiny", vocabulary=10), output=output).build())
