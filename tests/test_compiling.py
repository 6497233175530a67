"""Operators; tests/model and tests/training compile each of them on a GPU."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from clearhead import compiling
from clearhead.attention.positions.rotary import cos_and_sin, cos_and_sin_op
from clearhead.compiling import OPERATORS, Operator, register_operators
from clearhead.model import activation_gpu, layer_norm_gpu
from clearhead.training import cross_entropy_gpu


def launch(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    return x * factor, x.sum(0)


@pytest.mark.slow
def test_it_is_called_as_it_is_and_held_by_a_compiled_graph(monkeypatch):
    monkeypatch.setattr(compiling, "OPERATORS", [])
    monkeypatch.setattr(compiling, "missing_triton", lambda device: "not installed")
    doubled = Operator("of_a_test", launch)
    x = torch.randn(3, 4)

    def run(x):
        return doubled(x, 2.0) if doubled.registered else (x, x)

    register_operators()
    assert not doubled.registered, "there is no Triton"
    assert torch.equal(doubled(x, 2.0)[0], 2 * x)
    assert torch.compile(run, backend="eager", fullgraph=True)(x)[0] is x

    monkeypatch.setattr(compiling, "missing_triton", lambda device: None)
    register_operators()
    register_operators()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    for compiled in (run, torch.compile(run, backend=backend, fullgraph=True)):
        out, total = compiled(x)
        assert torch.equal(out, 2 * x)
        assert torch.equal(total, x.sum(0))
    assert "torch.ops.clearhead.of_a_test" in graphs[0].code


@pytest.mark.slow
def test_with_like_the_compiler_calls_it_and_does_not_look_inside():
    """Cosines of a table are not computed again for every number that they turn."""
    waves = Operator("waves_of_a_test", cos_and_sin, like=cos_and_sin_op.like)
    waves.register()
    kernels = []

    def run(x):
        cos, sin = waves(torch.arange(x.shape[0]).double())
        return x * cos.unsqueeze(1) + x.flip(1) * sin.unsqueeze(1)

    def backend(graph, inputs):
        kernels.append(make_fx(graph)(*inputs).code)
        return graph

    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    out = torch.compile(run, backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(out, run(x))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(run(x).sum(), x)[0])
    assert "waves_of_a_test" in kernels[0]
    assert "cos" not in kernels[0]


def test_every_launch_of_a_model_and_its_loss_is_there_by_a_name_of_its_own():
    names = [one.name for one in OPERATORS]
    assert len(set(names)) == len(names)
    for module in (layer_norm_gpu, activation_gpu, cross_entropy_gpu):
        assert module.backward_op in OPERATORS
