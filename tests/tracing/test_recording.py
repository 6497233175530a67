"""Layers and heads by number: a list like any other, whose wrong index is told by name and number. One model in several
threads.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from clearhead.errors import ClearheadError
from clearhead.model import presets
from clearhead.tracing import Edit, trace_model
from clearhead.tracing.names import names_of
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


def test_a_model_is_traced_in_several_threads_as_in_one():
    torch.manual_seed(0)
    model, tokens = presets.gpt2("tiny", vocabulary=20).build().eval(), torch.tensor([[3, 1, 4, 1, 5]])
    edit = Edit(at="decoder.0.attention", step="context", head=1, times=0.0)

    def traced(changes):
        trace = trace_model(model, tokens, changes=changes)
        names = ("decoder.0.feed_forward.hidden", "decoder.1.attention.residual", "decoder.output.logits")
        likeliest = torch.tensor([one.log_prob for row in trace.candidates for one in row])
        weight = trace["decoder.1.attention"].head[0].weight.detach()
        return [*(trace.value(name).detach() for name in names), likeliest, weight]

    kinds = [(), (edit,)]
    wanted = {changes: traced(changes) for changes in kinds}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda number: traced(kinds[number % 2]), range(40)))
    finally:
        sys.setswitchinterval(interval)
    for number, values in enumerate(found):
        for one, other in zip(values, wanted[kinds[number % 2]], strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert [layer.runner for layer in names_of(model).sites.values()] == [None, None]
