"""Thumbnails: the square root of each weight, or of what it adds to the stream."""

import pytest

from clearhead.serve.explorer import Explorer
from tests.serve.asking import ask
from tests.training.small_runs import documents, trained


@pytest.mark.parametrize("weighted", [0, 1])
def test_a_thumbnail_is_the_root_of_each_cell(weighted, tmp_path_factory):
    explorer = Explorer(trained(documents, tmp_path_factory))
    trace = ask(explorer, "trace", {"source": "the cat eats the plum"})["id"]
    site = explorer.find_trace(trace).trace["decoder.0.attention"]
    found = ask(explorer, "thumbs", {"site": site.name, "weighted": weighted}, trace)
    values = [head.weighted if weighted else head.weight for head in site.head]
    most = max(value.max().item() for value in values) if weighted else 1
    for thumb, value, head in zip(found, values, site.head, strict=True):
        hidden = ~head.allowed(0, site.n_query)
        expected = ((value / most).sqrt() * 254).round().masked_fill(hidden, 255)
        assert (thumb.float() - expected).abs().max() <= 1
        assert (thumb == 255).equal(hidden)
