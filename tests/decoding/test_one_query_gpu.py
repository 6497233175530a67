"""Attention of one query a head on a GPU; tests/plain/test_triton.py runs it in Triton's interpreter."""

import pytest
import torch
from torch.nn import functional as F

from clearhead.decoding import one_query_gpu


def test_it_serves_one_query_where_triton_runs():
    query, keys = torch.randn(2, 4, 1, 8), torch.randn(2, 4, 6, 8)
    assert not one_query_gpu.serves(query, keys)  # on a CPU torch's kernel is asked


@pytest.mark.parametrize(
    ("n_query", "n_keys", "width", "served"),
    [(1, 64, 64, True), (2, 64, 64, False), (1, 4096, 64, False), (1, 64, 512, False)],
)
def test_many_queries_keys_or_numbers_are_torchs(n_query, n_keys, width, served, monkeypatch):
    monkeypatch.setattr(one_query_gpu, "missing_triton", lambda device: None)
    query, keys = torch.empty(2, 4, n_query, width), torch.empty(2, 4, n_keys, width)
    assert one_query_gpu.serves(query, keys) == served


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("filled", [1, 64, 65, 200])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_it_is_torchs_attention(dtype, filled, kv_heads, biased):
    torch.manual_seed(0)
    query = torch.randn(5, 4, 1, 64, device="cuda", dtype=dtype)
    keys, values = (torch.randn(5, kv_heads, 200, 64, device="cuda", dtype=dtype) for _ in range(2))
    allowed = (torch.arange(200, device="cuda") < filled).expand(5, 1, 1, 200)
    bias = None
    if biased:
        shown = torch.rand(5, 1, 1, 200, device="cuda") < 0.7
        shown[..., 0], shown[3] = True, False
        bias, allowed = shown.to(dtype).log(), allowed & shown
    hidden = ~allowed.any(0).view(-1, 1)
    cached = [one.masked_fill(hidden, float("nan")) for one in (keys, values)]
    column = torch.tensor([filled - 1], device="cuda")
    context = one_query_gpu.attend_one(query, *cached, scale=0.2, bias=bias, column=column)
    wide = [query.double(), *(one.double().repeat_interleave(4 // kv_heads, 1) for one in (keys, values))]
    wanted = F.scaled_dot_product_attention(*wide, allowed, scale=0.2)
    wanted = wanted.where(allowed.any(-1, keepdim=True), 0)
    limit = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    assert context.dtype == dtype
    torch.testing.assert_close(context.double(), wanted, atol=limit, rtol=limit)
