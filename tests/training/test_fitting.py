"""Fitting: the budget shapes the recipe, and what the user has set is kept."""

from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.training import fitting
from clearhead.training.fitting import Workload, active_parameters, batch_for, choose_vocabulary, fit, planned_again
from clearhead.training.folder import RunFolder
from clearhead.training.machine import Pace, ScoringPace
from clearhead.training.pacing import FEWEST_BATCHES, SCORING
from clearhead.training.recipe import Budget, Machine, Open, Plan, read_recipe, write_recipe
from clearhead.training.resume import resume
from clearhead.training.schedules import Constant
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.tiny import quiet, recipe_for, work_on

ALL = get_args(Open)
CPU = Machine(device="cpu", precision="float32", threads=1)


@pytest.fixture(scope="module")
def works(tmp_path_factory):
    def made(kind):
        folder = tmp_path_factory.mktemp(kind.__name__)
        return work_on(replace(recipe_for(kind, folder), machine=CPU), folder)

    return {kind: made(kind) for kind in (small_runs.translating, small_runs.documents, small_runs.classifying)}


@pytest.fixture
def fitted(works, monkeypatch):
    """Fit a recipe of a kind, on a machine of so many multiplications a second and a text of so many tokens."""

    def made(
        kind=small_runs.translating,
        *,
        speed=1e10,
        text=5_000_000,
        batch=1e-3,
        record=0.01,
        used=2.0,
        log=quiet,
        **changed,
    ):
        work = works[kind]
        opened = {"budget": Budget(minutes=8.0, patience=10), "open": tuple(one for one in ALL if one != "budget")}
        recipe = replace(work.recipe, model=work.spec, **(opened | changed))

        def time_steps(recipe, spec, task, prepared, *, seconds):
            tokens = 0.9 * recipe.batching.tokens
            with torch.device("meta"):
                return Pace(1e-3 + tokens * active_parameters(spec) / speed, tokens), spec.build()

        monkeypatch.setattr(fitting, "time_steps", time_steps)
        monkeypatch.setattr(fitting, "time_scoring", lambda *_: ScoringPace(batch, 200, 0.05, record))
        monkeypatch.setattr(fitting, "time_ending", lambda: 0.7)
        monkeypatch.setattr(Workload, "text_tokens", property(lambda _: text))
        return fit(recipe, Workload(task=work.task, prepared=work.prepared, used=used), log)

    return made


@pytest.mark.slow
def test_it_says_what_will_happen_in_one_line(fitted):
    said = []
    recipe = fitted(log=said.append)
    assert said == [f"about {recipe.plan.steps:,} steps in 8 minutes on this machine; a {size_of(recipe)} model"]


def size_of(recipe):
    with torch.device("meta"):
        return fitting.round_count(sum(one.numel() for one in recipe.model.build().parameters()))


@pytest.mark.parametrize(("speed", "minutes"), [(1e8, 1.0), (1e10, 8.0), (1e14, 3.0), (1e12, 100.0)])
@pytest.mark.parametrize("kind", [small_runs.translating, small_runs.documents])
@pytest.mark.slow
def test_on_any_machine_the_rate_is_down_at_the_end_after_eight_evaluations(fitted, kind, speed, minutes):
    recipe = fitted(kind, speed=speed, budget=Budget(minutes=minutes))
    steps, schedule = recipe.plan.steps, recipe.optimizer.schedule
    assert steps > 200
    assert 0 < schedule.warmup < steps / 4
    assert schedule.at(steps - 1, total=steps) < 0.05
    assert steps // recipe.checkpointing.evaluate >= 8
    assert recipe.plan.scoring_seconds + recipe.plan.used_seconds <= 60 * minutes / 4
    assert recipe.plan.steps * recipe.plan.step_seconds <= 60 * minutes
    assert recipe.open == ()


@pytest.mark.parametrize("batch", [1e-4, 0.01, 1.0])
def test_evaluations_read_as_much_of_the_dev_text_as_the_minutes_have_time_for(fitted, batch):
    """200 batches: all of quick ones, of slow ones the fewest that tell something; and no more than the share."""
    plan = fitted(small_runs.documents, batch=batch, record=0.0, budget=Budget(minutes=3.0)).plan
    if batch == 1e-4:
        assert plan.sample == 200
    else:
        assert plan.sample == FEWEST_BATCHES if batch == 1.0 else FEWEST_BATCHES < plan.sample < 200
    if batch < 1:
        assert 8 * plan.evaluation_seconds <= SCORING * 180
    assert plan.shows_samples
    assert plan.scoring_seconds == pytest.approx(0.05 + 200 * batch)
    assert plan.steps * plan.step_seconds >= (0.8 if batch < 1 else 0.5) * (180 - 2)


