"""The loop: what it logs, when it ends, and what is left when something goes wrong within it."""

import errno
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from clearhead.attention import cpu_matmul
from clearhead.errors import RunError
from clearhead.plots.curves import draw_curves
from clearhead.training import checkpoints, final_scores, loop
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Batching, Budget, Checkpointing, Optimizer
from clearhead.training.reporting import MetricsLog, read_metrics
from clearhead.training.resume import resume
from clearhead.training.schedules import Constant, CosineDecay, Ema
from clearhead.training.tasks import Task
from clearhead.training.train import Stopped, train
from clearhead.training.train_step import TrainState, step_seed
from tests.training import small_runs
from tests.training.tiny import KEEPING, STEPS, quiet, recipe_for


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("loop")


@pytest.fixture
def recipe(home):
    """Of a classifier: the quickest to train and to assess."""
    return recipe_for(small_runs.classifying, home, optimizer=Optimizer(lr=1e-2, schedule=CosineDecay(warmup=3)))


@pytest.fixture
def go(home, tmp_path):
    """Trains a recipe in a new folder."""

    def started(recipe, watcher=quiet):
        train(tmp_path / "run", recipe, log=quiet, data=home / "data", watcher=watcher)
        return RunFolder(tmp_path / "run")

    return started


@pytest.fixture
def go_on(home, tmp_path):
    """Resumes what `go` has begun."""
    return lambda: resume(tmp_path / "run", log=quiet, data=home / "data").folder


def of_kind(lines, kind):
    return [line for line in lines if line["kind"] == kind]


def steps(lines, kind="step"):
    return [line["step"] for line in of_kind(lines, kind)]


def saved(folder):
    return [one.step for one in folder.checkpoints.all()]


@pytest.mark.slow
def test_what_is_logged_and_shown(recipe, go, monkeypatch):
    monkeypatch.setattr(loop, "draw_curves", draw_curves)  # for real
    seen = []
    folder = go(recipe, seen.append)
    lines = read_metrics(folder.metrics)
    assert steps(lines) == [3, 6, 9, 12]
    assert steps(lines, "evaluation") == [6, 12]
    assert steps(seen, "saved") == [4, 6, 8, 12]
    assert {line["total"] for line in seen if line["kind"] != "saved"} == {STEPS}
    shown = [
        {key: value for key, value in line.items() if key not in ("total", "about")}
        for line in seen
        if line["kind"] != "saved"
    ]
    assert shown == lines
    assert not any(line["about"] for line in seen if line["kind"] != "saved")  # steps were given, not minutes
    assert folder.curves.read_text().startswith("<?xml")


def test_what_an_evaluation_packs_is_not_kept_while_steps_follow(recipe, go, monkeypatch):
    evaluated, assess = [], loop.assess

    def packing(model, *given):
        evaluated.append(model)
        module = model.stack.blocks[0].feed_forward.up
        cpu_matmul.find_matrix(module, [module.weight], "packed", object)
        assert module in cpu_matmul.MATRICES
        return assess(model, *given)

    monkeypatch.setattr(loop, "assess", packing)
    go(recipe)
    assert len(evaluated) == 2
    assert not any(module in cpu_matmul.MATRICES for model in evaluated for module in model.modules())


@pytest.mark.slow
def test_a_line_of_a_step(recipe, go):
    lines = of_kind(read_metrics(go(recipe).metrics), "step")
    rates = [recipe.optimizer.lr * recipe.optimizer.schedule.at(step - 1, total=STEPS) for step in (3, 6, 9, 12)]
    assert [line["lr"] for line in lines] == pytest.approx(rates)
    for line in lines:
        assert line["loss"] > 0
        assert line["grad_norm"] > 0
        assert line["memory_mb"] > 0
    tokens = [line["tokens"] for line in lines]
    assert tokens == sorted(set(tokens))
    assert [line["epoch"] for line in lines] == pytest.approx([3 / 5, 6 / 5, 9 / 5, 12 / 5], abs=1e-4)


