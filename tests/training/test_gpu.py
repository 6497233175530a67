"""Training on a GPU: what is captured and replayed is what runs as it comes, and a stop leaves no trace."""

import signal
from dataclasses import replace

import pytest
import torch

from clearhead.attention.kernels import blockwise
from clearhead.cuda_graphs import recording_kernels
from clearhead.model.variants import with_attention, with_position
from clearhead.training import loop
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Batching, Machine, Optimizer
from clearhead.training.reporting import read_metrics
from clearhead.training.resume import resume
from clearhead.training.schedules import CosineDecay, Ema, Last
from clearhead.training.train import Stopped, train
from clearhead.training.train_step import BatchStream, TrainState
from tests.training import small_runs
from tests.training.tiny import assert_same_run, quiet, recipe_for, without_times, work_on

pytestmark = pytest.mark.gpu

GPU = Machine(device="cuda", precision="float32")
EAGER = replace(GPU, graphs=False)
STEPS = 12
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
KINDS = [
    small_runs.translating,
    small_runs.documents,
    small_runs.stretch,
    small_runs.filling,
    small_runs.classifying,
]
OPTIMISING = Optimizer(lr=1e-3, schedule=CosineDecay(warmup=3), smoothing=0.1)


@pytest.fixture(autouse=True)
def as_it_was():
    """Exact products, so that two ways to the same number can be compared; and nothing left behind."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
    torch.use_deterministic_algorithms(False)


def taken(work, machine=GPU):
    """A learner after some steps of this work, and what it has summed up."""
    torch.manual_seed(1)
    train_state = TrainState(work.spec.build().cuda().train(), work.task, work.recipe.optimizer, machine)
    # Both get batches of the same shapes, whichever of them needs that.
    batches = BatchStream(work.recipe, work.task, work.prepared.train, filled=True).batches(0)
    averaging = work.recipe.optimizer.averaging
    # Kernels that only captured steps take round otherwise than torch's, and Adam makes much of little.
    with recording_kernels():
        for step in range(STEPS):
            torch.manual_seed(step)
            ema_weight = averaging.ema_weight(step + 1, STEPS)
            train_state.hold_average(ema_weight)
            train_state.step([next(batches) for _ in range(work.recipe.batching.passes)], 1e-3)
            train_state.update_average(ema_weight)
    return train_state, train_state.totals()


def assert_alike(model, other):
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, **CLOSE)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_captured_is_eager(kind, tmp_path):
    work = work_on(recipe_for(kind, tmp_path, dropout=0.0, machine=GPU, optimizer=OPTIMISING), tmp_path)
    eager, told = taken(work, EAGER)
    captured, others = taken(work)
    assert told.places == others.places > 0
    assert others.nll == pytest.approx(told.nll, rel=1e-5)
    assert others.grad_norm == pytest.approx(told.grad_norm, rel=1e-4)
    assert_alike(eager.model, captured.model)


def steps_alike(recipe, folder):
    """Takes the same steps both ways."""
    work = work_on(recipe, folder)
    eager, told = taken(work, EAGER)
    captured, others = taken(work)
    assert others.nll == pytest.approx(told.nll, rel=1e-5)
    assert_alike(eager.model, captured.model)


@pytest.mark.parametrize("attention", ["softmax", "cosine", "argmax", "kernelized", "sigmoid", "sparsemax"])
@pytest.mark.parametrize("kind", [small_runs.translating, small_runs.stretch], ids=lambda kind: kind.__name__)
def test_captured_is_eager_with_every_attention(kind, attention, tmp_path):
    recipe = recipe_for(kind, tmp_path, dropout=0.0, optimizer=OPTIMISING)
    steps_alike(replace(recipe, model=with_attention(recipe.model, attention)), tmp_path)


@pytest.mark.parametrize("attention", ["softmax", "argmax", "kernelized"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
def test_captured_is_eager_with_several_documents(attention, position, tmp_path):
    recipe = recipe_for(small_runs.documents, tmp_path, dropout=0.0, optimizer=OPTIMISING)
    model = with_position(with_attention(recipe.model, attention), position, small_runs.CONTEXT)
    steps_alike(replace(recipe, model=model), tmp_path)


def test_dropout_of_weights_in_blocks_is_captured(tmp_path, monkeypatch):
    """A block is computed again on the way back, with the numbers drawn before: a graph draws them once instead."""
    monkeypatch.setattr(blockwise, "BLOCK_NUMBERS", 200)
    recipe = recipe_for(small_runs.stretch, tmp_path, dropout=0.0)
    block = recipe.model.blocks[0]
    model = replace(recipe.model, blocks=(replace(block, attention=replace(block.attention, dropout=0.5)),))
    work = work_on(replace(recipe, model=with_attention(model, "argmax")), tmp_path)
    train_state, totals = taken(work)
    assert train_state.is_finite()
    assert totals.places > 0


@pytest.mark.parametrize("averaging", [Ema(0.9), Last(share=0.5, every=2)])
def test_captured_is_eager_with_passes_r_drop_and_an_average(averaging, tmp_path):
    optimizer = replace(OPTIMISING, r_drop=2.0, averaging=averaging)
    batching = Batching(tokens=512, micro_batch_tokens=128, context=32)
    recipe = recipe_for(small_runs.translating, tmp_path, dropout=0.0, optimizer=optimizer, batching=batching)
    work = work_on(recipe, tmp_path)
    eager, _ = taken(work, EAGER)
    captured, _ = taken(work)
    assert_alike(eager.model, captured.model)
    assert_alike(eager.averaged_model(), captured.averaged_model())


def test_captured_dropout_differs_from_step_to_step_and_follows_the_seed(tmp_path):
    work = work_on(recipe_for(small_runs.stretch, tmp_path, dropout=0.5), tmp_path)
    batch = next(BatchStream(work.recipe, work.task, work.prepared.train, filled=True).batches(0))

    def losses(seeds):
        torch.manual_seed(1)
        train_state = TrainState(work.spec.build().cuda().train(), work.task, work.recipe.optimizer, GPU)
        found = []
        for seed in seeds:
            torch.manual_seed(seed)
            train_state.step([batch], 0.0)
            found.append(train_state.totals().nll)
        return found

    first = losses([5, 6, 7, 5, 6, 7])
    assert len({round(loss, 1) for loss in first}) == 3
    assert first[:3] == pytest.approx(first[3:], rel=1e-6)
    assert losses([7, 6, 5]) == pytest.approx([first[2], first[1], first[0]], rel=1e-6)


def test_a_table_of_positions_that_grows_between_captures_stays_right(tmp_path):
    """Narrow batches are captured first; then wide ones make a larger table, and the narrow graph is replayed."""
    recipe = recipe_for(small_runs.stretch, tmp_path, dropout=0.0, optimizer=OPTIMISING)
    recipe = replace(recipe, model=with_position(recipe.model, "sinusoidal", 32))
    work = work_on(recipe, tmp_path)
    wide = next(BatchStream(work.recipe, work.task, work.prepared.train, filled=True).batches(0))
    narrow = {name: one[:, :4].contiguous() for name, one in wide.items()}
    models = []
    for machine in (EAGER, GPU):
        torch.manual_seed(1)
        train_state = TrainState(work.spec.build().cuda().train(), work.task, OPTIMISING, machine)
        for batch in (narrow, narrow, wide, narrow, wide, narrow):
            train_state.step([batch], 1e-3)
            # What was freed is taken again, and written over: a graph that still read it would show.
            torch.full((1 << 16,), float("nan"), device="cuda")
        models.append(train_state.model)
    assert_alike(*models)


def test_steps_are_captured_on_a_gpu_unless_told_otherwise(tmp_path):
    work = work_on(recipe_for(small_runs.stretch, tmp_path), tmp_path)
    for machine in (GPU, EAGER):
        train_state = TrainState(work.spec.build().cuda(), work.task, OPTIMISING, machine)
        assert (train_state.captured is not None) == machine.graphs


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("graphs", [True, False], ids=["captured", "eager"])
@pytest.mark.parametrize("step", [1, 5])
def test_a_deterministic_run_that_was_stopped_ends_the_same(precision, graphs, step, tmp_path, monkeypatch):
    machine = Machine(device="cuda", precision=precision, graphs=graphs, deterministic=True, threads=1)
    optimizer = replace(OPTIMISING, averaging=Last(share=0.5, every=2))
    recipe = recipe_for(small_runs.translating, tmp_path / "text", machine=machine, optimizer=optimizer)
    whole = train(tmp_path / "whole", recipe, log=quiet, data=tmp_path / "data").folder
    original = loop.Trainer.step

    def stopping(self, batches):
        original(self, batches)
        if self.done == step:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop.Trainer, "step", stopping)
    with pytest.raises(Stopped):
        train(tmp_path / "run", recipe, log=quiet, data=tmp_path / "data")
    monkeypatch.undo()
    resume(tmp_path / "run", log=quiet, data=tmp_path / "data")
    assert_same_run(RunFolder(tmp_path / "run"), whole)


def test_the_default_on_a_gpu_trains_and_scores(tmp_path):
    machine = Machine(device="cuda")
    recipe = recipe_for(small_runs.classifying, tmp_path / "text", machine=machine)
    run = train(tmp_path / "run", recipe, log=quiet)
    assert run.folder.recipe().machine.precision == "bfloat16"
    lines = without_times(read_metrics(run.folder.metrics))
    assert lines[-1]["kind"] == "evaluation"
    assert all(line["loss"] is not None for line in lines)
