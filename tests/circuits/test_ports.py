"""The matrices of heads, whatever their maps are."""

import pytest
import torch

from clearhead.circuits import Graph
from tests.circuits.random_models import SPECS, make


@pytest.mark.parametrize("name", SPECS)
def test_the_matrices_of_heads_are_what_the_maps_do(name):
    model = make(name).model
    graph = Graph(model)
    for at, layer in graph.names.sites.items():
        x = torch.randn(1, 3, 12, dtype=torch.float64)
        weight, bias = graph.matrices[f"{at}.value"]
        assert (torch.einsum("bnd,hdw->bhnw", x, weight) + bias.unsqueeze(1) - layer.value(x)).abs().max() < 1e-12
        weight, bias = graph.matrices[at]
        context = torch.randn(1, layer.shape.n_heads, 3, weight.shape[1], dtype=torch.float64)
        out = torch.einsum("bhnw,hwd->bnd", context, weight) + bias
        assert (out - layer.finish(context)).abs().max() < 1e-12