@pytest.mark.slow
def test_a_line_of_an_evaluation(recipe, go):
    lines = of_kind(read_metrics(go(recipe).metrics), "evaluation")
    assert lines[0]["best"] is True
    for line in lines:
        assert set(line["scores"]) == {"accuracy", "macro_f1", "labels_asked"}
        assert line["places"] == 15
        assert line["samples"][0].keys() == {"input", "output", "reference"}


@pytest.mark.slow
def test_the_best_stays_though_it_is_not_among_the_last(recipe, go, monkeypatch):
    goals = iter([0.1, 0.9, 0.5, 0.5, 0.4, 0.3])
    monkeypatch.setattr(Task, "goal", lambda self, scores, loss: next(goals))
    folder = go(replace(recipe, checkpointing=Checkpointing(evaluate=2, checkpoints=2, score_records=0, samples=0)))
    assert saved(folder) == [12, 10, 4]
    lines = of_kind(read_metrics(folder.metrics), "evaluation")
    assert [line["best"] for line in lines] == [True, True, False, False, False, False]
    assert folder.checkpoints.all()[0].state["best"] == {"step": 4, "score": 0.9}


@pytest.mark.slow
def test_a_score_that_is_no_number_is_never_the_best(recipe, go, monkeypatch):
    goals = iter([float("nan"), 0.2, float("nan")])
    monkeypatch.setattr(Task, "goal", lambda self, scores, loss: next(goals))
    folder = go(replace(recipe, checkpointing=replace(KEEPING, evaluate=4)))
    assert folder.checkpoints.all()[0].state["best"] == {"step": 8, "score": 0.2}


@pytest.mark.slow
def test_patience_ends_it(recipe, go, monkeypatch):
    goals = iter([0.5, 0.6, 0.6, 0.1])
    monkeypatch.setattr(Task, "goal", lambda self, scores, loss: next(goals))
    folder = go(
        replace(
            recipe, budget=Budget(steps=1000, patience=2), checkpointing=replace(KEEPING, evaluate=3, checkpoints=1)
        )
    )
    assert saved(folder) == [12, 6]
    assert folder.checkpoints.all()[0].state["finished"] is True
    assert next(goals, None) is None


@pytest.mark.slow
def test_patience_is_not_renewed_by_a_stop(recipe, go, go_on, monkeypatch):
    goals = iter([0.5, 0.4, 0.3])
    monkeypatch.setattr(Task, "goal", lambda self, scores, loss: next(goals))

    def watcher(line):
        if line["kind"] == "saved" and line["step"] == 6:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        go(
            replace(recipe, budget=Budget(steps=1000, patience=2), checkpointing=replace(KEEPING, evaluate=3, save=3)),
            watcher,
        )
    assert saved(go_on()) == [9, 6, 3]


@pytest.mark.slow
def test_minutes_end_it(recipe, go):
    seen = []
    checkpointing = replace(KEEPING, log=1, evaluate=10_000)
    folder = go(replace(recipe, budget=Budget(minutes=0.02), checkpointing=checkpointing), seen.append)
    lines = of_kind(seen, "step")
    # Reading text, timing steps and scoring are inside the minutes too, so steps have less than all of them.
    assert all(line["seconds"] <= 1.2 for line in lines[:-1])
    assert lines[-1]["step"] >= 1
    assert all(line["total"] >= line["step"] for line in lines)
    assert steps(read_metrics(folder.metrics), "evaluation") == [lines[-1]["step"]]
    assert saved(folder)[0] == lines[-1]["step"]


def test_epochs_end_it(recipe, go):
    """285 records in batches of 512 tokens: 64 rows of a width of 8, so five batches."""
    assert saved(go(replace(recipe, budget=Budget(epochs=2.1))))[0] == 11


@pytest.mark.slow
def test_epochs_are_counted_in_steps_of_several_passes(recipe, go):
    """Nine batches of 256 tokens, two of them a step."""
    batching = Batching(tokens=512, micro_batch_tokens=256, context=32)
    folder = go(replace(recipe, budget=Budget(epochs=2.0), batching=batching))
    assert saved(folder)[0] == 9
    assert read_metrics(folder.metrics)[-2]["epoch"] == 2


