"""The machine: what is left open is decided, and a busy one is given fewer threads; timing takes real steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from clearhead.training import machine
from clearhead.training.machine import (
    ThreadWatch,
    count_tokens,
    resolve_machine,
    serving_threads,
    time_scoring,
    time_steps,
    with_serving_threads,
)
from clearhead.training.recipe import Machine
from clearhead.training.scores import ValidationSet
from clearhead.training.tasks.base import loss_of
from clearhead.training.train_step import TrainState
from tests.training import small_runs
from tests.training.tiny import recipe_for, work_on

ADAPTS = Machine(device="cpu", precision="float32", threads=4, adapt_threads=True)


@pytest.fixture(autouse=True)
def same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def speeds(monkeypatch):
    """Make products of matrices as quick as a table says for each number of threads."""

    def use(table):
        monkeypatch.setattr(machine, "matmul_speed", lambda threads: float(table[threads]))

    return use


@pytest.mark.parametrize(
    ("table", "threads"),
    [
        ({4: 400, 2: 200, 1: 100}, 4),
        ({4: 10, 2: 180, 1: 100}, 2),
        ({4: 10, 2: 20, 1: 100}, 1),
        ({4: 100, 2: 99, 1: 98}, 1),
        ({4: 150, 2: 100, 1: 100}, 4),
    ],
)
def test_the_fewest_threads_that_are_quick(speeds, table, threads):
    speeds(table)
    before = torch.get_num_threads()
    assert serving_threads(4) == threads
    assert torch.get_num_threads() == before


def test_a_busy_machine_is_told_and_threads_that_were_given_are_kept(speeds):
    speeds({4: 10, 2: 20, 1: 100})
    said = []
    assert with_serving_threads(ADAPTS, said.append).threads == 1
    assert said == ["the machine is busy: 1 of 4 threads serves best, and no more are used"]
    given = replace(ADAPTS, adapt_threads=False)
    assert with_serving_threads(given, said.append) == given
    assert len(said) == 1


def test_threads_drop_when_the_machine_becomes_busy(speeds, monkeypatch):
    speeds({4: 10, 2: 180, 1: 100})
    torch.set_num_threads(4)
    said, clock = [], {"wall": 0.0, "work": 0.0}
    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(machine.time, "process_time", lambda: clock["work"])
    watch = ThreadWatch(ADAPTS, said.append)
    clock.update(wall=120.0, work=440.0)
    watch.look()
    assert (torch.get_num_threads(), said) == (4, [])
    clock.update(wall=240.0, work=500.0)
    watch.look()
    assert torch.get_num_threads() == 2
    assert len(said) == 1


def test_nothing_is_left_open_when_it_is_resolved():
    resolved = resolve_machine(Machine(device="cpu"))
    assert (resolved.device, resolved.precision, resolved.threads) == ("cpu", "float32", torch.get_num_threads())


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
