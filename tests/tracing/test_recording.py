"""Layers and heads by number: a list like any other, whose wrong index is told by name and number."""

import pytest

from clearhead.errors import ClearheadError
from clearhead.tracing.recording import Counted

LAYERS = Counted(["a", "b", "c"], "decoder: layer")


def test_it_is_a_list():
    assert list(LAYERS) == ["a", "b", "c"]
    assert (LAYERS[0], LAYERS[-1], LAYERS[1:]) == ("a", "c", ["b", "c"])


@pytest.mark.parametrize("index", [3, -4, 99, "0", 1.0, None])
def test_an_index_that_is_not_there_is_told(index):
    with pytest.raises(ClearheadError, match=r"decoder: layer .+ is not there; there are 3, counted from 0") as told:
        LAYERS[index]
    assert isinstance(told.value, IndexError)
