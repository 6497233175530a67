"""The grid on a GPU: the same promise, the same reference."""

import pytest
import torch

import clearhead as ch
from clearhead.attention import grid, support

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kernel", support.KERNEL_NAMES)
def test_every_promise_is_kept_on_a_gpu(kernel, request):
    if kernel == "flex" and request.config.getoption("jaxtyping_packages"):
        pytest.skip("flex is traced, and checked signatures cannot be: run this with --jaxtyping-packages=")
    report = grid.check(grid.combinations(kernel, device="cuda"))
    assert report.supported > 50
    assert not report.failures, str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [None, ch.masks.causal(), ch.masks.window(3)])
@pytest.mark.parametrize("n", [1, 7, 64, 300])
@pytest.mark.parametrize("kernel", ["fused", "flex", "blockwise", "reference"])
def test_a_query_that_is_nan_gives_nan_on_a_gpu(kernel, n, mask, dtype, request):
    if kernel == "flex" and request.config.getoption("jaxtyping_packages"):
        pytest.skip("flex is traced, and checked signatures cannot be: run this with --jaxtyping-packages=")
    q, k, v = (torch.randn(2, 2, n, 64, device="cuda", dtype=dtype) for _ in range(3))
    q[0, 1, n // 2, 3] = torch.nan
    context = ch.attend(q, k, v, mask=mask, kernel=kernel)
    wanted = torch.zeros(2, 2, n, 64, device="cuda", dtype=torch.bool)
    wanted[0, 1, n // 2] = True
    assert torch.equal(context.isnan(), wanted)


def test_a_second_derivative_on_a_gpu_names_the_reference():
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    (first,) = torch.autograd.grad(ch.attend(q, q, q, kernel="fused").sin().sum(), q, create_graph=True)
    with pytest.raises(ch.ClearheadError, match=r"kernel 'fused' has no second derivative.*kernel=.reference."):
        torch.autograd.grad(first.square().sum(), q)
