"""Averaging: how far the average moves at each step, against means computed by hand."""

import math

import pytest

from clearhead.errors import OptionError
from clearhead.training.averaging import AVERAGES, Ema, Last, Unaveraged


def followed(averaging, weights, start=0.0):
    """The average after each of these weights, one number a step."""
    average, found = start, []
    for step, weight in enumerate(weights, start=1):
        average += averaging.ema_weight(step, len(weights)) * (weight - average)
        found.append(average)
    return found


def test_without_averaging_it_is_the_weights():
    assert followed(Unaveraged(), [3.0, 1.0, 4.0]) == [3.0, 1.0, 4.0]


def test_ema_is_the_published_recursion_once_it_is_warm():
    average = Ema(0.5).ema_weight(9, 100) * 1.0
    assert average == 0.5
    weights = [math.sin(step) for step in range(200)]
    found = followed(Ema(0.9), weights)
    for step in range(81, 200):
        assert found[step] == pytest.approx(0.9 * found[step - 1] + 0.1 * weights[step])


def test_ema_forgets_where_it_began():
    """After t steps the start has a share of 9! t! / (t + 9)!: what t / (t + 9) makes, step after step."""
    for steps in (1, 5, 40):
        share = followed(Ema(0.999), [0.0] * steps, start=1.0)[-1]
        assert share == pytest.approx(math.factorial(9) * math.factorial(steps) / math.factorial(steps + 9))


def test_ema_of_constant_weights_is_these_weights():
    assert followed(Ema(), [2.0] * 500, start=2.0)[-1] == pytest.approx(2.0)


@pytest.mark.parametrize(("share", "every", "total"), [(0.2, 10, 100), (0.5, 1, 20), (1.0, 3, 31), (0.25, 4, 37)])
def test_last_is_the_mean_of_its_snapshots(share, every, total):
    weights = [math.cos(step) for step in range(1, total + 1)]
    begins = int((1 - share) * total)
    found = followed(Last(share=share, every=every), weights, start=weights[0])
    snapshots = [weights[max(step, 1) - 1] for step in range(begins, total + 1, every)]
    assert found[-1] == pytest.approx(sum(snapshots) / len(snapshots))
    assert found[:begins] == pytest.approx(weights[:begins])


def test_last_leaves_the_average_alone_between_snapshots():
    last = Last(share=0.5, every=4)
    assert [last.ema_weight(step, 20) for step in range(9, 20)] == [1, 1, 0, 0, 0, 1 / 2, 0, 0, 0, 1 / 3, 0]


def test_names():
    assert list(AVERAGES) == ["none", "ema", "last"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ema(1.0), "Ema: decay must lie from 0 to 1, 1 left out; came 1.0"),
        (lambda: Ema(-0.1), "Ema: decay must lie"),
        (lambda: Last(share=0.0), r"Last: share must lie in \(0, 1\]"),
        (lambda: Last(every=0), r"Last: share must lie in \(0, 1\] and every be 1 or more"),
    ],
)
def test_what_cannot_be_is_told(make, message):
    with pytest.raises(OptionError, match=message):
        make()
