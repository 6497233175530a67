"""What each head adds by itself, and the value-weighted attention that follows from it."""

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.tracing import Trace, trace_model
from clearhead.tracing.site import head_outputs
from tests.circuits.random_models import SPECS, make


def trace_of(case):
    tokens = [rows[:1] for rows in case.clean.tokens.values()]
    segments = None if case.clean.segments is None else case.clean.segments[:1]
    return trace_model(case.model, *tokens, segments=segments)


@pytest.mark.parametrize("name", SPECS)
def test_the_heads_and_the_bias_sum_to_what_the_attention_adds(name):
    trace = trace_of(make(name))
    for at, site in trace.sites.items():
        layer = site.attention
        assert layer is not None
        zero = layer.output(torch.zeros_like(site.context).transpose(0, 1).flatten(1))
        total = sum(head_outputs(layer, site.context)) + zero
        assert (total - trace.value(f"{at}.out")).abs().max() < 1e-12


@pytest.mark.parametrize("name", SPECS)
def test_weighted_attention_is_the_length_of_what_each_key_adds(name):
    """One key at a time: its value, weighed, through W_O."""
    trace = trace_of(make(name))
    for site in trace.sites.values():
        layer = site.attention
        assert layer is not None
        for head in site.head:
            one = torch.zeros(site.n_heads, site.n_query, site.d_value, dtype=torch.float64)
            one[head.index] = head.weight[:, 1:2] * head.value[1]
            [*added] = head_outputs(layer, one)
            assert head.weighted[:, 1].tolist() == pytest.approx(added[head.index].norm(dim=-1).tolist(), abs=1e-12)


def test_tiles_of_weighted_attention_are_its_largest_cells():
    trace = trace_of(make("pre"))
    head = trace["decoder.1.attention"].head[2]
    assert (head.tile("weighted", 0, 0, 0) - head.weighted).abs().max() < 1e-12
    assert head.tile("weighted", 3, 0, 0).item() == pytest.approx(head.weighted.max().item())


def test_a_trace_without_its_model_has_no_weighted_attention(tmp_path):
    trace = trace_of(make("pre"))
    trace.save(tmp_path / "one.trace")
    with pytest.raises(OptionError, match=r"W_O is the model's.*Trace\.load\(path, model\)"):
        _ = Trace.load(tmp_path / "one.trace")["decoder.0.attention"].head[0].weighted
