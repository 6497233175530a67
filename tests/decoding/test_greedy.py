"""The greedy choice by a kernel on a GPU; tests/plain/test_triton.py runs it in Triton's interpreter."""

import pytest
import torch

from clearhead.decoding import Rules, greedy


def test_elsewhere_and_where_a_rule_forbids_tokens_torch_chooses():
    assert not greedy.serves(Rules(max_new=3), torch.device("cpu"))
    assert not greedy.serves(Rules(max_new=3, never=(2,)), torch.device("cuda"))
    assert not greedy.serves(Rules(max_new=3, min_new=2, end=(1,)), torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 32_000), (70, 5), (3, 50_257)])
def test_it_takes_what_torch_takes(rows, vocabulary, dtype):
    torch.manual_seed(0)
    logits = 4 * torch.randn(rows, vocabulary, device="cuda", dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    wanted = torch.log_softmax(logits, -1, dtype=wide)
    value, token = greedy.likeliest(logits)
    torch.testing.assert_close(value, wanted.amax(-1), atol=1e-5, rtol=1e-5)
    first = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
    assert torch.equal(token, first)
