"""LayerNorm's own backward on a GPU, compiled; tests/plain/test_triton.py runs its kernel in Triton's interpreter."""

import pytest
import torch

from clearhead.model import layer_norm_gpu
from clearhead.model.norms import LayerNorm


@pytest.mark.slow
def test_elsewhere_torch_computes_it():
    assert not layer_norm_gpu.serves(torch.randn(2, 3))
    assert not torch.compile(lambda x: torch.tensor(layer_norm_gpu.serves(x)), backend="eager")(torch.randn(2, 3))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch 2.11's own compiler does
@pytest.mark.parametrize(("shape", "dtype"), [((5, 70, 48), torch.float32), ((4000, 768), torch.bfloat16)])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_torch(shape, dtype, bias):
    layer_norm_gpu.register()
    torch.manual_seed(0)
    norm = LayerNorm(bias=bias).build(shape[-1]).cuda()
    with torch.no_grad():
        norm.gamma.normal_()
    x, upstream = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))

    def gradients(work, kind):
        leaves = [
            one.detach().to(kind).requires_grad_()
            for one in (x, norm.gamma, *(() if norm.beta is None else (norm.beta,)))
        ]
        named = dict(zip(("gamma", "beta"), leaves[1:], strict=False))
        out = work(leaves[0], named)
        return torch.autograd.grad(out, leaves, upstream.to(kind))

    def run(x, named):
        return torch.func.functional_call(norm, named, (x,))

    for got, wanted in zip(
        gradients(torch.compile(run, fullgraph=True), dtype), gradients(run, torch.float64), strict=True
    ):
        error = (got.double() - wanted).norm() / wanted.norm()
        assert error < (1e-2 if dtype is torch.bfloat16 else 1e-5)
