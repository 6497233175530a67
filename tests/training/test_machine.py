"""The machine: what is left open is decided, and a busy one is given fewer threads."""

from dataclasses import replace

import pytest
import torch

from clearhead.training import machine
from clearhead.training.machine import ThreadWatch, resolve_machine, serving_threads, with_serving_threads
from clearhead.training.recipe import Machine

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
