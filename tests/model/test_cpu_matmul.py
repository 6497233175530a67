"""Products the other way round are the products themselves, for any number of rows."""

import pytest
import torch
from torch.nn import functional as F

from clearhead.model.cpu_matmul import FEW, FEWEST, MANY, few_rows, is_large, through

ROWS = [1, 2, FEWEST, FEWEST + 1, FEW, FEW + 1, MANY, MANY + 1]


def drawn(d_out, d_in, bias):
    return torch.randn(d_out, d_in, dtype=torch.float64), torch.randn(d_out, dtype=torch.float64) if bias else None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 5), (5, 7)])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.pairs
def test_few_rows_is_a_linear_map(rows, shape, bias):
    weight, offset = drawn(*shape, bias)
    x = torch.randn(rows, shape[1], dtype=torch.float64)
    found = few_rows(x, weight, offset)
    torch.testing.assert_close(found, F.linear(x, weight, offset), rtol=0, atol=1e-12)
    assert found.is_contiguous()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_through_is_two_maps_and_what_stands_between(rows, bias):
    up, down = drawn(12, 5, bias), drawn(5, 12, bias)
    x = torch.randn(rows, 5, dtype=torch.float64)
    wanted = F.linear(F.gelu(F.linear(x, *up)), *down)
    torch.testing.assert_close(through(x, up, F.gelu, down), wanted, rtol=0, atol=1e-12)


def test_what_is_large():
    assert is_large(torch.empty(2048, 512))
    assert not is_large(torch.empty(9712, 128))
    assert not is_large(torch.empty(256, 256))
