"""Rows of `make test-machines`: each is what its name says, or its session ends before a test runs."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests import machines
from tests.machines import ROWS, SETS, choose_rows, find_fault, main, probe, pytest_sessionstart


def session(row):
    return SimpleNamespace(config=SimpleNamespace(getoption=lambda name: row))


def test_rows_are_chosen_by_name_and_by_instruction_set():
    assert [row.name for row in choose_rows(["sse", "avx2-4"])] == ["avx2-4", "sse-1", "sse-2", "sse-4"]
    assert choose_rows([]) == list(ROWS.values())
    with pytest.raises(SystemExit, match=r"there is no machine 'sse-3'; there are avx512, avx2, sse, and avx512-1"):
        choose_rows(["sse", "sse-3"])


def test_a_session_ends_where_its_row_did_not_take(monkeypatch):
    pytest_sessionstart(session(None))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    pytest_sessionstart(session("avx2-2"))
    for name in ("avx2-4", "sse-2"):
        with pytest.raises(pytest.exit.Exception, match=rf"{name}: torch should have .*, and has \('AVX2', 2\)"):
            pytest_sessionstart(session(name))


@pytest.mark.slow
def test_instructions_and_threads_arrive_in_a_process_and_others_are_told():
    best = probe(dict(os.environ))["torch"]
    if best not in [one.torch.upper() for one in SETS.values()]:
        pytest.skip(f"rows are of x86, and this is {best}")
    assert find_fault(ROWS["sse-4"], best) is None
    assert probe({**ROWS["sse-4"].environment, "MKL_NUM_THREADS": "2"})["threads"] == "2"
    assert find_fault(ROWS["avx512-1"], "AVX2") == "not run: this processor has AVX2"


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ({"torch": "AVX512"}, "failed: torch has AVX512 and 2 threads"),
        ({"threads": "1"}, "failed: torch has AVX2 and 1 threads"),
        ({"numpy": "X86_V3+X86_V4"}, "failed: numpy has X86_V4"),
        ({"CNR": "OFF"}, "failed: MKL says OFF, and should say AVX2 or AUTO"),
        ({}, None),
    ],
)
def test_what_did_not_take_is_told(found, fault, monkeypatch):
    taken = {"torch": "AVX2", "threads": "2", "numpy": "X86_V3", "CNR": "AUTO"}
    monkeypatch.setattr(machines, "probe", lambda environment: {**taken, **found})
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert find_fault(ROWS["avx2-2"], "AVX512") == fault


def test_variables_of_the_caller_do_not_reach_a_row(monkeypatch):
    for name in ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"):
        monkeypatch.setenv(name, "COMPATIBLE")
    assert not {"MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"} & ROWS["avx512-2"].environment.keys()
    assert all(SETS[row.set].environment.items() <= row.environment.items() for row in ROWS.values())


def test_folders_that_are_left_out_are_there():
    assert all((Path(machines.__file__).parent / folder).is_dir() for folder in machines.COMPUTE_NOTHING)


@pytest.mark.parametrize(
    ("closing", "code"),
    [
        ({"sse-1": "9 passed in 1.0s", "sse-2": "9 passed in 2.0s"}, 0),
        ({"sse-1": "9 passed in 1.0s", "sse-2": "failed: 1 failed, 8 passed in 2.0s (all of it: build/a.txt)"}, 1),
        ({"avx512-1": "not run: this processor has AVX2", "sse-1": "9 passed in 1.0s"}, 0),
        ({"avx512-1": "not run: this processor has AVX2"}, 1),
    ],
)
def test_it_fails_where_a_row_fails_or_none_ran(closing, code, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["machines", *closing])
    monkeypatch.setattr(machines, "probe", lambda environment: {"torch": "AVX2"})
    monkeypatch.setattr(machines, "find_fault", lambda row, best: closing[row.name])
    assert main() == code
    table = capsys.readouterr().out.partition("|---|---|\n")[2]
    assert table == "".join(f"| {name} | {line} |\n" for name, line in closing.items())
