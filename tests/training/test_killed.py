"""Killed, and stopped, from outside: a run ends with the same bytes as one that never was. `killing.py` kills more."""

import shutil
import signal
import time

import pytest

from clearhead.training.folder import RunFolder
from clearhead.training.resume import resume
from clearhead.training.train import train
from tests.covering import few
from tests.training import killing
from tests.training.killing import STEPS, Place, ended, kill, started, struck, the_recipe
from tests.training.tiny import assert_same_run, quiet

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    found = tmp_path_factory.mktemp("killed")
    finish(found, found / "reference")
    return found


def finish(home, run):
    """Begin a run or go on with it, to its end. Not in a process of its own, which only one that is killed needs."""
    if RunFolder(run).exists():
        resume(run, log=quiet, data=home / "data")
    else:
        train(run, the_recipe(home), log=quiet, data=home / "data")


def wait_for(place, stages):
    """Until a process is at one of these stages of a write."""
    while Place.read(place).stage not in stages:
        time.sleep(0.001)


@pytest.mark.thorough  # tests/attack kills at random too, in forks, which take a tenth of the time
def test_killed_five_times(home):
    fallen, runs = kill(home, 5, seed=3, say=lambda _: None)
    assert len(fallen) == 5
    for run in runs:
        assert_same_run(run, RunFolder(home / "undisturbed"))


@pytest.mark.parametrize("stage", few(["model.safetensors", "rename", "training.safetensors", "state.json"], 1))
def test_killed_inside_a_write_at_each_of_its_stages(home, stage):
    path = home / f"in-{stage}"
    process, ready = started(home, path, hold=stage)
    assert ready
    wait_for(path.with_suffix(".place"), [stage])
    process.kill()
    assert ended(process) == -signal.SIGKILL
    assert Place.read(path.with_suffix(".place")).inside
    assert [one.name for one in RunFolder(path).checkpoints.folder.glob(".*")]
    finish(home, path)
    assert_same_run(RunFolder(path), RunFolder(home / "reference"))
    assert not [one.name for one in RunFolder(path).checkpoints.folder.glob(".*")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.thorough  # as a command: tests/cli/test_train.py, and among the attacks of tests/attack
def test_a_signal_saves_and_leaves(home, number):
    path = home / number.name
    process, _ = started(home, path, hold="8")
    wait_for(path.with_suffix(".place"), ["held"])
    process.send_signal(number)
    path.with_suffix(".go").touch()
    _, told = process.communicate()
    assert process.returncode == 128 + number
    step = RunFolder(path).checkpoints.newest().step
    assert told == (
        "stopping: it is saved first; Ctrl-C again leaves at once\n"
        f"stopped at step {step}, and saved; go on with: clearhead train {path} --resume\n"
    )
    assert 0 < step < STEPS
    finish(home, path)
    assert_same_run(RunFolder(path), RunFolder(home / "reference"))


@pytest.mark.thorough  # tests/attack sends two signals as well, and tests/cli/test_train.py to the command
def test_a_second_signal_leaves_at_once(home):
    """In the middle of the write that the first one asked for: nothing is saved, and nothing lost."""
    path = home / "twice"
    process, _ = started(home, path, hold="model.safetensors")
    wait_for(path.with_suffix(".place"), ["model.safetensors"])
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert ended(process) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert RunFolder(path).checkpoints.newest() is None
    finish(home, path)
    assert_same_run(RunFolder(path), RunFolder(home / "reference"))


@pytest.mark.thorough  # of the killer, which the test of five kills uses
def test_a_run_that_is_over_is_not_struck(home):
    assert struck(home, home / "reference", 0.0) is None


def test_the_killer_sees_a_difference(home):
    """Or it would prove nothing."""
    folder = RunFolder(home / "reference")
    other = RunFolder(shutil.copytree(folder.path, home / "other"))
    assert killing.differences(other, folder) == []
    file = other.checkpoints.all()[0].folder / "training.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    other.metrics.write_text(other.metrics.read_text().replace('"loss":', '"lost":', 1))
    assert killing.differences(other, folder) == [
        f"{other.path}: training.safetensors has other bytes",
        f"{other.path}: its metrics are others",
    ]