@pytest.mark.parametrize(
    "checkpointing", [KEEPING, Checkpointing(log=50, evaluate=50, save=1), Checkpointing(log=1, evaluate=1)]
)
def test_divergence_is_told_with_its_step_and_never_saved(recipe, go, tmp_path, checkpointing):
    checkpointing = replace(checkpointing, score_records=0, samples=0)
    wild = replace(recipe, optimizer=Optimizer(lr=1e30, schedule=Constant(), clip=None), checkpointing=checkpointing)
    with pytest.raises(
        RunError,
        match=r"at step \d+: training has diverged.*--resume and a lower --lr",
    ):
        go(wild)
    for one in RunFolder(tmp_path / "run").checkpoints.all():
        for name in ("model.safetensors", "training.safetensors"):
            held = load_file(one.folder / name)
            assert all(held[key].isfinite().all() for key in held if not key.startswith("optimiser")), one.folder


def test_weights_that_diverge_where_nothing_is_logged(recipe, go, tmp_path, monkeypatch):
    """The loss of a step is from before its update: only a look at the weights tells what it made of them."""
    original = loop.Trainer.step

    def step(self, batches):
        original(self, batches)
        if self.done == 4:
            with torch.no_grad():
                self.train_state.parameters[0].fill_(float("nan"))

    monkeypatch.setattr(loop.Trainer, "step", step)
    with pytest.raises(RunError, match="weights that are no numbers at step 4: training has diverged"):
        go(replace(recipe, checkpointing=replace(KEEPING, save=2)))
    assert saved(RunFolder(tmp_path / "run")) == [2]


@pytest.mark.slow
def test_a_disk_that_is_full_for_the_log_is_told(recipe, go, tmp_path, monkeypatch, go_on):
    write = MetricsLog.write

    def full(log, line):
        if line["step"] > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(log, line)

    monkeypatch.setattr(MetricsLog, "write", full)
    with pytest.raises(RunError, match=r"metrics\.jsonl: could not be written .*No space left on device"):
        go(recipe)
    assert saved(RunFolder(tmp_path / "run")) == [8, 6]
    monkeypatch.undo()
    assert saved(go_on())[0] == STEPS


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_checkpoint_loses_no_other(recipe, go, tmp_path, monkeypatch, go_on):
    def between(stage):
        if stage == "state.json" and (tmp_path / "run" / "checkpoints" / "step-00000006").exists():
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "between_writes", between)
    with pytest.raises(RunError, match="step-00000008: could not be written"):
        go(recipe)
    assert saved(RunFolder(tmp_path / "run")) == [6, 4]
    monkeypatch.undo()
    assert saved(go_on())[0] == STEPS


