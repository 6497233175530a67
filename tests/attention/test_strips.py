"""Products of a single row with a matrix in strips are torch's own."""

import gc
import mmap
import weakref

import pytest
import torch
from torch.nn import functional as F

from clearhead.attention import strips
from clearhead.attention.strips import LAYOUTS, LargePages, Strips, find_reading, has_strips

SHAPES = [(1, 1), (5, 7), (32, 6), (33, 1), (64, 40), (257, 131), (700, 300), (1000, 3)]
"""Outputs and inputs: of less than a strip, of whole strips, and of some that do not divide by the streams."""

pytestmark = pytest.mark.skipif(not has_strips(torch.float32), reason="this torch has no fbgemm")


def drawn(d_out: int, d_in: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    if dtype is torch.int8:
        return torch.randn(1, d_in), torch.randint(-127, 128, (d_out, d_in), dtype=dtype)
    return torch.randn(1, d_in).to(dtype), torch.randn(d_out, d_in).to(dtype)


@pytest.mark.parametrize("rows_at_once", [1, 200, strips.ROWS_AT_ONCE])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", LAYOUTS)
def test_it_is_a_linear_map(
    dtype: torch.dtype, shape: tuple[int, int], rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strips, "ROWS_AT_ONCE", rows_at_once)
    x, weight = drawn(*shape, dtype)
    bias = torch.randn(shape[0]).to(x.dtype)
    matrix = Strips(weight)
    for added in (None, bias):
        found = matrix(x, added)
        wanted = F.linear(x.double(), weight.double(), None if added is None else added.double())
        assert (found.dtype, found.shape) == (x.dtype, (1, shape[0]))
        if dtype is torch.bfloat16:  # the product is rounded, and the sum
            bound = 2**-8 * (F.linear(x.double(), weight.double()).abs() + wanted.abs()) + 1e-6
        else:
            bound = 2e-6 * (1 + x.double().abs() @ weight.double().abs().T)
        assert ((found - wanted).abs() <= bound).all()
        assert torch.equal(matrix(x, added), found)
    assert len(matrix.parts) > 1 or rows_at_once > 1 or shape[0] <= LAYOUTS[dtype].width


def test_what_is_no_number_stays_so() -> None:
    _, weight = drawn(40, 9, torch.float32)
    for dtype in LAYOUTS:
        matrix = Strips(weight.to(dtype))
        for odd in (float("nan"), float("inf")):
            x = torch.ones(1, 9, dtype=matrix.dtype)
            x[0, 4] = odd
            assert not matrix(x).isfinite().any() or dtype is torch.int8


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_it_is_made_and_used_in_and_out_of_inference_mode(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strips, "LARGE_PAGES", LargePages())
    find_reading.cache_clear()
    x, weight = drawn(40, 9, dtype)
    with torch.inference_mode():
        first = Strips(weight)
    second = Strips(weight)
    assert torch.equal(first(x), second(x))
    with torch.inference_mode():
        assert torch.equal(first(x), second(x))


@pytest.mark.parametrize(("n_strips", "d_in", "streams"), [(1, 1, 6), (3, 5, 4), (8, 64, 6), (2, 3, 1)])
def test_every_row_has_a_place_of_its_own(n_strips: int, d_in: int, streams: int) -> None:
    indices, bags, n_rows = find_reading(n_strips, d_in, streams)
    assert len(indices.unique()) == n_strips * d_in
    assert indices.min() == 0
    assert indices.max() < n_rows
    assert bags.tolist() == [strip * d_in for strip in range(n_strips)]


def test_large_pages_are_handed_out_side_by_side_and_freed() -> None:
    pages = LargePages(1 << 20)
    first, second = pages.take(1000), pages.take(70)
    assert (len(first), len(second)) == (1000, 70)
    assert second.data_ptr() - first.data_ptr() == 1024
    assert first.data_ptr() % 64 == 0
    first.fill_(1)
    second.fill_(2)
    assert first.eq(1).all()
    alone = pages.take(1 << 21)  # more than is mapped at a time
    assert len(alone.fill_(3)) == 1 << 21
    assert second.eq(2).all()


def test_without_large_pages_memory_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert LargePages().take(100).fill_(1).sum() == 100


def test_its_memory_is_freed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = list[weakref.ref[mmap.mmap]]()

    class Watched(mmap.mmap):
        def __init__(self, *given: object, **named: object) -> None:
            mapped.append(weakref.ref(self))

    monkeypatch.setattr(mmap, "mmap", Watched)
    pages = LargePages(1 << 20)
    taken = [pages.take(1 << 20), pages.take(1 << 20)]
    del taken[0]
    gc.collect()
    assert [one() is None for one in mapped] == [True, False]
