"""Products with int8 matrices, beside float64."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clearhead.attention.cpu_matmul import MATRICES, find_matrix
from clearhead.model import int8_matmul
from clearhead.model.int8_matmul import EXACT, FEW, ROUNDED, Int8Matrix, can_multiply, round_to_int8

WIDTHS = [(512, 300), (513, 257), (131, 1009), (7, 20_001), (20_001, 7), (37, 5), (1, 1), (0, 4)]
"""Inputs and outputs: large enough to be packed and not, multiples of 8 and not."""
ROWS = (0, 1, 2, 5, FEW, FEW + 1, 160)
needs_fbgemm = pytest.mark.skipif(int8_matmul.MULTIPLY is None, reason="this torch has no fbgemm")


def rounded(d_in: int, d_out: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    if not d_in:
        return torch.zeros(d_out, 0, dtype=torch.int8), torch.ones(d_out)
    return round_to_int8(torch.randn(d_out, d_in))


def in_float64(x, codes, scale, bias=None):
    return F.linear(x.double(), codes.double() * scale.double()[:, None], None if bias is None else bias.double())


@pytest.mark.parametrize(("d_in", "d_out"), WIDTHS)
def test_three_digits_have_the_accuracy_of_float32(d_in, d_out):
    codes, scale = rounded(d_in, d_out)
    matrix, bias = Int8Matrix(codes, scale), torch.randn(d_out)
    for rows in ROWS:
        x = torch.randn(rows, d_in) * torch.logspace(-6, 6, max(rows, 1))[:rows, None]
        for added in (None, bias):
            made, expected = matrix(x, added), in_float64(x, codes, scale, added)
            assert (made.dtype, made.shape) == (torch.float32, expected.shape)
            # The error of a sum of so many products, each to 5e-7 of the largest input, and of float32's sums.
            size = x.double().abs().amax(1, keepdim=True) @ scale.double()[None] * 127 if x.numel() else 0
            assert ((made - expected).abs() <= 2e-6 * (size * max(1, d_in) ** 0.5 + expected.abs()) + 1e-30).all()


@needs_fbgemm
@pytest.mark.parametrize(("d_in", "d_out"), WIDTHS[:5])
def test_one_digit_rounds_a_row_to_a_63rd_of_its_largest_number(d_in, d_out):
    codes, scale = rounded(d_in, d_out)
    matrix, bias = Int8Matrix(codes, scale, ROUNDED), torch.randn(d_out)
    for rows in ROWS:
        digits = torch.randint(-62, 63, (rows, d_in)).float()
        digits[:, 0] = 63
        beside = torch.rand(rows, d_in).sub(0.5).mul(0.9).where(digits < 63, 0)  # nothing near a half, where ties are
        size = torch.logspace(-3, 3, max(1, rows))[:rows, None]
        expected = in_float64(digits, codes, scale)  # another digit would make a difference of about 1
        found = (matrix((digits + beside) * size, bias).double() - bias) / size
        torch.testing.assert_close(found, expected, atol=0.01, rtol=1e-4)


@needs_fbgemm
@pytest.mark.parametrize("digits", [EXACT, ROUNDED])
def test_a_row_gives_the_same_bits_in_every_batch(digits):
    matrix = Int8Matrix(*rounded(512, 300), digits)
    x = torch.randn(FEW, 512) * torch.logspace(-3, 3, FEW)[:, None]
    together = matrix(x)
    assert all(torch.equal(matrix(x[i : i + n]), together[i : i + n]) for i, n in ((0, 2), (7, 5), (FEW - 3, 3)))
    for i in range(FEW):  # by itself a row is multiplied in float32
        size = x[i].abs().amax() * matrix.scale.amax() * 127
        torch.testing.assert_close(matrix(x[i : i + 1])[0], together[i], rtol=1e-5, atol=2e-6 * size * 512**0.5)


@needs_fbgemm
@pytest.mark.parametrize("digits", [EXACT, ROUNDED])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_side_by_side_are_not_cut_off(digits, sign):
    # 16 bits hold a sum of two products only because a digit is at most 63.
    matrix = Int8Matrix(torch.full((300, 512), 127, dtype=torch.int8), torch.full((300,), 1 / 127), digits)
    assert matrix(torch.full((3, 512), 2.0 * sign)).sub(1024 * sign).abs().max() < 1e-3


@needs_fbgemm
@pytest.mark.parametrize("digits", [EXACT, ROUNDED])
def test_zeros_and_the_smallest_and_largest_floats(digits):
    matrix = Int8Matrix(*rounded(512, 300), digits)
    assert matrix(torch.zeros(2, 512)).eq(0).all()
    x = torch.randn(1, 512)
    for size in (1e-30, 1e30):
        torch.testing.assert_close(matrix(x * size) / size, matrix(x), atol=1e-4, rtol=1e-4)
    assert matrix(torch.full((1, 512), 1e-44)).abs().max() < 1e-40
    odd = torch.stack([x[0], x[0].clone().fill_(float("nan")), x[0].where(x[0] < 2, float("inf")), x[0]])
    found = matrix(odd).isfinite()
    assert found[[0, 3]].all()
    assert not found[[1, 2]].any()  # as in float: a number that is none makes none of the row's outputs one


def test_without_fbgemm_it_is_unpacked(monkeypatch):
    codes, scale = rounded(513, 5000)  # unpacked in three parts
    expected = in_float64(x := torch.randn(3, 513), codes, scale)
    monkeypatch.setattr(int8_matmul, "MULTIPLY", None)
    for digits in (EXACT, ROUNDED):
        torch.testing.assert_close(Int8Matrix(codes, scale, digits)(x).double(), expected, atol=1e-3, rtol=1e-5)


@needs_fbgemm
def test_packing_leaves_the_chosen_engine():
    before = torch.backends.quantized.engine
    Int8Matrix(*rounded(512, 300))(torch.randn(1, 512))
    assert torch.backends.quantized.engine == before


def test_a_matrix_is_kept_until_its_tensors_change():
    owner, (codes, scale) = nn.Identity(), rounded(512, 300)
    calls = []

    def find(digits=EXACT):
        return find_matrix(owner, [codes, scale], digits, lambda: calls.append(1) or Int8Matrix(codes, scale, digits))

    first = find()
    assert find() is first
    assert find(ROUNDED) is not first
    third = find()
    codes.zero_()
    assert find() is not third
    assert find()(torch.ones(1, 512)).eq(0).all()
    scale = scale.clone()
    find()
    assert len(calls) == 5
    assert copy.deepcopy(owner) not in MATRICES


def test_where_torch_asks_for_gradients_or_traces_there_is_no_such_product():
    x, trained = torch.ones(1, 4), nn.Parameter(torch.ones(1))
    assert can_multiply(x)
    assert not can_multiply(x, trained)
    with torch.no_grad():
        assert can_multiply(x, trained, None)
        assert not can_multiply(x.double())
        assert not can_multiply(x.to("meta"))
        with torch.autocast("cpu", torch.bfloat16):
            assert not can_multiply(x)
        assert torch.func.vmap(lambda row: row * (0 if can_multiply(row) else 1))(x).eq(1).all()