@pytest.mark.slow
def test_curves_that_cannot_be_written_are_told_after_the_last_checkpoint(recipe, go, tmp_path, monkeypatch):
    def full(*given, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(loop, "draw_curves", full)
    with pytest.raises(RunError, match=r"curves\.svg: could not be written"):
        go(recipe)
    assert saved(RunFolder(tmp_path / "run"))[0] == STEPS


@pytest.mark.slow
def test_an_evaluation_that_fails_loses_no_checkpoint(recipe, go, tmp_path, monkeypatch, go_on):
    def fails(*given):
        raise MemoryError

    monkeypatch.setattr(loop, "assess", fails)
    with pytest.raises(MemoryError):
        go(recipe)
    folder = RunFolder(tmp_path / "run")
    assert saved(folder) == [4]
    monkeypatch.undo()
    assert saved(go_on())[0] == STEPS


@pytest.mark.parametrize("kind", ["step", "evaluation", "saved"])
def test_a_watcher_that_fails_loses_no_checkpoint(recipe, go, tmp_path, kind):
    def watcher(line):
        if line["kind"] == kind and line["step"] >= 6:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        go(recipe, watcher)
    assert saved(RunFolder(tmp_path / "run"))[0] == {"step": 4, "evaluation": 4, "saved": 6}[kind]


@pytest.mark.slow
def test_a_signal_before_the_first_step_is_obeyed(recipe, go, tmp_path, monkeypatch, go_on):
    count = loop.BatchStream.count

    def interrupted(self):
        signal.raise_signal(signal.SIGINT)
        return count(self)

    monkeypatch.setattr(loop.BatchStream, "count", interrupted)
    with pytest.raises(Stopped, match="stopped before the first step") as caught:
        go(recipe)
    assert caught.value.exit_code == 130
    monkeypatch.undo()
    assert saved(go_on())[0] == STEPS


@pytest.mark.slow
def test_the_weights_to_use_are_the_averaged_ones(recipe, go):
    averaged = replace(recipe.optimizer, averaging=Ema(0.9))
    newest = go(replace(recipe, optimizer=averaged)).checkpoints.newest()
    model, training = newest.model(), newest.training()
    for name, one in model.items():
        assert torch.equal(one, training[f"average.{name}"])
    assert any(not torch.equal(one, training[f"model.{name}"]) for name, one in model.items())


def test_seeds_of_steps_differ():
    seeds = {step_seed(seed, step) for seed in range(5) for step in range(1000)}
    assert len(seeds) == 5000
    assert all(0 <= seed < 1 << 63 for seed in seeds)


@pytest.mark.slow
def test_out_of_gpu_memory_micro_batches_are_halved_and_the_steps_are_the_same(home, tmp_path, monkeypatch):
    """Without dropout, since what is dropped goes by the shape of a batch."""
    recipe = recipe_for(small_runs.classifying, home, dropout=0.0, optimizer=Optimizer(lr=1e-2))
    plain = train(tmp_path / "plain", recipe, log=quiet, data=home / "data", watcher=quiet)
    step, said = TrainState.step, []

    def limited(self, batches, rate):
        if max(len(batch["wanted"]) for batch in batches) > 20:
            self.places += 1000
            raise torch.OutOfMemoryError
        step(self, batches, rate)

    monkeypatch.setattr(TrainState, "step", limited)
    run = train(tmp_path / "halved", recipe, log=said.append, data=home / "data", watcher=quiet)
    assert [line for line in said if "memory" in line] == [
        "out of GPU memory: micro-batches are halved, to about 256 tokens; the steps are the same",
        "out of GPU memory: micro-batches are halved, to about 128 tokens; the steps are the same",
    ]
    for name, one in plain.model.state_dict().items():
        torch.testing.assert_close(run.model.state_dict()[name], one, rtol=1e-3, atol=1e-4)
    ours, theirs = ([line for line in read_metrics(one.folder.metrics) if "tokens" in line] for one in (run, plain))
    assert [line["tokens"] for line in ours] == [line["tokens"] for line in theirs]
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], rel=1e-4)


def test_a_row_that_does_not_fit_into_the_gpu_is_told(recipe, go, monkeypatch):
    def full(self, batches, rate):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(TrainState, "step", full)
    with pytest.raises(RunError, match="the GPU's memory is too small for a single row of 32 tokens"):
        go(recipe)


@pytest.mark.slow
def test_activation_checkpointing_gives_the_same_weights(home, tmp_path):
    recipe = recipe_for(small_runs.translating, home / "pairs")
    machine = replace(recipe.machine, activation_checkpointing=True)
    runs = [
        train(tmp_path / name, replace(recipe, machine=one), log=quiet, data=home / "data", watcher=quiet)
        for name, one in (("plain", recipe.machine), ("again", machine))
    ]
    for name, one in runs[0].model.state_dict().items():
        assert torch.equal(runs[1].model.state_dict()[name], one), name


@pytest.mark.slow
def test_ctrl_c_in_the_final_scoring_says_what_is_saved(recipe, go, go_on, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(final_scores, "write_evaluation", interrupted)
        with pytest.raises(RunError, match=r"stopped while scoring: all 12 steps are trained and saved") as caught:
            go(recipe)
    assert caught.value.exit_code == 130
    assert not RunFolder(tmp_path / "run").evaluation.exists()
    assert go_on().read_evaluation()["step"] in (6, 12)
