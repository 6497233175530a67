"""LayerNorm's own backward on a GPU, compiled; tests/plain/test_triton.py runs its kernel in Triton's interpreter."""

import pytest
import torch

from clearhead.compiling import register_operators
from clearhead.cuda_graphs import recording_kernels
from clearhead.model import layer_norm_gpu
from clearhead.model.norms import LayerNorm


@pytest.mark.slow
def test_elsewhere_torch_computes_it():
    assert not layer_norm_gpu.serves(torch.randn(2, 3))
    assert not torch.compile(lambda x: torch.tensor(layer_norm_gpu.serves(x)), backend="eager")(torch.randn(2, 3))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch 2.11's own compiler does
@pytest.mark.parametrize("way", ["compiled", "captured"])
@pytest.mark.parametrize(("shape", "dtype"), [((5, 70, 48), torch.float32), ((4000, 768), torch.bfloat16)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("past", [False, True], ids=["norm alone", "and what goes past it"])
def test_gradients_are_those_of_torch(way, shape, dtype, bias, past):
    register_operators()
    torch.manual_seed(0)
    norm = LayerNorm(bias=bias).build(shape[-1]).cuda()
    with torch.no_grad():
        norm.gamma.normal_()
    x, *upstreams = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3 if past else 2))
    parameters = dict(norm.named_parameters())

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return self.norm.with_input(x) if past else (self.norm(x),)

    whole = Whole()

    def gradients(work, kind):
        leaves = [one.detach().to(kind).requires_grad_() for one in (x, *parameters.values())]
        out = work(leaves[0], dict(zip((f"norm.{name}" for name in parameters), leaves[1:], strict=True)))
        return torch.autograd.grad(out, leaves, [one.to(kind) for one in upstreams])

    def run(x, named):
        return torch.func.functional_call(whole, named, (x,))

    def run_captured(x, named):
        with recording_kernels():
            assert layer_norm_gpu.serves(x)
            return run(x, named)

    fast = run_captured if way == "captured" else torch.compile(run, fullgraph=True)
    for got, wanted in zip(gradients(fast, dtype), gradients(run, torch.float64), strict=True):
        error = (got.double() - wanted).norm() / wanted.norm()
        assert error < (1e-2 if dtype is torch.bfloat16 else 1e-5)
