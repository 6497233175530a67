"""The page that adds a weighting keeps its word: it is short, the grid passes it, and would not pass a wrong one."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import final

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.grid import Report, check, combinations
from tests.docs.pages import blocks
from tests.registering import registry_restored, write_module

PAGE = Path(__file__).parents[2] / "docs/your-own-weighting.md"


def part_code() -> str:
    return next(block.code for block in blocks(PAGE) if "class TopK" in block.code)


@pytest.fixture
def top_k(tmp_path, monkeypatch) -> Iterator[type[ch.weighting.Weighting]]:
    """The class of the page, imported from a file; registered as long as the test runs."""
    write_module(tmp_path, text=part_code())
    monkeypatch.syspath_prepend(str(tmp_path))
    with registry_restored("mine"):
        yield importlib.import_module("mine").TopK


@final
@dataclass(frozen=True)
class Changed(ch.weighting.Weighting):
    """The page's weighting, with a change to what it is given or gives back."""

    rule: Callable[[Tensor, Tensor], Tensor]

    def weigh(self, masked: Tensor, allowed: Tensor) -> Tensor:
        return self.rule(masked, allowed)


def part_of_the_grid(part: ch.weighting.Weighting) -> Report:
    return check(islice(combinations("blockwise", {"weighting": part}), 60))


def test_the_part_is_under_forty_lines():
    lines = [line for line in part_code().splitlines() if line.strip()]
    assert 10 < len(lines) < 40


@pytest.mark.slow
def test_a_right_one_passes_this_part_of_the_grid(top_k):
    report = part_of_the_grid(Changed(top_k().weigh))
    assert (report.supported, report.failures) == (60, [])


def nan_for_empty_rows(masked: Tensor, allowed: Tensor) -> Tensor:
    last = masked.topk(min(3, masked.shape[-1])).values[..., -1:]
    return torch.softmax(masked.masked_fill(masked < last, float("-inf")), -1)


def not_row_by_row(masked: Tensor, allowed: Tensor) -> Tensor:
    last = masked.topk(min(3, masked.shape[-1])).values.amin((-2, -1), keepdim=True)
    return ch.weighting.softmax_rows(masked.masked_fill(masked < last, float("-inf")), allowed)


def leaking(masked: Tensor, allowed: Tensor) -> Tensor:
    return ch.weighting.softmax_rows(masked.clamp(min=-5), allowed)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [nan_for_empty_rows, not_row_by_row, leaking])
def test_a_wrong_one_does_not(wrong):
    assert part_of_the_grid(Changed(wrong)).failures


@pytest.mark.slow
def test_once_registered_the_grid_finds_it(top_k):
    assert ch.weighting.TABLE["mine:TopK"] == top_k()
    for kernel in ("blockwise", "fused"):
        assert [found for found in islice(combinations(kernel), 300) if found.parts["weighting"] == "mine:TopK"]
