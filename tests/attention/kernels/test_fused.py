"""Torch's fused attention: gradients reach it in one layout, whatever layout they come in. On a GPU: test_gpu.py."""

import pytest
import torch

from clearhead.attention.kernels.fused import FixGradientLayout, restride_first

INSIDE = (3 * 5 * 2, 2, 3 * 2, 1)
"""Strides of (batch, head, position, d) = (4, 3, 5, 2) with heads inside the positions."""


def outside():
    return torch.randn(4, 3, 5, 2, dtype=torch.float64)


def inside():
    return torch.randn(4, 5, 3, 2, dtype=torch.float64).transpose(1, 2)


def test_a_gradient_is_laid_out_as_the_context():
    grad, other = outside(), outside()
    laid_out, same = restride_first(INSIDE, (grad, other))
    assert laid_out.stride() == INSIDE
    assert torch.equal(laid_out, grad)
    assert same is other


def test_a_gradient_in_the_layout_of_the_context_is_left_alone():
    assert restride_first(INSIDE, (inside(),)) is None
    assert restride_first((7, 99, 2, 1), (torch.randn(1, 1, 5, 2),)) is None  # an axis of one has any stride


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own compiler does
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("heads_inside", [False, True])
@pytest.mark.parametrize("make_grad", [inside, outside])
def test_a_compiled_gradient_has_one_layout(make_grad, heads_inside, compiled, request):
    if compiled and request.config.getoption("jaxtyping_packages"):
        pytest.skip("compiled code and checked signatures do not go together: run this with --jaxtyping-packages=")

    def run(x):
        return FixGradientLayout.apply(x, heads_inside)

    run = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
    x, grad = outside().requires_grad_(), make_grad()
    (laid_out,) = torch.autograd.grad(run(x), x, grad)
    assert torch.equal(laid_out, grad)
    assert laid_out.stride() == (INSIDE if heads_inside else x.stride())
