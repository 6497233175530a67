"""Devices: which is chosen; and that all runs on one without float64, as MPS is (simulated: there is none here)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clearhead import devices
from clearhead.compiling import compile, missing_compiler
from clearhead.devices import choose_device, random_state, set_random_state, takes_foreach, widest_float
from clearhead.errors import OptionError
from clearhead.text.sources import Aligned, Documents
from clearhead.training import reporting
from clearhead.training.distributed import Processes
from clearhead.training.machine import resolve_machine
from clearhead.training.parallel import SingleProcess
from clearhead.training.recipe import Machine
from clearhead.training.resume import resume
from clearhead.training.train import train
from clearhead.training.train_step import can_capture
from tests.covering import few
from tests.training import small_runs
from tests.training.tiny import quiet, recipe_for

MPS = torch.device("mps")


@pytest.fixture
def there(monkeypatch):
    """Say which kinds of GPU there are."""

    def say(*kinds):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in kinds)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in kinds)

    return say


@pytest.mark.parametrize(
    ("kinds", "chosen"), [(("cuda", "mps"), "cuda"), (("cuda",), "cuda"), (("mps",), "mps"), ((), "cpu")]
)
def test_auto_takes_cuda_then_mps_then_cpu(there, kinds, chosen):
    there(*kinds)
    assert choose_device("auto") == torch.device(chosen)
    assert choose_device(chosen) == torch.device(chosen)


def test_a_device_that_is_not_there_is_refused_by_name(there):
    there()
    with pytest.raises(OptionError, match="there is no GPU that torch can use"):
        choose_device("cuda")
    with pytest.raises(OptionError, match="torch finds no MPS, the GPU of a Mac"):
        choose_device("mps")
    with pytest.raises(OptionError, match="there is no 'abacus'; there are auto, cpu, mps, cuda"):
        choose_device("abacus")


def test_on_mps_a_run_is_float32_and_bfloat16_is_refused(there):
    there("mps")
    assert resolve_machine(Machine(threads=2)) == Machine(device="mps", precision="float32", threads=2)
    with pytest.raises(OptionError, match="bfloat16 is not offered on mps; take --precision float32"):
        resolve_machine(Machine(device="mps", precision="bfloat16"))


def test_on_mps_nothing_is_compiled_captured_or_summed_in_float64():
    assert widest_float(MPS) == torch.float32
    assert widest_float(torch.device("cpu")) == widest_float(torch.device("cuda")) == torch.float64
    assert (takes_foreach(MPS), takes_foreach(torch.device("cpu"))) == (None, True)
    assert missing_compiler("mps")
    with pytest.warns(UserWarning, match="running eagerly, not compiled: .* mps"):
        assert compile(widest_float, device="mps") is widest_float
    assert not can_capture(MPS, Machine(device="mps"), SingleProcess(Processes()))
    assert can_capture(torch.device("cuda"), Machine(device="cuda"), SingleProcess(Processes()))


def test_memory_and_random_numbers_are_asked_of_mps_itself(monkeypatch):
    state = torch.arange(3, dtype=torch.uint8)
    given = []
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 3 << 20)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.mps, "set_rng_state", given.append)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: given.append("waited"))
    assert reporting.memory_mb(MPS) == 3
    set_random_state(random_state(MPS), MPS)
    devices.synchronize(MPS)
    assert given == [state, "waited"]


def test_random_numbers_of_the_cpu_go_on_from_a_state():
    cpu = torch.device("cpu")
    state = random_state(cpu)
    drawn = torch.rand(3)
    set_random_state(state, cpu)
    assert torch.equal(torch.rand(3), drawn)


class WithoutFloat64(TorchDispatchMode):
    """Within it every operation that gives float64 is an error, as it is on MPS."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        there = [one for one in tree_leaves(made) if isinstance(one, Tensor) and one.device.type == "cpu"]
        if any(one.dtype == torch.float64 for one in there):
            raise TypeError(f"{func} gives float64, which this device does not have")
        return made


@pytest.fixture
def without_float64(monkeypatch):
    """Make the CPU a device that has no float64."""
    monkeypatch.setattr(devices, "NO_FLOAT64", frozenset({"cpu", "mps"}))
    with WithoutFloat64():
        yield


def test_the_simulation_refuses_float64(without_float64):
    with pytest.raises(TypeError, match="gives float64"):
        torch.zeros(2).double()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", few([small_runs.translating, small_runs.documents, small_runs.classifying, small_runs.filling], 3)
)
def test_every_task_trains_and_answers_without_float64(tmp_path, without_float64, kind):
    recipe = recipe_for(kind, tmp_path / "text")
    run = train(tmp_path / "run", recipe, log=quiet)
    match recipe.task, recipe.corpus.train:
        case "translate", Aligned() as source:
            run.translate(["one two"], beam=3)
            run.evaluate(replace(source), beam=2)
        case "generate", Documents() as source:
            run.generate(["one"], max_new=4)
            run.evaluate(source)
        case "classify", source:
            run.evaluate(source)
        case "fill", source:
            run.evaluate(source)
    assert resume(tmp_path / "run", budget=replace(recipe.budget, steps=14), log=quiet).step > 0


@pytest.mark.parametrize(("running", "expected"), [(None, 3), (1, 3), (10_000, 1)])
def test_one_sentence_has_one_thread_on_a_busy_machine_and_then_as_many_as_before(monkeypatch, running, expected):
    monkeypatch.setattr(devices, "count_running", lambda: running)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with devices.fewer_threads_if_busy(torch.device("cpu")):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 3
        with devices.fewer_threads_if_busy(torch.device("cuda")):
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
