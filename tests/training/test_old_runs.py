"""Run folders of earlier versions load, answer as they did, and go on as they would have.

`old_runs/COMMIT/TASK` was trained by the code of that commit (`old_runs/make.py`): ac67a60 was the first that trained,
fb1466b the last whose files had no `format`, and b845584 wrote sliced heads without a rank.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from clearhead.training.recipe import Budget
from clearhead.training.run import load
from clearhead.training.train import resume
from tests.training.old_runs.make import answers

HOME = Path(__file__).parent / "old_runs"
RUNS = sorted(path.parent for path in HOME.glob("*/*/expected.json"))
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
"""Another processor adds up in another order. Where the runs were made, every weight is equal to the last bit."""


@pytest.fixture(params=RUNS, ids=lambda path: f"{path.parent.name}-{path.name}")
def old(request, tmp_path):
    """Return a copy of an old run, and what its own code said."""
    shutil.copytree(request.param, tmp_path / "run")
    return tmp_path / "run", json.loads((request.param / "expected.json").read_text())


def check(run, expected):
    found = answers(run)
    assert found["said"] == expected["said"]
    torch.testing.assert_close(torch.tensor(found["logits"]), torch.tensor(expected["logits"]), **CLOSE)


def test_there_are_runs_of_every_task_and_version():
    assert {path.parent.name for path in RUNS} == {"ac67a60", "b845584", "fb1466b"}
    assert {path.name for path in RUNS} == {"translate", "generate", "fill", "classify"}
    assert not any((path / "run.json").exists() for path in RUNS)


def test_an_old_run_answers_as_it_did(old):
    path, expected = old
    check(load(path, device="cpu"), expected)


@pytest.mark.slow
def test_an_old_run_goes_on_as_it_would_have(old):
    path, expected = old
    run = resume(path, budget=Budget(steps=30), log=lambda line: None)
    assert run.step == 30
    check(run, expected["resumed"])
    weights = load_file(path / "resumed.safetensors")
    state = run.model.state_dict()
    assert state.keys() == weights.keys()
    for name, one in weights.items():
        torch.testing.assert_close(state[name], one, **CLOSE)
    check(load(path, device="cpu"), expected["resumed"])


def test_an_old_run_is_listed(old):
    path, _ = old
    from clearhead.cli.runs import look_into

    found = look_into(path, path.parent)
    assert (found.problem, found.steps, found.finished) == (None, 20, True)


def test_nothing_of_a_machine_is_in_the_files():
    for path in HOME.rglob("*"):
        if path.is_file() and path.suffix != ".py":
            assert not any(b"/" + name in path.read_bytes() for name in (b"home", b"tmp", b"work", b"root", b"Users"))
