"""Activations on a GPU beside torch's; tests/plain/test_triton.py runs their kernels in Triton's interpreter."""

import pytest
import torch

from clearhead.compiling import register_operators
from clearhead.cuda_graphs import recording_kernels
from clearhead.model import activation_gpu
from clearhead.model.feedforward import GELU, ReLU, SiLU
from clearhead.taps import replacing

SPECS = [ReLU(300), SiLU(300), GELU(300), GELU(300, form="tanh"), ReLU(300, bias=False)]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_feed_forward_with_two_maps_has_a_kernel(spec):
    assert spec.build(8).kernel in activation_gpu.KINDS
    with recording_kernels():
        assert not activation_gpu.serves(torch.randn(2, 8, requires_grad=True)), "only a GPU is served"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch 2.11's own compiler does
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # exact products are asked for
@pytest.mark.parametrize("way", ["compiled", "captured", "captured, tapped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_outputs_and_gradients_are_those_of_torch(spec, dtype, way):
    register_operators()
    torch.manual_seed(0)
    network = spec.build(64).cuda()
    x, upstream = (torch.randn(5, 70, 64, device="cuda", dtype=dtype) for _ in range(2))

    def gradients(work, kind):
        leaf = x.to(kind).requires_grad_()
        network.to(kind).requires_grad_()
        out = work(leaf)
        return [out, *torch.autograd.grad(out, [leaf, *network.parameters()], upstream.to(kind))]

    def captured(x):
        with recording_kernels():
            assert activation_gpu.serves(x)
            if "tapped" not in way:
                return network(x)
            with replacing(network, lambda path, value: value):
                return network(x)

    torch._dynamo.reset()  # it compiles one function again only so many times
    fast = torch.compile(network, fullgraph=True) if way == "compiled" else captured
    found = gradients(fast, dtype)
    for got, wanted in zip(found, gradients(network, torch.float64), strict=True):
        error = (got.double() - wanted).norm() / wanted.norm()
        assert error < (1e-2 if dtype is torch.bfloat16 else 1e-5)
