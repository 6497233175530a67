"""Pacing: the schedule follows the minutes, whatever the machine does."""

import math
import random
from dataclasses import replace

import pytest

from clearhead.training.loop import crosses
from clearhead.training.pacing import FINAL, LEAVING, LONGEST, LONGEST_END, PRECISION, Pacing
from clearhead.training.recipe import Budget, Checkpointing, Plan
from clearhead.training.scores import FEWEST_BATCHES
from tests.training import small_runs
from tests.training.tiny import quiet, recipe_for


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    made = recipe_for(small_runs.classifying, tmp_path_factory.mktemp("pacing"))
    plan = Plan(
        steps=2000,
        step_seconds=0.25,
        used_seconds=45.0,
        reading_seconds=40.0,
        sample=40,
        evaluation_seconds=3.0,
        scoring_seconds=20.0,
        ending_seconds=2.0,
    )
    return replace(made, budget=Budget(minutes=10.0), checkpointing=Checkpointing(evaluate=250), plan=plan)


def as_planned(seconds):
    return 1.0


def run(pacing, load=as_planned, *, logs=20, step=0.25, evaluation=3.0):
    """Pace a run on a clock of its own, as the training loop does, and return its seconds, those of the end included.

    Everything takes `load(seconds so far)` times as long as when the plan was made.
    """
    seconds = 0.0
    while not pacing.is_over():
        before = pacing.position
        seconds += (step(pacing.steps) if callable(step) else step) * load(pacing.spent)
        pacing.count_step(seconds, logs=(pacing.steps + 1) % logs == 0)
        if pacing.is_over() or (crosses(before, pacing.position, 250) and pacing.affords_evaluation()):
            pacing.spend(evaluate(pacing, evaluation * load(pacing.spent)), scoring=True)
    before, after = (1 - LEAVING) * 2.0 * load(pacing.spent), LEAVING * 2.0 * load(pacing.spent)
    deadline, scored, batches = pacing.available(before), 0.0, 100
    for batch in range(batches):
        if batch >= FEWEST_BATCHES and scored > deadline:
            break
        scored += evaluation / 3.0 * 20.0 / batches * load(pacing.spent)
    return pacing.spent + before + scored + after


def evaluate(pacing, seconds):
    """Return how long an evaluation takes that would take so many seconds for the planned sample."""
    planned, longest = pacing.plan.sample, pacing.longest
    read = min(planned, max(FEWEST_BATCHES, int(planned * longest / seconds))) if longest < seconds else planned
    if not pacing.evaluated:
        pacing.narrow(None, 3.0, read)
    return seconds * pacing.cut


