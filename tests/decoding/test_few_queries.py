"""Attention of a few queries a head by products is torch's own, for rows of slots and for the beams of a sentence."""

import pytest
import torch
from torch.nn import functional as F

from clearhead.decoding.clock import for_each_head
from clearhead.decoding.few_queries import attend_few


@pytest.mark.parametrize(("rows", "heads", "columns"), [(1, 1, 1), (3, 4, 7), (8, 2, 16)])
def test_attention_by_products_is_torchs_own(rows, heads, columns):
    torch.manual_seed(rows)
    query = torch.randn(rows, heads, 1, 8, dtype=torch.float64)
    # As in the slots: rows and columns of a larger memory.
    keys, values = (torch.randn(rows + 2, heads, columns + 5, 8, dtype=torch.float64)[:rows, :, :columns] for _ in "kv")
    seen = torch.rand(rows, 1, 1, columns) < 0.5
    seen[..., 0] = True
    added = seen.double().log()
    expected = F.scaled_dot_product_attention(query, keys, values, added, scale=0.3)
    bias = added.expand(-1, heads, -1, -1).reshape(-1, 1, columns)
    torch.testing.assert_close(attend_few(query, keys, values, bias, 0.3), expected)


@pytest.mark.parametrize("lengths", [None, [7, 3, 1]])
def test_beams_attend_to_their_source_as_torchs_kernel_lets_them(lengths):
    torch.manual_seed(0)
    query, (keys, values) = torch.randn(3, 2, 5, 4).double(), torch.randn(2, 3, 2, 7, 4).double()
    real = None if lengths is None else (torch.arange(7) < torch.tensor(lengths)[:, None])[:, None, None]
    bias = None if real is None else for_each_head(real.double().log(), 2)
    expected = F.scaled_dot_product_attention(query, keys, values, real, scale=0.3)
    torch.testing.assert_close(attend_few(query, keys, values, bias, 0.3), expected, rtol=0, atol=1e-12)