def test_reading_that_takes_more_than_half_of_the_minutes_makes_the_end_later(fitted, monkeypatch):
    said = []
    monkeypatch.setattr(fitting, "time", SimpleNamespace(perf_counter=lambda: 0.0))  # fitting itself takes no time
    plan = fitted(used=50.0, budget=Budget(minutes=1.0), log=said.append).plan
    assert (plan.used_seconds, plan.late_seconds) == (30.0, 20.0)
    assert "Reading took more than half of them: it ends after about 1.3 minutes" in said[-1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [small_runs.translating, small_runs.documents])
def test_more_minutes_train_a_larger_model_on_larger_batches(fitted, kind):
    made = [fitted(kind, budget=Budget(minutes=minutes)) for minutes in (1.0, 30.0, 1000.0)]
    sizes = [active_parameters(recipe.model) for recipe in made]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    batches = [recipe.batching.tokens for recipe in made]
    assert batches == sorted(batches)
    assert [recipe.optimizer.lr for recipe in made][-1] < made[0].optimizer.lr


@pytest.mark.slow
def test_a_short_text_gets_a_small_model_much_dropout_and_an_early_end(fitted):
    said = []
    little, much = (fitted(small_runs.documents, text=n, speed=1e13, log=said.append) for n in (300_000, 3_000_000_000))
    assert active_parameters(little.model) <= fitting.PARAMETERS_A_TOKEN * 300_000 < active_parameters(much.model)
    assert (little.model.blocks[0].dropout, much.model.blocks[0].dropout) == (0.4, 0.0)
    assert little.optimizer.weight_decay > much.optimizer.weight_decay
    assert little.plan.enough
    assert little.plan.steps * little.batching.tokens < 40 * 300_000
    assert "The text bears no more: it ends after about" in said[0]
    assert "bears" not in said[1]


@pytest.mark.parametrize("kind", [small_runs.translating, small_runs.documents])
@pytest.mark.slow
def test_more_time_than_the_text_bears_makes_no_larger_batches_and_no_fewer_steps(fitted, kind):
    """On Multi30k three minutes of a GPU once trained for half as many steps as one minute did."""
    made = [fitted(kind, text=400_000, speed=1e13, budget=Budget(minutes=minutes)) for minutes in (5.0, 50.0, 500.0)]
    assert [recipe.plan.enough for recipe in made] == [True] * 3
    assert len({recipe.batching.tokens for recipe in made}) == 1
    assert len({recipe.plan.steps for recipe in made}) == 1
    assert made[0].plan.steps > 3_000


@pytest.mark.slow
def test_whatever_was_set_is_kept(fitted, works):
    work = works[small_runs.translating]
    optimizer = replace(work.recipe.optimizer, lr=0.123, schedule=Constant(warmup=77))
    for name, read in {
        "model": lambda one: one.model.d_model,
        "batch": lambda one: one.batching.tokens,
        "lr": lambda one: one.optimizer.lr,
        "schedule": lambda one: type(one.optimizer.schedule),
        "warmup": lambda one: one.optimizer.schedule.warmup,
        "evaluate": lambda one: one.checkpointing.evaluate,
        "log": lambda one: one.checkpointing.log,
    }.items():
        given = replace(work.recipe, model=work.spec, optimizer=optimizer)
        left = tuple(one for one in ALL if one not in (name, "budget"))
        assert read(fitted(optimizer=optimizer, open=left)) == read(given), name
        if name != "log":
            assert read(fitted(optimizer=optimizer)) != read(given), name


def test_nothing_open_is_only_planned(fitted, works):
    work = works[small_runs.translating]
    recipe = fitted(open=())
    assert recipe.plan is not None
    assert replace(recipe, plan=None, budget=work.recipe.budget, model=work.recipe.model) == work.recipe


def test_minutes_too_few_for_anything_are_refused_and_few_are_told(fitted):
    with pytest.raises(OptionError, match=r"minutes: in 0\.01 there is time for \d+ steps .* nothing is learned"):
        fitted(speed=1e7, budget=Budget(minutes=0.01))
    said = []
    fitted(speed=3e7, budget=Budget(minutes=0.25), log=said.append)
    assert "WARNING: 0.25 minutes are few: time for" in said[0]


def test_without_a_budget_it_aims_at_a_point_and_tells_how_long_that_takes(fitted):
    said = []
    recipe = fitted(speed=1e9, budget=Budget(steps=500, patience=10), open=ALL, log=said.append)
    assert recipe.plan is None
    assert recipe.budget.patience == 10
    taken = recipe.budget.steps * 0.9 * recipe.batching.tokens * active_parameters(recipe.model) / 1e9
    assert taken < 3600
    assert said[-1].startswith(
        f"it ends when the validation score no longer rises, after {recipe.budget.steps:,} steps"
    )
    assert "minutes on this machine at most" in said[-1]