CASES = {
    "as planned": {},
    "three times slower": {"load": lambda seconds: 3.0},
    "quicker": {"load": lambda seconds: 0.4},
    "load that doubles in the middle": {"load": lambda seconds: 1.0 + (seconds > 300)},
    "load that halves in the middle": {"load": lambda seconds: 1.0 - (seconds > 300) / 2},
    "slower and slower": {"load": lambda seconds: 1 + seconds / 200},
    "busy in turns": {"load": lambda seconds: 1.0 + 2 * (seconds // 60 % 2)},
    "evaluations of 20 s": {"evaluation": 20.0},
    "quick evaluations": {"evaluation": 0.1},
    "first steps slow": {"step": lambda number: 5.0 if number < 20 else 0.25},
    "ten times slower": {"load": lambda seconds: 10.0},
    "32 times slower steps": {"step": 8.0},
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@cases
def test_the_end_comes_on_time_and_training_gets_four_fifths(recipe, case):
    """Of what is left after reading. The schedule has come to its end, too."""
    pacing = Pacing(recipe, quiet)
    assert run(pacing, **case) == pytest.approx(600, rel=0.05)
    assert pacing.seconds >= 0.8 * (600 - 40)
    assert pacing.position > 0.95 * 2000
    assert pacing.evaluated >= 2


@pytest.mark.parametrize("evaluation", [3.0, 6.0])
def test_what_was_spent_before_the_first_step_leaves_less_for_evaluations(recipe, evaluation):
    """A line to beat took a tenth of the time after reading: it, evaluations and the end have a fifth together."""
    pacing = Pacing(recipe, quiet)
    pacing.begin(40 + 0.1 * 560)
    assert run(pacing, evaluation=evaluation) == pytest.approx(600, rel=0.05)
    assert pacing.seconds >= 0.8 * 560


def test_a_dev_text_that_is_too_long_is_sampled_at_the_end_as_well(recipe):
    pacing = Pacing(replace(recipe, plan=replace(recipe.plan, scoring_seconds=200.0)), quiet)
    run(pacing)
    assert pacing.available(0.0) == pytest.approx(FINAL * 555 + (1 - LEAVING) * 2, abs=1)
    assert pacing.final == pytest.approx(200, abs=1)
    small = Pacing(recipe, quiet)
    run(small)
    assert small.available(2.0) > small.final - 2
    assert Pacing(replace(recipe, budget=Budget(steps=9), plan=None), quiet).available(1e9) == math.inf


def test_as_planned_each_step_counts_for_one(recipe):
    pacing = Pacing(recipe, quiet)
    for step in range(100):
        pacing.count_step(0.25 * (step + 1), logs=step % 20 == 19)
    assert pacing.position == 100


def test_a_sample_goes_by_the_scatter_that_the_first_evaluation_finds(recipe):
    """Four times the batches halve the standard error; once it is found, the sample stays."""
    pacing = Pacing(recipe, quiet)
    for scatter, batches in ((2 * PRECISION, 40), (PRECISION / 2, 10), (1e-9, FEWEST_BATCHES)):
        pacing.sample = 40
        pacing.narrow(scatter * 3.0, 3.0, 40)
        assert pacing.sample == batches  # of the first, more would be better, and there is no time for them
    pacing.spend(1.0, scoring=True)
    pacing.narrow(1e-9, 3.0, 4)
    assert pacing.sample == FEWEST_BATCHES
    steps = Pacing(replace(recipe, budget=Budget(steps=9), plan=None), quiet)
    steps.narrow(1e-9, 3.0, 40)
    assert steps.sample is None


def test_a_first_evaluation_that_is_cut_short_says_how_long_the_others_take(recipe):
    pacing = Pacing(recipe, quiet)
    assert pacing.longest == LONGEST * 555
    pacing.narrow(None, 3.0, 10)
    pacing.spend(3.0, scoring=True)
    assert (pacing.sample, pacing.cut, pacing.longest) == (10, 0.625, math.inf)
    assert 1.3 < pacing.factor < 1.6  # a quarter of the batches in the planned time


def test_one_slow_evaluation_does_not_end_a_run(recipe):
    """A run of a minute ended after half of it: its first evaluation was cut short, but took long."""
    pacing = Pacing(recipe, quiet)
    pacing.count_step(0.25, logs=True)
    pacing.narrow(None, 3.0, FEWEST_BATCHES)
    pacing.spend(240.0, scoring=True)
    assert pacing.ending == LONGEST_END * 555
    assert not pacing.is_over()


def test_where_the_time_went_adds_up(recipe):
    pacing = Pacing(recipe, quiet)
    pacing.begin(51.0)
    end = run(pacing) - pacing.spent
    account = pacing.account(steps=pacing.seconds, end=end)
    assert account["planned"] == 600
    assert account["total"] == pytest.approx(600, rel=0.05)
    assert (account["reading"], account["preparing"]) == (40.0, 11.0)
    assert sum(account[name] for name in ("reading", "preparing", "steps", "evaluations", "end")) == pytest.approx(
        account["total"], abs=0.1
    )


@pytest.mark.slow
def test_at_random_speeds_the_minutes_are_kept_and_the_end_is_reached(recipe):
    draw = random.Random(7)
    for _ in range(50):
        load, evaluation = 10 ** draw.uniform(-1.3, 1.3), draw.uniform(0.1, 4)
        pacing = Pacing(recipe, quiet)
        end = run(pacing, lambda _, load=load: load * draw.uniform(0.5, 2), evaluation=evaluation)
        assert pacing.position > 0.9 * 2000
        assert end == pytest.approx(600, rel=0.05)


def test_a_slow_machine_is_told_once_and_not_again_and_again(recipe):
    said = []
    run(Pacing(recipe, said.append), lambda _: 10.0)
    assert len(said) == 1
    assert "steps take 2.5 s instead of the 0.25 s that were planned" in said[0]


def test_where_the_text_bears_no_more_steps_a_quick_machine_ends_earlier(recipe):
    pacing = Pacing(replace(recipe, plan=replace(recipe.plan, enough=True)), quiet)
    run(pacing, lambda _: 0.2)
    assert pacing.steps == 2000
    assert pacing.spent < 200


def test_a_resume_goes_on_where_the_checkpoint_was(recipe):
    pacing = Pacing(recipe, quiet)
    for step in range(100):
        pacing.count_step(1.0 * (step + 1), logs=step % 20 == 19)
    again = Pacing(recipe, quiet)
    again.restore(pacing.state(), done=100, seconds=pacing.seconds)
    assert (again.position, again.stride, again.spent) == (pacing.position, pacing.stride, pacing.spent)
    for one in (pacing, again):
        one.count_step(101.0, logs=False)
    assert again.state() == pacing.state()


def test_a_checkpoint_of_another_plan_gives_only_its_steps_and_seconds(recipe):
    pacing = Pacing(recipe, quiet)
    for state in ({}, {"spent": 50.0, "planned": 1, "position": 0.5, "stride": 9.0}):
        pacing.restore(state, done=100, seconds=50.0)
        assert (pacing.position, pacing.stride, pacing.spent) == (100.0, 1.0, 50.0)


def test_the_total_that_is_told_is_steady(recipe):
    """Steps that take now longer and now shorter: the exact total changes all the time."""
    pacing, draw, seconds, told, exact = Pacing(recipe, quiet), random.Random(1), 0.0, [], []
    while not pacing.is_over():
        seconds += 0.25 * draw.uniform(0.8, 1.3)
        pacing.count_step(seconds, logs=pacing.steps % 20 == 19)
        told.append(pacing.announced_total(pacing.steps))
        exact.append(pacing.expected_total(pacing.steps))
    assert told[-1] == pacing.steps
    assert told[:-1] == sorted(told[:-1])  # never back and forth
    assert len(set(told[:-1])) <= 4 < len(set(exact))
    assert set(told[: len(told) // 2]) == {2000}
