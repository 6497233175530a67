"""Scaling of rotary frequencies: what each kind promises. That they are transformers' own is tested on whole models."""

import math

import pytest
import torch

from clearhead.attention.positions import LinearScaling, Llama3Scaling, Rotary, YaRNScaling
from clearhead.errors import OptionError

DOUBLE = torch.float64


def test_linear_scaling_is_the_same_turn_at_so_many_times_the_position():
    scaled, plain = Rotary(scaling=LinearScaling(4.0)), Rotary()
    for one, other in zip(scaled.angles(torch.arange(9) * 4, 8), plain.angles(torch.arange(9), 8), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "scaling", [Llama3Scaling(8.0, low=1.0, high=4.0, original=64), YaRNScaling(8.0, original=64, fast=4.0)], ids=repr
)
def test_fast_pairs_stay_and_slow_ones_are_divided(scaling):
    """A pair turns original x frequency / 2π times; between `low` and `high` the factor goes from 8 to 1."""
    frequency = 100.0 ** -torch.linspace(0, 1, 9, dtype=DOUBLE)[:-1]
    turns, factor = 64 * frequency / (2 * math.pi), frequency / scaling.scale(frequency, 100.0)
    assert (factor[turns > 8] == 1).all()
    torch.testing.assert_close(factor[turns < 0.5], torch.full_like(factor[turns < 0.5], 8.0))
    assert (factor.diff() >= 0).all()
    assert (factor[(turns > 1.2) & (turns < 3.5)] % 7 != 1).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearScaling(0.0), "LinearScaling: factor must be above 0; came 0.0"),
        (lambda: YaRNScaling(2.0, original=0), "YaRNScaling: original must be above 0; came 0"),
        (lambda: Llama3Scaling(2.0, low=4.0, high=4.0, original=9), "low must be less than high; came 4.0 and 4.0"),
        (lambda: YaRNScaling(2.0, original=9).scale(torch.ones(2), 1.0), "with base = 1 all pairs turn alike"),
    ],
    ids=["linear", "yarn", "llama3", "base 1"],
)
def test_scalings_that_make_no_sense_are_refused(make, message: str):
    with pytest.raises(OptionError, match=message):
        make()
