"""Block-wise: never n x n, forward or backward; dropout the same on the way back; one derivative and no second."""

import pytest
import torch

import clearhead as ch
from clearhead.attention.kernels import blockwise
from clearhead.errors import UnsupportedError
from tests.attention.kernels.test_linear import Largest

SHAPE = ch.HeadShape(n_heads=2, n_kv_heads=2, d_head=8)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK_NUMBERS", 4000)


def largest(n, kernel, options):
    leaves = [torch.randn(1, 2, n, 8, requires_grad=True) for _ in range(3)]
    with Largest() as made:
        context = ch.attend(*leaves, kernel=kernel, **options)
        torch.autograd.grad(context.sum(), leaves)
    return made.numel


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"weighting": ch.weighting.Argmax()},
        {"weighting": ch.weighting.Sparsemax(), "mask": ch.masks.causal()},
        {"weighting": ch.weighting.Softmax(), "mask": ch.masks.window(3), "position": ch.positions.ALiBi()},
        {"similarity": ch.similarity.Additive().build(SHAPE)},
    ],
    ids=["argmax", "sparsemax", "biased softmax", "additive"],
)
def test_no_tensor_holds_n_by_n(options, small_blocks):
    n = 200
    assert largest(n, "blockwise", options) < n * n / 2
    assert largest(n, "reference", options) >= 2 * n * n


def test_dropout_is_the_same_on_the_way_back(small_blocks):
    q, k = torch.randn(1, 2, 90, 8), torch.randn(1, 2, 90, 8)
    v = torch.eye(90).expand(1, 2, 90, 90).clone().requires_grad_()
    context = ch.attend(q, k, v, dropout=0.5, kernel="blockwise")
    before = torch.get_rng_state()
    (gradient,) = torch.autograd.grad(context.sum(), v)
    # With identity values the context is the thinned weights, and a value's gradient is what its key was given.
    torch.testing.assert_close(gradient.mean(-1), context.sum(-2).detach())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_second_derivative_is_refused_not_wrong(small_blocks):
    q, k, v = (torch.randn(1, 2, 90, 8, requires_grad=True) for _ in range(3))
    context = ch.attend(q, k, v, weighting=ch.weighting.Sigmoid(), kernel="blockwise")
    (gradient,) = torch.autograd.grad(context.square().sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match="no second derivative"):
        gradient.sum().backward()


def test_only_what_needs_a_gradient_gets_one(small_blocks):
    q, k, v = torch.randn(1, 2, 90, 8), torch.randn(1, 2, 90, 8), torch.randn(1, 2, 90, 8, requires_grad=True)
    similarity = ch.similarity.Additive().build(SHAPE)
    similarity.out.requires_grad_(False)
    context = ch.attend(q, k, v, similarity=similarity, kernel="blockwise")
    context.sum().backward()
    assert v.grad is not None
    assert similarity.query.grad is not None
    assert similarity.out.grad is None


@pytest.mark.parametrize(
    "options",
    [
        {"similarity": ch.similarity.Additive()},
        {"similarity": ch.similarity.Cosine(), "weighting": ch.weighting.Sparsemax()},
        {"position": ch.positions.T5Bias(), "weighting": ch.weighting.Sigmoid()},
    ],
    ids=["additive", "cosine", "t5"],
)
def test_parameters_of_a_functional_call_are_those_of_the_backward_pass_too(options, small_blocks):
    """By then the layer has its own parameters back, and each block is computed again."""
    layer, x = ch.Attention(16, heads=2, **options).double(), torch.randn(1, 90, 16, dtype=torch.float64)
    found = []
    for kernel in ("blockwise", "reference"):
        layer.kernel = kernel
        leaves = {name: own.detach().clone().requires_grad_() for name, own in layer.named_parameters()}
        out = torch.func.functional_call(layer, {name: 1.5 * leaf + 0.1 for name, leaf in leaves.items()}, (x,))
        found.append(torch.autograd.grad(out.square().sum(), list(leaves.values())))
    torch.testing.assert_close(*found)
