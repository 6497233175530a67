"""Products of a decoding step with what stands around them; tests/plain/test_triton.py runs them in Triton's
interpreter, and tests/decoding/test_one_query_gpu.py decodes whole models by them.
"""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clearhead.model import fused_step
from clearhead.model.arrangements import NormFirst
from clearhead.model.fast_step import StepMatrix, StepNorm
from clearhead.model.feedforward import SwiGLU
from clearhead.model.fused_step import FusedBranch, FusedLinear, add_branch, fusible_matrices
from clearhead.model.int8_matmul import round_to_int8
from clearhead.model.norms import RMSNorm

ACTIVATIONS = {
    "": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def make_matrix(linear, *, int8):
    if not int8:
        return StepMatrix(linear.weight, linear.bias)
    codes, scale = round_to_int8(linear.weight)
    return StepMatrix(codes, linear.bias, scale)


def draw_linear(rows, sizes, norm, *, gated, activation, int8=False, device="cpu", dtype=torch.float32):
    """Return a fused map with a bias, an input far from mean 0, a norm or None, and a residual."""
    d_in, d_out = sizes
    made = {"device": device, "dtype": dtype}
    first, up = (nn.Linear(d_in, d_out, **made).requires_grad_(False) for _ in range(2))
    first, up = (make_matrix(part, int8=int8) for part in (first, up))
    fused = FusedLinear(first, up=up if gated else None, activation=activation)
    gamma, beta = torch.randn(d_in, **made), torch.randn(d_in, **made) if norm == "layer" else None
    step_norm = StepNorm(norm, gamma, beta, 1e-5) if norm else None
    return fused, torch.randn(rows, d_in, **made) + 3, step_norm, torch.randn(rows, d_out, **made)


def as_double(weight, scale):
    return weight.double() if scale is None else weight.double() * scale.double()[:, None]


def compute_apart(fused, x, norm, residual):
    """Return in float64 what a fused map computes, one step after the other."""
    x = x.double()
    if norm is not None:
        x = x - x.mean(-1, keepdim=True) if norm.kind == "layer" else x
        x = x / (x.square().mean(-1, keepdim=True) + norm.epsilon).sqrt() * norm.gamma.double()
        x = x if norm.beta is None else x + norm.beta.double()
    y = ACTIVATIONS[fused.activation](F.linear(x, as_double(fused.weight, fused.scale), fused.bias.double()))
    if fused.gated:
        y = y * F.linear(x, as_double(fused.up, fused.up_scale), fused.up_bias.double())
    return y + residual.double()


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "int8"), [*itertools.product((torch.float32, torch.bfloat16), (False, True))])
@pytest.mark.parametrize("rows", [1, 2, 17, 32])
@pytest.mark.parametrize("sizes", [(768, 2304), (2048, 2048), (5632, 264), (100, 33)])
@pytest.mark.parametrize("norm", ["", "rms", "layer"])
@pytest.mark.parametrize("activation", ["gated silu", "gelu_tanh", ""])
def test_a_fused_map_is_its_steps(dtype, int8, rows, sizes, norm, activation):  # noqa: PLR0917
    torch.manual_seed(0)
    name, gated = activation.removeprefix("gated "), activation.startswith("gated")
    kind = {"gated": gated, "activation": name, "int8": int8, "device": "cuda", "dtype": dtype}
    fused, x, step_norm, residual = draw_linear(rows, sizes, norm, **kind)
    for _ in range(3):  # what programs share must be as it was before each call
        got = fused(x, norm=step_norm, residual=residual)
        right = compute_apart(fused, x, step_norm, residual)
        assert got.dtype == dtype
        assert (got.double() - right).norm() < {torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype] * right.norm()


def test_on_a_cpu_nothing_is_fused():
    with torch.inference_mode():
        assert not fusible_matrices([nn.Linear(4, 4)])


def test_maps_are_fused_where_triton_runs_unless_they_are_trained_or_no_plain_maps(monkeypatch):
    monkeypatch.setattr(fused_step, "missing_triton", lambda device: None)
    same, other = nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.float64)
    assert not fusible_matrices([same])
    with torch.no_grad():
        assert fusible_matrices([same, same])
        assert not fusible_matrices([same, other])
        assert not fusible_matrices([same, nn.Sequential(same)])


class Doubling(FusedBranch):
    """Doubles what comes in; its fused form says which norm it got."""

    def __call__(self, x):
        return 2 * x

    def serves(self, x):
        return len(x) < 3

    def residual(self, x, norm):
        assert norm.kind == "rms"
        return x + 2 * F.rms_norm(x, norm.gamma.shape, norm.gamma, norm.epsilon)


@pytest.mark.parametrize("rows", [2, 3])
def test_a_branch_takes_its_norm_and_residual_if_it_serves_the_rows(rows):
    norm, x = RMSNorm().build(8), torch.randn(rows, 8)
    with torch.no_grad():
        norm.gamma.uniform_()
        expected = x + 2 * norm(x)
        torch.testing.assert_close(add_branch(norm, Doubling())(x), expected)
        torch.testing.assert_close(add_branch(norm, lambda y: 2 * y)(x), expected)
        torch.testing.assert_close(NormFirst(0.0, norm).fast_step(Doubling())(x), expected)


def test_a_users_own_norm_is_called():
    class Halving(nn.Module):
        def forward(self, x):
            return x / 2

    x = torch.randn(2, 8)
    torch.testing.assert_close(add_branch(Halving(), Doubling())(x), 2 * x)


def test_a_feed_forward_on_a_cpu_is_a_plain_function():
    with torch.inference_mode():
        assert not isinstance(SwiGLU(16).build(8).fast_step(), FusedBranch)
