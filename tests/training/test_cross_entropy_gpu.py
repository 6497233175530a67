"""The loss kernels on a GPU beside the definition in float64; tests/plain/test_triton.py runs them in Triton's
interpreter.
"""

import pytest
import torch

from clearhead.compiling import register_operators
from clearhead.training import cross_entropy_gpu, losses


def test_on_a_cpu_torch_computes_it():
    assert not cross_entropy_gpu.serves(torch.randn(2, 3))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch 2.11's own compiler does
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 7), (300, 10_000), (40, 50_257)])
@pytest.mark.parametrize(("smoothing", "weight"), [(0.0, None), (0.1, None), (0.0, 2.0), (0.1, 5.0)])
def test_losses_and_gradients_are_those_of_the_definition(compiled, dtype, shape, smoothing, weight):
    rows, choices = shape
    register_operators()
    torch.manual_seed(0)
    half = torch.randint(choices, (rows // 2,), device="cuda")
    half[::5] = losses.NOTHING
    wanted = torch.cat([half, half])
    logits = (torch.randn(rows, choices, device="cuda") * 3).to(dtype)

    def run(logits):
        if weight is None:
            return losses.cross_entropy(logits, wanted, smoothing)
        return losses.r_drop(logits, wanted, smoothing, weight)

    def gradient(run, leaf):
        loss = run(leaf)
        return *loss, *torch.autograd.grad(loss.objective * 0.125, leaf)

    narrow, wide = logits.clone().requires_grad_(), logits.double().requires_grad_()
    assert cross_entropy_gpu.serves(narrow)
    assert not cross_entropy_gpu.serves(wide)
    torch._dynamo.reset()  # it compiles one function again only so many times
    got = gradient(torch.compile(run, fullgraph=True) if compiled else run, narrow)
    assert got[0].requires_grad
    assert not got[1].requires_grad
    assert got[2].dtype == dtype
    for one, right in zip(got, gradient(run, wide), strict=True):
        limit = 4e-3 if one.dtype is torch.bfloat16 else 2e-6
        assert (one.double() - right).norm() <= limit * right.norm()
