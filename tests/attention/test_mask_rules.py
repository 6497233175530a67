"""What a rule says of itself beside who may attend: its kinds, its terms, and whether a query sees itself."""

import pytest
import torch

import clearhead as ch
from clearhead.attention.mask_numbers import Extent
from clearhead.attention.mask_rules import Mask
from clearhead.attention.score_index import Positions, box

M = ch.masks
N = 9


@pytest.mark.parametrize("name", M.TABLE)
def test_what_a_rule_says_of_itself_is_so(name: str):
    extent = Extent(3, 2, N, N, torch.device("cpu"))
    mask = M.TABLE[name](extent)
    allowed = mask.allowed(box(Positions.aligned(N, N, extent.device), batch=3, n_heads=2)).expand(3, 2, N, N)
    if mask.sees_itself:
        assert allowed.diagonal(dim1=2, dim2=3).all()
    if mask.from_first_key:
        first = allowed[..., 0]
        assert torch.equal(first, allowed.any(-1))
        assert (first.all(-1) | ~first.any(-1)).all()


def test_the_usual_masks_say_it():
    names = ("none", "causal", "window", "prefix", "causal padding")
    extent = Extent(3, 2, N, N, torch.device("cpu"))
    said = [(M.TABLE[name](extent).sees_itself, M.TABLE[name](extent).from_first_key) for name in names]
    assert said == [(True, True), (True, True), (True, False), (True, True), (False, True)]


@pytest.mark.parametrize(
    ("mask", "kinds"),
    [
        (M.everything(), {"none"}),
        (M.causal() & M.everything(), {"causal"}),
        (M.everything() & M.everything(), {"none"}),
        (M.causal() & M.padding([1]) & M.window(2), {"causal", "padding", "window"}),
        (M.causal() & (M.padding([1]) & M.window(2)), {"causal", "padding", "window"}),
        (M.causal() & M.causal(), {"causal"}),
        (M.causal() | M.padding([1]), {"union"}),
        ((M.causal() | M.padding([1])) & M.prefix(1), {"union", "prefix"}),
        (~M.causal(), {"negation"}),
        (M.document([0, 0, 1]), {"document"}),
        (M.document([0, 1, 0]), {"scattered documents"}),
        (M.document(torch.tensor([[0, 0, 1], [0, 1, 0]])), {"scattered documents"}),
        (M.document([0, 1], [0, 1]), {"cross documents"}),
        (M.function(lambda query, key: query == key), {"function"}),
        (M.causal() & torch.ones(2, 2, dtype=torch.bool), {"causal", "tensor"}),
    ],
)
def test_kinds_name_the_terms_of_an_intersection(mask: Mask, kinds: set[str]):
    assert mask.kinds == kinds


def test_terms_are_the_masks_whose_intersection_it_is():
    a, b, c = M.causal(), M.padding([2]), M.window(1)
    assert (a & b & c).terms == (a, b, c)
    assert (a & (b & c)).terms == (a, b, c)
    for one in (a, a | b, ~(a & b)):
        assert one.terms == (one,)


def test_a_mask_that_needs_no_query_axis_stays_small():
    """Padding has one row for all queries: nothing of n_query x n_key is made."""
    positions = Positions.aligned(1000, 1000, torch.device("cpu"))
    assert M.padding([3, 5]).allowed(box(positions, batch=2, n_heads=4)).shape == (2, 1, 1, 1000)
