"""Attention to few keys in training on a CPU, held to the reference."""

import pytest
import torch

import clearhead as ch
from clearhead.attention.kernels import fused, short
from clearhead.errors import UnsupportedError

CASES = {
    "plain": {},
    "one key": {"n_key": 1},
    "causal": {"mask": ch.masks.causal()},
    "more queries than keys": {"n_query": 40, "n_key": 31},
    "padding": {"mask": ch.masks.padding(torch.tensor([3, 7]))},
    "a row that sees nothing": {"mask": ch.masks.padding(torch.tensor([0, 7]))},
    "both": {"mask": ch.masks.causal() & ch.masks.padding(torch.tensor([2, 7]))},
    "bias": {"position": ch.positions.ALiBi()},
    "wider values": {"d_value": 9},
}


def make(n_query: int = 7, n_key: int = 7, d_value: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(5)
    shapes = (2, 3, n_query, 4), (2, 3, n_key, 4), (2, 3, n_key, d_value)
    # As a layer makes them: heads are the third axis in memory.
    return [torch.randn(b, n, h, d, dtype=torch.float64).transpose(1, 2).requires_grad_() for b, h, n, d in shapes]


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls that are computed here."""
    seen = []
    monkeypatch.setattr(
        fused, "attend_short", lambda *args, **options: seen.append(1) or short.attend_short(*args, **options)
    )
    return seen


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_references(name, calls):
    options = dict(CASES[name])
    sizes = {size: options.pop(size) for size in ("n_query", "n_key", "d_value") if size in options}
    found = []
    for kernel in ("fused", "reference"):
        sources = make(**sizes)
        context = ch.attend(*sources, kernel=kernel, **options)
        torch.manual_seed(6)
        context.backward(torch.randn_like(context))
        found.append([context, *(source.grad for source in sources)])
    assert len(calls) == 1
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


def test_nan_goes_where_the_reference_has_it(calls):
    sources = make()
    with torch.no_grad():
        sources[1][0, 0, 5] = float("nan")
        sources[2][1, 2, 6] = float("nan")
    found = [ch.attend(*sources, kernel=kernel, mask=ch.masks.causal()).isnan() for kernel in ("fused", "reference")]
    assert calls
    assert torch.equal(*found)


def test_without_gradients_with_dropout_or_with_many_keys_torch_computes_it(calls):
    sources = make()
    with torch.no_grad():
        ch.attend(*sources, kernel="fused")
    ch.attend(*sources, kernel="fused", dropout=0.5)
    ch.attend(*make(n_key=32), kernel="fused")
    ch.attend(*(source.to(torch.bfloat16) for source in sources), kernel="fused")
    assert not calls


def test_its_second_derivative_is_refused_by_name(calls):
    sources = make()
    (first,) = torch.autograd.grad(ch.attend(*sources, kernel="fused").sum(), sources[0], create_graph=True)
    assert calls
    with pytest.raises(UnsupportedError, match="kernel 'fused' has no second derivative"):
        torch.autograd.grad(first.sum(), sources[0])