@pytest.mark.parametrize("budget", [Budget(steps=60), Budget(steps=100_000), Budget(epochs=3.0)])
def test_steps_and_epochs_are_kept_and_their_time_is_told(fitted, budget):
    said = []
    recipe = fitted(budget=budget, log=said.append)
    assert (recipe.budget, recipe.plan) == (budget, None)
    assert "on this machine" in said[-1]
    steps = budget.steps or 1000
    assert recipe.optimizer.schedule.warmup <= steps / 4
    assert active_parameters(recipe.model) <= active_parameters(fitted(open=()).model)


def test_the_model_of_a_classifier_is_its_own(fitted, works):
    recipe = fitted(small_runs.classifying)
    assert recipe.model == works[small_runs.classifying].spec
    assert recipe.optimizer.lr == works[small_runs.classifying].recipe.optimizer.lr
    assert recipe.plan.steps // recipe.checkpointing.evaluate >= 8


def test_a_batch_grows_with_the_root_of_all_tokens():
    assert [batch_for(tokens) for tokens in (1.0, 3e6, 5e7, 5e8, 1e15)] == [512, 1024, 4096, 16384, 32768]


def test_a_slow_cpu_gets_a_vocabulary_that_it_can_write_from(works, monkeypatch):
    monkeypatch.setattr(fitting, "suggested_size", lambda _: 32_000)
    recipe = works[small_runs.documents].recipe
    asked = replace(recipe, tokenizing=replace(recipe.tokenizing, kind="bpe", size=None), open=ALL)
    sizes = []
    for speed, minutes in ((1e9, 1.0), (1e11, 3.0), (1e11, 100.0), (1e15, 1e4)):
        monkeypatch.setattr(fitting, "matmul_speed", lambda _, speed=speed: speed)
        sizes.append(choose_vocabulary(replace(asked, budget=Budget(minutes=minutes))).tokenizing.size)
    assert sizes[:3] == sorted(sizes[:3])
    assert sizes[0] == 1000
    assert sizes[3] is None  # as large as the text suggests
    given = replace(asked, tokenizing=replace(asked.tokenizing, size=7777), budget=Budget(minutes=1.0))
    assert choose_vocabulary(given) == given


def test_another_budget_is_planned_at_the_speed_that_was_reached(works):
    recipe = replace(works[small_runs.translating].recipe, budget=Budget(minutes=10.0))
    plan = planned_again(recipe, done=100, seconds=50.0, spent=60.0)
    assert plan.steps == 100 + (600 - 60) * 2
    again = replace(recipe, plan=Plan(steps=9, step_seconds=0.5, scoring_seconds=30.0))
    assert planned_again(again, done=0, seconds=0.0, spent=0.0).steps == (600 - 30) * 2


def test_a_plan_and_what_is_open_are_saved_and_loaded(works, tmp_path):
    recipe = replace(works[small_runs.documents].recipe, open=("lr", "model"), plan=Plan(steps=9, step_seconds=0.5))
    write_recipe(recipe, tmp_path / "recipe.json")
    assert read_recipe(tmp_path / "recipe.json") == recipe


@pytest.mark.slow
def test_a_run_of_minutes_is_fitted_trained_and_resumed_by_its_recipe(tmp_path, monkeypatch):
    """The whole way: fitted once, written down as a plain recipe, and followed by a resume with more minutes."""
    monkeypatch.setattr(fitting, "FEWEST", 1)  # whatever else the machine has to do
    recipe = recipe_for(small_runs.documents, tmp_path / "text", budget=Budget(minutes=0.06))
    opened = tuple(one for one in ALL if one not in ("budget", "vocabulary"))
    said = []
    train(tmp_path / "run", replace(recipe, machine=CPU, open=opened), log=said.append)
    folder = RunFolder(tmp_path / "run")
    fitted = folder.recipe()
    assert fitted.open == ()
    assert any("steps in 0.06 minutes on this machine" in line for line in said)
    done = folder.checkpoints.all()[0].step
    resume(tmp_path / "run", budget=Budget(minutes=0.12), log=quiet)
    longer = folder.recipe()
    assert (longer.model, longer.optimizer, longer.batching) == (fitted.model, fitted.optimizer, fitted.batching)
    assert longer.plan.steps > done  # at the speed that it had, so not always more than were planned
    assert folder.checkpoints.all()[0].state["pacing"]["planned"] == longer.plan.steps
