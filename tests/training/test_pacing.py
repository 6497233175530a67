"""Pacing: the schedule follows the minutes, whatever the machine does."""

import random
from dataclasses import replace

import pytest

from clearhead.training.pacing import Pacing
from clearhead.training.recipe import Budget, Checkpointing, Plan
from tests.training import small_runs
from tests.training.tiny import quiet, recipe_for


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    made = recipe_for(small_runs.classifying, tmp_path_factory.mktemp("pacing"))
    return replace(
        made,
        budget=Budget(minutes=10.0),
        checkpointing=Checkpointing(evaluate=250),
        plan=Plan(steps=2000, step_seconds=0.25, used_seconds=20.0, scoring_seconds=30.0, evaluation_seconds=5.0),
    )


def run(pacing, step_seconds, *, logs=20, evaluation=5.0):
    """Pace a run whose steps take as long as `step_seconds(position)` says; return its positions."""
    seconds, positions = 0.0, [0.0]
    while not pacing.is_over():
        before = pacing.position
        seconds += step_seconds(pacing.position)
        pacing.count_step(seconds, logs=(pacing.steps + 1) % logs == 0)
        positions.append(pacing.position)
        if int(pacing.position // 250) > int(before // 250):
            pacing.spend(evaluation, scoring=True)
    return positions


def test_as_planned_each_step_counts_for_one(recipe):
    pacing = Pacing(recipe, quiet)
    positions = run(pacing, lambda _: 0.25)
    assert positions[:100] == pytest.approx(list(range(100)))
    assert len(positions) == pytest.approx(2000, rel=0.05)


@pytest.mark.parametrize(
    "slower",
    [lambda _: 2.5, lambda at: 0.25 if at < 600 else 4.0, lambda at: 0.25 + at / 1000, lambda _: 0.1],
    ids=["ten times slower", "busy after a while", "slower and slower", "quicker"],
)
def test_the_schedule_ends_with_the_minutes(recipe, slower):
    pacing = Pacing(recipe, quiet)
    run(pacing, slower)
    assert pacing.position > 0.97 * 2000
    assert pacing.spent + 30 == pytest.approx(600, rel=0.05)


@pytest.mark.slow
def test_at_random_speeds_the_minutes_are_kept_and_the_end_is_reached(recipe):
    draw = random.Random(7)
    for _ in range(50):
        speed = 10 ** draw.uniform(-2, 0.5)
        pacing = Pacing(recipe, quiet)
        positions = run(pacing, lambda _, speed=speed: speed * draw.uniform(0.5, 2), evaluation=draw.uniform(0, 5))
        assert pacing.position > 0.95 * 2000
        assert pacing.spent <= 600 - 30 + 5 + 4 * speed
        assert positions == sorted(positions)


def test_a_slow_machine_is_told_once_and_not_again_and_again(recipe):
    said = []
    run(Pacing(recipe, said.append), lambda _: 2.5)
    assert len(said) == 1
    assert "steps take 2.5 s instead of the 0.25 s that were planned" in said[0]


def test_where_the_text_bears_no_more_steps_a_quick_machine_ends_earlier(recipe):
    pacing = Pacing(replace(recipe, plan=replace(recipe.plan, enough=True)), quiet)
    run(pacing, lambda _: 0.05)
    assert pacing.steps == 2000
    assert pacing.spent < 200


def test_a_resume_goes_on_where_the_checkpoint_was(recipe):
    pacing = Pacing(recipe, quiet)
    for step in range(100):
        pacing.count_step(1.0 * (step + 1), logs=step % 20 == 19)
    again = Pacing(recipe, quiet)
    again.restore({"seconds": pacing.seconds, **pacing.state()}, done=100)
    assert (again.position, again.stride, again.spent) == (pacing.position, pacing.stride, pacing.spent)
    for one in (pacing, again):
        one.count_step(101.0, logs=False)
    assert again.state() == pacing.state()


def test_a_checkpoint_of_another_plan_gives_only_its_steps_and_seconds(recipe):
    pacing = Pacing(recipe, quiet)
    for state in ({"seconds": 50.0}, {"seconds": 50.0, "planned": 1, "position": 0.5, "stride": 9.0}):
        pacing.restore(state, done=100)
        assert (pacing.position, pacing.stride, pacing.spent) == (100.0, 1.0, 50.0)


def test_after_a_slow_evaluation_only_the_loss_is_computed(recipe):
    pacing = Pacing(recipe, quiet)
    assert pacing.affords_outputs()
    pacing.spend(40.0, scoring=True)
    assert not pacing.affords_outputs()
    without = Pacing(replace(recipe, budget=Budget(steps=9), plan=None), quiet)
    without.spend(40.0, scoring=True)
    assert without.affords_outputs()


def test_the_total_that_is_told_is_steady(recipe):
    """Steps that take now longer and now shorter: the exact total changes all the time."""
    pacing, draw, seconds, told, exact = Pacing(recipe, quiet), random.Random(1), 0.0, [], []
    while not pacing.is_over():
        seconds += 0.25 * draw.uniform(0.9, 1.12)
        pacing.count_step(seconds, logs=pacing.steps % 20 == 19)
        told.append(pacing.announced_total(pacing.steps))
        exact.append(pacing.expected_total(pacing.steps))
    assert told[-1] == pacing.steps
    assert told[:-1] == sorted(told[:-1])  # never back and forth
    assert len(set(told[:-1])) <= 4 < len(set(exact))
    assert set(told[: len(told) // 2]) == {2000}
