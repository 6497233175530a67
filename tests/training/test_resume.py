"""Exact resume: a run that is stopped anywhere ends with the bytes of one that never was."""

import signal
from dataclasses import replace

import pytest

from clearhead.errors import RunError
from clearhead.training import loop
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Batching, Budget, Checkpointing, Optimizer
from clearhead.training.reporting import read_metrics
from clearhead.training.resume import resume
from clearhead.training.schedules import CosineDecay, Ema, InverseSqrt, Last
from clearhead.training.train import Stopped, train
from tests.covering import few
from tests.training import small_runs
from tests.training.tiny import STEPS, assert_same_run, quiet, recipe_for

pytestmark = pytest.mark.slow

OPTIMISING = Optimizer(lr=1e-2, schedule=CosineDecay(warmup=3), weight_decay=0.1)
ODD = Checkpointing(log=5, evaluate=7, save=4, score_records=2, samples=1)
"""Stops fall between lines of the log, evaluations and saves."""

CASES = {
    "plain": (small_runs.translating, {"optimizer": OPTIMISING}),
    "accumulation": (
        small_runs.translating,
        {
            "optimizer": OPTIMISING,
            "batching": Batching(tokens=512, micro_batch_tokens=128, context=32),
            "checkpointing": ODD,
        },
    ),
    "r-drop, last": (
        small_runs.translating,
        {
            "optimizer": replace(OPTIMISING, smoothing=0.1, r_drop=5.0, averaging=Last(share=0.6, every=3)),
            "checkpointing": ODD,
        },
    ),
    "last, every step": (
        small_runs.classifying,
        {"optimizer": replace(OPTIMISING, averaging=Last(share=0.5, every=1)), "checkpointing": ODD},
    ),
    "documents, ema": (
        small_runs.documents,
        {"optimizer": replace(OPTIMISING, averaging=Ema(0.9), schedule=InverseSqrt(warmup=2)), "checkpointing": ODD},
    ),
    "stretch, epochs": (
        small_runs.stretch,
        {"optimizer": OPTIMISING, "budget": Budget(epochs=1.4), "checkpointing": ODD},
    ),
    "blanks, epochs, ema": (
        small_runs.filling,
        {
            "optimizer": replace(OPTIMISING, averaging=Ema(0.99)),
            "batching": Batching(tokens=512, micro_batch_tokens=256, context=32),
            "budget": Budget(epochs=1.6),
            "checkpointing": ODD,
        },
    ),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Where the token ids of all runs are."""
    return tmp_path_factory.mktemp("resume")


@pytest.fixture
def stop_after(monkeypatch):
    """Makes a signal come within the given steps, once each."""
    steps, original = set(), loop.Trainer.step

    def step(self, batches):
        original(self, batches)
        if self.done in steps:
            steps.remove(self.done)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop.Trainer, "step", step)
    return steps.add


WHOLE = {}


def whole(name, home):
    """The recipe of a case, and its run that was never stopped."""
    if name not in WHOLE:
        kind, changed = CASES[name]
        recipe = recipe_for(kind, home / kind.__name__, **changed)
        WHOLE[name] = recipe, train(home / name, recipe, log=quiet, data=home / "data").folder
    return WHOLE[name]


def stopped(act):
    with pytest.raises(
        Stopped, match=r"stopped at step \d+, and saved; go on with: clearhead train .* --resume"
    ) as caught:
        act()
    assert caught.value.exit_code == 128 + signal.SIGTERM


OFTEN = ("r-drop, last", "blanks, epochs, ema")
"""Between them: both ways of averaging, passes over the text, gradients that add up. Documents are stopped below."""


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.thorough) for name in CASES]
)
def test_stopped_after_every_single_step(name, home, tmp_path, stop_after):
    recipe, undisturbed = whole(name, home)
    total = undisturbed.checkpoints.all()[0].step
    assert total >= 8
    path = tmp_path / "run"
    stop_after(1)
    stopped(lambda: train(path, recipe, log=quiet, data=home / "data"))
    for step in range(2, total):
        stop_after(step)
        stopped(lambda: resume(path, log=quiet, data=home / "data"))
    resume(path, log=quiet, data=home / "data")
    assert_same_run(RunFolder(path), undisturbed)


@pytest.mark.pairs(1)
@pytest.mark.parametrize("step", few(range(1, STEPS), 2))
@pytest.mark.parametrize("name", few(["documents, ema", "accumulation", "r-drop, last"], 2))
def test_stopped_once(name, step, home, tmp_path, stop_after):
    recipe, undisturbed = whole(name, home)
    stop_after(step)
    stopped(lambda: train(tmp_path / "run", recipe, log=quiet, data=home / "data"))
    told = []
    resume(tmp_path / "run", log=told.append, data=home / "data")
    assert told[0] == f"from step {step}"
    assert_same_run(RunFolder(tmp_path / "run"), undisturbed)


def test_a_crash_between_checkpoints_goes_back_to_the_last_one(home, tmp_path):
    recipe, undisturbed = whole("r-drop, last", home)
    path, seen = tmp_path / "run", []

    def watcher(line):
        seen.append(line)
        if line["kind"] == "step" and line["step"] == 10 and len(seen) < 12:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(path, recipe, log=quiet, data=home / "data", watcher=watcher)
    assert read_metrics(RunFolder(path).metrics)[-1]["step"] == 10
    told = []
    resume(path, log=told.append, data=home / "data")
    assert told == ["from step 8"]
    assert_same_run(RunFolder(path), undisturbed)


def test_text_files_that_changed_since_are_named_and_the_run_goes_on_with_its_own(tmp_path):
    recipe = recipe_for(small_runs.translating, tmp_path, budget=Budget(steps=2))
    once, twice = tmp_path / "once", tmp_path / "twice over"
    for path in (once, twice):
        train(path, recipe, log=quiet)
    told = []
    resume(once, log=told.append, budget=Budget(steps=4))
    assert not any("the text" in line for line in told)
    source = recipe.corpus.train.source[0]
    with open(source, "a", encoding="utf-8") as file:
        file.write("something else\n")
    resume(twice, log=told.append, budget=Budget(steps=4))
    assert [f"begun with: {source} was changed. " in line for line in told if "--from '" in line] == [True]
    assert_same_run(RunFolder(twice), RunFolder(once))


def test_before_the_first_checkpoint_it_begins_again(home, tmp_path):
    recipe, undisturbed = whole("plain", home)

    def watcher(line):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", recipe, log=quiet, data=home / "data", watcher=watcher)
    told = []
    resume(tmp_path / "run", log=told.append, data=home / "data")
    assert told[0] == "from the start: there is no checkpoint yet"
    assert "it is set aside as metrics.1.jsonl, and a new log begins" in told[1]
    assert_same_run(RunFolder(tmp_path / "run"), undisturbed)


def test_a_broken_checkpoint_is_told_and_the_one_before_it_ends_the_same(home, tmp_path, stop_after):
    recipe, undisturbed = whole("r-drop, last", home)
    path = tmp_path / "run"
    stop_after(11)
    stopped(lambda: train(path, recipe, log=quiet, data=home / "data"))
    kept = RunFolder(path).checkpoints
    assert [one.step for one in kept.all()] == [11, 8, 7]
    file = kept.folder / "step-00000011" / "training.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    told = []
    resume(path, log=told.append, data=home / "data")
    wrong = f"{file}: its checksum is wrong, so it was changed or cut off since it was written"
    assert told == [f"{wrong}; the checkpoint is passed over", "from step 8"]
    assert_same_run(RunFolder(path), undisturbed)


def test_without_a_whole_checkpoint_nothing_is_begun_anew(home, tmp_path, stop_after):
    recipe, _ = whole("plain", home)
    path = tmp_path / "run"
    stop_after(5)
    stopped(lambda: train(path, recipe, log=quiet, data=home / "data"))
    folder = RunFolder(path)
    for one in folder.checkpoints.all():
        (one.folder / "model.safetensors").unlink()
    before = folder.metrics.read_bytes(), folder.recipe()
    with pytest.raises(RunError, match=r"none of the checkpoints is whole\. Put one back; or"):
        resume(path, log=quiet, data=home / "data", budget=Budget(steps=99))
    assert (folder.metrics.read_bytes(), folder.recipe()) == before


def test_foreign_tensors_are_told_and_the_log_left_alone(home, tmp_path, stop_after):
    recipe, _ = whole("plain", home)
    path = tmp_path / "run"
    stop_after(5)
    stopped(lambda: train(path, recipe, log=quiet, data=home / "data"))
    folder = RunFolder(path)
    newest = folder.checkpoints.newest()
    foreign = {name.replace("weight", "wait"): one for name, one in newest.training().items()}
    folder.checkpoints.save(5, newest.model(), foreign, newest.state)
    before = folder.metrics.read_bytes()
    with pytest.raises(RunError, match="step-00000005: its tensors are not this model's; they differ in"):
        resume(path, log=quiet, data=home / "data")
    assert folder.metrics.read_bytes() == before


def test_token_ids_that_are_gone_are_told(home, tmp_path, stop_after):
    recipe, _ = whole("plain", home)
    stop_after(2)
    stopped(lambda: train(tmp_path / "run", recipe, log=quiet, data=home / "data"))
    with pytest.raises(RunError, match="the token ids of this run are not there; put them back"):
        resume(tmp_path / "run", log=quiet)


def test_a_finished_run_that_goes_on_stays_as_it_is(home):
    _, undisturbed = whole("plain", home)
    before = undisturbed.metrics.read_bytes(), undisturbed.checkpoints.all()
    resume(undisturbed.path, log=quiet, data=home / "data")
    assert (undisturbed.metrics.read_bytes(), undisturbed.checkpoints.all()) == before


def test_with_another_budget_it_goes_further(home, tmp_path):
    recipe, _ = whole("plain", home)
    folder = train(tmp_path / "run", recipe, log=quiet, data=home / "data").folder
    before = folder.recipe()
    run = resume(folder.path, budget=Budget(steps=18), log=quiet, data=home / "data")
    assert folder.recipe() == replace(before, budget=Budget(steps=18))
    assert folder.checkpoints.all()[0].step == 18
    steps = [line["step"] for line in read_metrics(folder.metrics) if line["kind"] == "step"]
    assert steps == [3, 6, 9, 12, 15, 18]
    assert run.folder == folder


def test_only_the_seed_makes_the_difference(home, tmp_path):
    recipe, undisturbed = whole("plain", home)
    again = train(tmp_path / "again", recipe, log=quiet, data=home / "data").folder
    assert_same_run(again, undisturbed)
    other = train(tmp_path / "other", replace(recipe, seed=2), log=quiet, data=home / "data").folder
    with pytest.raises(AssertionError):
        assert_same_run(other, undisturbed)
