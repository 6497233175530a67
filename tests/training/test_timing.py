"""Timing: real steps and real scoring, with a model that is thrown away."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from clearhead.training.machine import count_tokens, time_scoring, time_steps
from clearhead.training.tasks.base import loss_of
from clearhead.training.tasks.measures import ValidationSet
from clearhead.training.train_step import TrainState
from tests.training import small_runs
from tests.training.tiny import recipe_for, work_on

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = [small_runs.translating, small_runs.documents, small_runs.filling, small_runs.classifying]


@pytest.fixture(scope="module")
def works(tmp_path_factory):
    def made(kind):
        folder = tmp_path_factory.mktemp(kind.__name__)
        return work_on(recipe_for(kind, folder), folder)

    return {kind: made(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_text_in_every_task(works, kind):
    """All tokens of an epoch and what frames them, whether rows are filled up or not."""
    work = works[kind]
    store, layout = work.prepared.train, work.task.usual_layout()
    planner = work.task.planner(store, 512, 1)

    def total(filled):
        random = np.random.default_rng(0)
        return sum(count_tokens(work.task.read(store, rows, random, filled=filled)) for rows in planner.epoch(0))

    text = sum(store.sizes[name].tokens for name in layout.texts)
    assert total(False) == total(True)
    if kind is small_runs.documents:
        assert 0.8 * text < total(False) <= text
    else:
        frames = sum(work.task.frame(name).size for name in layout.texts) * len(store)
        # The last token of a target is asked for and not read.
        assert total(False) == text + frames - (len(store) if kind is small_runs.translating else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_steps_tell_the_speed(works, kind):
    work = works[kind]
    recipe = replace(work.recipe, machine=replace(work.recipe.machine, precision="float32"))
    pace, model = time_steps(recipe, work.spec, work.task, work.prepared, seconds=0.02)
    assert pace.step_seconds > 0
    assert 0 < pace.tokens <= 1300
    scoring = time_scoring(recipe, model, work.task, work.prepared)
    assert scoring.batch > 0
    assert scoring.samples > 0
    assert scoring.batches == loss_of(model, work.task, whole(work, recipe)).batches


def whole(work, recipe):
    return ValidationSet(store=work.prepared.dev, tokens=recipe.batching.at_once, score_records=0, samples=0)


def test_timing_teaches_a_model_nothing(works):
    work = works[small_runs.classifying]
    torch.manual_seed(work.recipe.seed)
    untrained = work.spec.build()
    recipe = replace(work.recipe, machine=replace(work.recipe.machine, precision="float32"))
    _, model = time_steps(recipe, work.spec, work.task, work.prepared, seconds=0.02)
    for name, one in untrained.state_dict().items():
        assert torch.equal(one, model.state_dict()[name]), name


def test_a_step_has_all_its_micro_batches(works, monkeypatch):
    work, taken = works[small_runs.classifying], []
    monkeypatch.setattr(TrainState, "step", lambda self, batches, rate: taken.append(len(batches)))
    recipe = replace(work.recipe, batching=replace(work.recipe.batching, micro_batch_tokens=128))
    time_steps(recipe, work.spec, work.task, work.prepared, seconds=0.02)
    assert set(taken) == {4}
