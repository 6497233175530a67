"""Schedules: by hand, against torch's own where it has one, and what holds for all of them."""

import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from clearhead.errors import OptionError
from clearhead.training.schedules import (
    AVERAGES,
    SCHEDULES,
    Constant,
    CosineDecay,
    Ema,
    InverseSqrt,
    Last,
    Unaveraged,
    WarmupStableDecay,
)

schedules = st.one_of(
    st.builds(Constant, warmup=st.integers(0, 50)),
    st.builds(InverseSqrt, warmup=st.integers(0, 50)),
    st.builds(CosineDecay, warmup=st.integers(0, 50), floor=st.floats(0, 1)),
    st.builds(WarmupStableDecay, warmup=st.integers(0, 50), decay=st.floats(0, 1), floor=st.floats(0, 1)),
)


def torchs(make, steps):
    """The rates of one of torch's schedulers, from a peak of 1."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimiser)
    rates = []
    for _ in range(steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(), [1, 1, 1, 1, 1, 1]),
        (Constant(warmup=2), [1 / 2, 1, 1, 1, 1, 1]),
        (InverseSqrt(warmup=2), [1 / 2, 1, math.sqrt(2 / 3), math.sqrt(2 / 4), math.sqrt(2 / 5), math.sqrt(2 / 6)]),
        (InverseSqrt(), [1, math.sqrt(1 / 2), math.sqrt(1 / 3), 1 / 2, math.sqrt(1 / 5), math.sqrt(1 / 6)]),
        (
            CosineDecay(warmup=2, floor=0.0),
            [1 / 2, 1, 1, (1 + math.sqrt(1 / 2)) / 2, 1 / 2, (1 - math.sqrt(1 / 2)) / 2],
        ),
        (WarmupStableDecay(warmup=2, decay=0.5, floor=0.0), [1 / 2, 1, 1, 1, 2 / 3, 1 / 3]),
        (WarmupStableDecay(warmup=4, decay=1.0, floor=0.5), [1 / 4, 2 / 4, 3 / 4, 1, 1, 3 / 4]),
    ],
)
def test_six_steps_by_hand(schedule, expected):
    assert [schedule.at(step, total=6) for step in range(6)] == pytest.approx(expected)


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_is_torchs(floor):
    expected = torchs(lambda optimiser: lr_scheduler.CosineAnnealingLR(optimiser, T_max=50, eta_min=floor), 50)
    assert [CosineDecay(floor=floor).at(step, total=50) for step in range(50)] == pytest.approx(expected)


def test_cosine_after_its_warm_up_is_torchs():
    expected = torchs(lambda optimiser: lr_scheduler.CosineAnnealingLR(optimiser, T_max=40, eta_min=0.1), 40)
    assert [CosineDecay(warmup=10).at(step, total=50) for step in range(10, 50)] == pytest.approx(expected)


def test_the_line_of_warmup_stable_decay_is_torchs():
    expected = torchs(lambda optimiser: lr_scheduler.LinearLR(optimiser, 1.0, 0.2, total_iters=10), 10)
    schedule = WarmupStableDecay(warmup=5, decay=0.2, floor=0.2)
    assert [schedule.at(step, total=50) for step in range(40, 50)] == pytest.approx(expected)


def test_the_warm_up_is_torchs():
    expected = torchs(lambda optimiser: lr_scheduler.LinearLR(optimiser, 0.1, 1.0, total_iters=9), 10)
    for make in SCHEDULES.values():
        assert [make(warmup=10).at(step, total=50) for step in range(10)] == pytest.approx(expected)


@given(schedules, st.integers(1, 200))
def test_a_share_lies_between_the_floor_and_one(schedule, total):
    floor = asdict(schedule).get("floor", 0.0)
    shares = [schedule.at(step, total=total) for step in range(total + 20)]
    assert all(0 <= share <= 1 + 1e-12 for share in shares)
    assert all(share >= floor - 1e-12 for share in shares[schedule.warmup :])


@given(schedules, st.integers(1, 200))
def test_it_rises_then_falls(schedule, total):
    shares = [schedule.at(step, total=total) for step in range(total)]
    peak = min(schedule.warmup, total)
    assert shares[:peak] == sorted(shares[:peak])
    assert shares[peak:] == sorted(shares[peak:], reverse=True)


@given(schedules, st.integers(60, 1000))
def test_there_is_no_jump_where_the_warm_up_ends(schedule, total):
    """The step after it is at the peak, or one step of a smooth fall below."""
    after = schedule.at(schedule.warmup, total=total)
    fall = 1 - math.sqrt(max(schedule.warmup, 1) / (schedule.warmup + 1))
    assert 1 - fall - 1e-12 <= after <= 1


def test_a_run_without_steps_has_a_rate_too():
    for make in SCHEDULES.values():
        assert 0 <= make().at(0, total=0) <= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(warmup=-1), "Constant: warmup must be 0 or more; came -1"),
        (lambda: CosineDecay(floor=1.5), "CosineDecay: floor is a share, from 0 to 1; came 1.5"),
        (lambda: WarmupStableDecay(decay=-0.1), "WarmupStableDecay: decay is a share, from 0 to 1; came -0.1"),
        (lambda: WarmupStableDecay(floor=math.nan), "WarmupStableDecay: floor is a share"),
    ],
)
def test_what_cannot_be_is_told(make, message):
    with pytest.raises(OptionError, match=message):
        make()


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
def test_what_cannot_be_is_told_averaging(make, message):
    with pytest.raises(OptionError, match=message):
        make()
