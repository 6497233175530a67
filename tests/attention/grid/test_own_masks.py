"""A mask of a user's own that says nothing but who may attend: any kernel computes it, or refuses it for its reason."""

from dataclasses import dataclass
from itertools import islice

import pytest
import torch

import clearhead as ch
from clearhead.attention.grid import check, check_part, combinations
from clearhead.attention.grid.support import KERNEL_NAMES
from clearhead.attention.mask_rules import Mask


@dataclass(frozen=True)
class Strided(Mask):
    every: int = 2

    def allowed(self, cells):
        back = cells.query - cells.key
        return (back >= 0) & (back % self.every == 0)


@dataclass(frozen=True)
class ByIndex(Mask):
    """Wrong: it asks which queries are computed together."""

    def allowed(self, cells):
        return cells.key_index <= cells.query_index.min()


@dataclass(frozen=True)
class PlusOne(ch.weighting.Weighting):
    """Softmax with 1 added to the sum of exponentials, so that a head may attend to nothing."""

    def weigh(self, masked, allowed):
        top = masked.amax(-1, keepdim=True).clamp(min=0)
        exponentials = (masked - top).exp()
        return exponentials / (exponentials.sum(-1, keepdim=True) + (-top).exp())


@dataclass(frozen=True)
class PlusOneSaid(PlusOne):
    sums_to_one = False


def test_it_is_named_by_its_class_and_told_apart_by_its_fields():
    mask = Strided() & ch.masks.causal()
    assert mask.called == "strided mask and causal mask"
    assert Strided(2).structure == Strided(2).structure != Strided(3).structure
    q = torch.randn(1, 1, 4, 8)
    assert ch.explain(q, q, q, mask=Strided()).weight[0, 0].gt(0).int().tolist()[3] == [0, 1, 0, 1]


def test_a_position_with_other_fields_has_another_structure():
    @dataclass(frozen=True)
    class Near(ch.positions.Position):
        slope: float = 0.1

    assert Near(0.1).structure == Near(0.1).structure != Near(0.2).structure


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [name for name in KERNEL_NAMES if name != "flex"])  # flex compiles: half a minute
def test_each_kernel_computes_it_or_refuses_it(kernel):
    assert check(islice(combinations(kernel, {"mask": lambda extent: Strided()}), 25)).failures == []


@pytest.mark.slow
def test_one_that_depends_on_the_block_is_found():
    assert check(islice(combinations("blockwise", {"mask": lambda extent: ByIndex()}), 25)).failures


def test_what_the_grid_does_not_test_is_named():
    with pytest.raises(ch.ClearheadError, match="is a mask of Clearhead's"):
        check_part(ch.masks.causal() & ch.masks.window(2))
    with pytest.raises(ch.ClearheadError, match="a similarity, a weighting, a position or a mask"):
        check_part(ch.positions.Sinusoidal())


@pytest.mark.slow
def test_rows_that_do_not_sum_to_one_are_reported_once_and_with_what_to_write():
    def of_blockwise(part):
        return check(islice(combinations("blockwise", {"weighting": part}), 25))

    unsaid = of_blockwise(PlusOne())
    assert len(unsaid.failures) > 2
    lines = str(unsaid).splitlines()
    assert len(lines) == 2
    assert "write sums_to_one = False in the class" in lines[1]
    assert of_blockwise(PlusOneSaid()).failures == []
