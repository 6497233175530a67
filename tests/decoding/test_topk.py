"""`top` is torch's topk, whichever way it takes; `LogSoftmax` a log-softmax."""

import pytest
import torch

from clearhead.decoding.topk import GROUP, LogSoftmax, best, top

FIRST = 32 * GROUP
"""The shortest row that is looked at in groups."""
SIZES = [
    (1, 1),
    (5, 5),
    (5, 9),
    (63, 4),
    (FIRST - 1, 3),
    (FIRST, 1),
    (FIRST, 8),
    (FIRST, 9),
    (FIRST + 1, 8),
    (FIRST + 63, 5),
    (10_000, 39),
    (10_000, 40),
    (9_984, 39),
    (20_017, 10),
]
"""Row lengths and k around the thresholds: groups of 64, 32 of them at least, and four times as many as k."""


def filled(kind: str, n: int) -> torch.Tensor:
    values = torch.randn(3, n)
    if kind == "tied":
        values = values.round()
    if kind == "mostly -inf":
        values = values.masked_fill(torch.rand(3, n) < 0.999, float("-inf"))
    if kind == "all -inf":
        values = torch.full((3, n), float("-inf"))
    if kind == "best at the end":
        values[:, -3:] += 100
    if kind == "best in one group":
        values[:, : min(n, GROUP)] += 100
    return values


@pytest.mark.parametrize("kind", ["random", "tied", "mostly -inf", "all -inf", "best at the end", "best in one group"])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_top_is_topk(kind, n, k):
    values = filled(kind, n)
    found, places = top(values, k)
    assert torch.equal(found, values.topk(min(k, n), -1).values)
    assert torch.equal(values.gather(-1, places), found)
    assert all(len(set(row)) == min(k, n) for row in places.tolist())


def test_the_groups_are_used(monkeypatch):
    """Past the threshold torch's topk never sees the whole row."""
    seen = []
    original = torch.Tensor.topk
    monkeypatch.setattr(torch.Tensor, "topk", lambda self, *rest: seen.append(self.shape[-1]) or original(self, *rest))
    top(torch.randn(2, FIRST - 1), 8)
    top(torch.randn(2, FIRST), 9)
    assert seen == [FIRST - 1, FIRST]
    top(torch.randn(2, FIRST), 8)
    assert max(seen[2:]) < FIRST


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_log_probs_are_a_log_softmax_in_float32_or_better(dtype):
    kept = LogSoftmax()
    for rows in (3, 2, 5, 1):  # the memory is used again, and grows where it must
        logits = (torch.randn(rows, 50) * 4).to(dtype)
        found, wanted = kept.of(logits), torch.log_softmax(logits.double(), -1)
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("n", [7, 3_000, 70_000])
def test_the_best_is_the_largest(n):
    values = torch.randn(3, n)
    found, place = best(values)
    assert torch.equal(found, values.amax(-1))
    assert torch.equal(values.gather(-1, place.unsqueeze(-1)).squeeze(-1), found)
