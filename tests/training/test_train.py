"""Train and resume: what they leave in a folder, and what they refuse."""

import os
from dataclasses import replace

import pytest
import torch

from clearhead.devices import choose_device
from clearhead.errors import OptionError, RunError
from clearhead.training.folder import RunFolder
from clearhead.training.folder_lock import lock
from clearhead.training.machine import prepare_machine, resolve_machine
from clearhead.training.recipe import Budget, Checkpointing, Machine
from clearhead.training.reporting import memory_mb
from clearhead.training.resume import resume
from clearhead.training.run import load
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.small_runs import CONTEXT
from tests.training.tiny import quiet, recipe_for


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def recipe(home):
    checkpointing = Checkpointing(log=2, evaluate=2, score_records=5, samples=2)
    return recipe_for(small_runs.translating, home / "text", budget=Budget(steps=4), checkpointing=checkpointing)


@pytest.fixture(scope="module")
def run(home, recipe):
    return train(home / "run", recipe, log=quiet)


def test_a_run_folder_has_everything(run, recipe):
    folder = run.folder
    assert sorted(os.listdir(folder.path)) == [
        ".lock",
        "checkpoints",
        "curves.svg",
        "data",
        "evaluation.json",
        "film",
        "metrics.jsonl",
        "model.json",
        "recipe.json",
        "run.json",
        "tokenizer.json",
    ]
    kept = folder.recipe()
    assert kept == replace(recipe, model=run.model.spec, machine=kept.machine)
    assert kept.machine == Machine(device="cpu", precision="float32", threads=1)


def test_the_run_is_the_one_that_load_gives(run):
    again = load(run.folder.path, device="cpu")
    assert again.step == run.step
    for name, one in run.model.state_dict().items():
        assert torch.equal(one, again.model.state_dict()[name])
    assert not run.model.training


@pytest.mark.slow
def test_token_ids_may_lie_elsewhere(home, recipe, tmp_path):
    told = []
    train(tmp_path / "one", recipe, log=told.append, data=tmp_path / "ids")
    assert not (tmp_path / "one" / "data").exists()
    train(tmp_path / "two", recipe, log=told.append, data=tmp_path / "ids")
    assert sum("MB of text" in line for line in told) == 1


def test_a_folder_with_a_run_is_refused_and_left_alone(run, recipe):
    before = run.folder.metrics.read_bytes()
    with pytest.raises(RunError, match="there is a run already; go on with --resume, or choose another folder"):
        train(run.folder.path, recipe, log=quiet)
    assert run.folder.metrics.read_bytes() == before


def test_a_run_in_use_is_refused(run, recipe, tmp_path):
    """Its own process holds it: the lock belongs to an opening of the file, not to a process."""
    new = tmp_path / "new"
    with lock(run.folder.path), lock(new):
        for act in (lambda: resume(run.folder.path), lambda: train(new, recipe)):
            with pytest.raises(RunError, match=rf"is in use by process {os.getpid()}; wait for it"):
                act()


def test_what_is_no_run_cannot_be_resumed_and_is_left_alone(tmp_path):
    with pytest.raises(RunError, match=r"is not a run folder: it has no recipe\.json"):
        resume(tmp_path)
    assert os.listdir(tmp_path) == []
    with pytest.raises(RunError, match="is not a run folder"):
        resume(tmp_path / "none")
    assert os.listdir(tmp_path) == []


def test_a_task_that_is_none_is_refused(recipe, tmp_path):
    with pytest.raises(OptionError, match="task: there is no 'juggle'; there are translate, generate, fill, classify"):
        train(tmp_path / "run", replace(recipe, task="juggle"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_model_of_another_kind_is_refused_before_anything_is_trained(home, recipe, tmp_path):
    other = recipe_for(small_runs.stretch, home / "other").model
    with pytest.raises(OptionError, match="to translate takes an encoder-decoder; the model is a Decoder"):
        train(tmp_path / "run", replace(recipe, model=other), log=quiet)
    assert not RunFolder(tmp_path / "run").exists()
    train(tmp_path / "run", recipe, log=quiet)


@pytest.mark.parametrize("kind", [small_runs.documents, small_runs.stretch, small_runs.filling, small_runs.classifying])
@pytest.mark.slow
def test_every_task_trains_and_answers(kind, tmp_path):
    recipe = recipe_for(kind, tmp_path / "text", budget=Budget(steps=2))
    run = train(tmp_path / "run", recipe, log=quiet)
    assert run.task.context == CONTEXT
    answer = {
        "generate": lambda: run.generate(["the"], max_new=3),
        "fill": lambda: run.fill(["the <mask> eats"]),
        "classify": lambda: run.classify(["red plum"]),
    }[run.task.name]
    assert len(answer()) == 1


def test_what_a_machine_leaves_open_is_settled():
    assert resolve_machine(Machine(device="cpu")) == Machine(
        device="cpu", precision="float32", threads=torch.get_num_threads()
    )
    assert resolve_machine(Machine(device="cpu", precision="bfloat16", threads=3)).threads == 3
    with pytest.raises(OptionError, match="device: there is no 'abacus'"):
        choose_device("abacus")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_told():
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(OptionError, match="there is no GPU that torch can use"):
        choose_device("cuda")


def test_the_machine_is_prepared(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        assert prepare_machine(Machine(device="cpu", threads=1, deterministic=True)) == torch.device("cpu")
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    assert torch.get_num_threads() == 1


def test_memory_is_that_of_the_process():
    """Python and torch take tens of megabytes at least, and this machine has less than a terabyte."""
    assert 10 < memory_mb(torch.device("cpu")) < 1 << 20


def test_what_is_told_goes_to_stderr(run, capsys):
    resume(run.folder.path)
    printed = capsys.readouterr()
    assert printed.err == "from step 4\n"
    assert printed.out == ""
