"""The suite on other machines: `make test-machines` runs it once for each row of a table, on this one.

Torch, MKL, oneDNN and numpy choose their code by the processor, and a variable of the environment makes each take less:
so a processor with AVX-512 can stand for one without. An instruction set and a number of threads decide in which order
numbers are added, and with it the last bits of a product. A row is one of each, as `sse-2`:

    make test-machines MACHINES="sse avx2-4"        # all rows of sse, and one of avx2

A row leaves out the folders in `COMPUTE_NOTHING`, which `make test` runs, and what is thorough.
"""

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
COMPUTE_NOTHING = ("attack", "browser", "notebooks", "packaging", "plots", "site", "text")
"""The folders whose tests compare texts, files and pages; what they compute is compared in the others."""


@dataclass(frozen=True)
class InstructionSet:
    """The most that each library may use: the value of its variable."""

    torch: str
    onednn: str
    numpy: str = ""
    """What numpy goes without."""
    mkl: str | None = None
    """For MKL_CBWR, since MKL_ENABLE_INSTRUCTIONS does nothing on a processor that is not Intel's."""
    mkl_says: tuple[str, ...] = ("OFF",)
    """What MKL may say that it does. On a processor that is not Intel's it takes AUTO for AVX2."""

    @property
    def environment(self) -> dict[str, str]:
        mkl = {} if self.mkl is None else {"MKL_CBWR": self.mkl}
        numpy = {"NPY_DISABLE_CPU_FEATURES": self.numpy} if self.numpy else {}
        return {"ATEN_CPU_CAPABILITY": self.torch, "ONEDNN_MAX_CPU_ISA": self.onednn, **numpy, **mkl}


SETS = {
    "avx512": InstructionSet("avx512", "AVX512_CORE_AMX"),
    "avx2": InstructionSet("avx2", "AVX2", "X86_V4 AVX512_ICL AVX512_SPR", "AVX2", ("AVX2", "AUTO")),
    "sse": InstructionSet("default", "SSE41", "X86_V3 X86_V4 AVX512_ICL AVX512_SPR", "COMPATIBLE", ("COMPATIBLE",)),
}
"""From the most to the least."""
VARIABLES = {"MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS", *SETS["sse"].environment}
"""What the environment of a row has from the row alone."""


@dataclass(frozen=True)
class Row:
    """An instruction set and a number of threads."""

    set: str
    threads: int

    @property
    def name(self) -> str:
        return f"{self.set}-{self.threads}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of its processes.

        There may be more threads than cores. So they sleep while they wait, and MKL must not take fewer by itself.
        """
        own = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        threads = {"OMP_NUM_THREADS": str(self.threads), "OMP_WAIT_POLICY": "PASSIVE", "MKL_DYNAMIC": "FALSE"}
        return {**own, **SETS[self.set].environment, **threads}


ROWS = {row.name: row for row in (Row(name, threads) for name in SETS for threads in (1, 2, 4))}


def choose_rows(names: list[str]) -> list[Row]:
    """Return the rows of these names, or of these instruction sets; all for none. SystemExit for other names."""
    if unknown := [name for name in names if name not in ROWS and name not in SETS]:
        raise SystemExit(f"there is no machine {unknown[0]!r}; there are {', '.join(SETS)}, and {', '.join(ROWS)}")
    return [row for row in ROWS.values() if not names or row.name in names or row.set in names]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--machine", choices=ROWS, help="the row of tests/machines.py that this process has to be")


def row_of(config: pytest.Config) -> Row | None:
    """Return the row that a session was started for."""
    return ROWS.get(config.getoption("machine"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """End the session, a worker's too, unless torch has the instruction set and the threads of its row."""
    row = row_of(session.config)
    if row is None:
        return
    wanted = SETS[row.set].torch.upper(), row.threads
    found = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    if found != wanted:
        pytest.exit(f"{row.name}: torch should have {wanted} as instruction set and threads, and has {found}", 3)


PROBE = """
import torch
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
a = torch.ones(8, 8, dtype=torch.float64)
a @ a
print("torch:" + torch.backends.cpu.get_cpu_capability(), f"threads:{torch.get_num_threads()}")
print("numpy:" + "+".join(name for name in __cpu_dispatch__ if __cpu_features__[name]))
"""


def probe(environment: dict[str, str]) -> dict[str, str]:
    """Return what a process with this environment has: torch's instruction set and threads, numpy's, and MKL's mode."""
    told = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**environment, "MKL_VERBOSE": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return dict(re.findall(r"\b(torch|threads|numpy|CNR):([\w+]*)", told))


def find_fault(row: Row, best: str) -> str | None:
    """Return why a row cannot be run here, or what of it did not take; `best` is the most that torch has here."""
    wanted = SETS[row.set]
    order = [one.torch.upper() for one in SETS.values()]
    if best not in order or order.index(best) > order.index(wanted.torch.upper()):
        return f"not run: this processor has {best}"
    found = probe(row.environment)
    if (found["torch"], found["threads"]) != (wanted.torch.upper(), str(row.threads)):
        return f"failed: torch has {found['torch']} and {found['threads']} threads"
    if kept := set(wanted.numpy.split()) & set(found["numpy"].split("+")):
        return f"failed: numpy has {', '.join(sorted(kept))}"
    if torch.backends.mkl.is_available() and found.get("CNR") not in wanted.mkl_says:
        return f"failed: MKL says {found.get('CNR')}, and should say {' or '.join(wanted.mkl_says)}"
    return None


def run_row(row: Row, workers: int, told: Path) -> str:
    """Run the suite on a row, what it says into a file, and return pytest's closing line.

    Workers are pytest-xdist's: threads do not survive a fork.
    """
    command = [sys.executable, "-m", "pytest", "--machine", row.name, "--jaxtyping-packages=", "-m", "not thorough"]
    command += [f"--ignore=tests/{folder}" for folder in COMPUTE_NOTHING]
    command += ["--dist", "loadfile", "--no-loadscope-reorder", "--numprocesses", str(max(1, workers // row.threads))]
    with told.open("w", encoding="utf-8") as file:
        done = subprocess.run(command, cwd=ROOT, env=row.environment, stdout=file, stderr=file, check=False)
    lines = told.read_text(encoding="utf-8").splitlines() or ["pytest said nothing"]
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(line)
    return lines[-1] if done.returncode == 0 else f"failed: {lines[-1]} (all of it: {told.relative_to(ROOT)})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"rows ({', '.join(ROWS)}), or instruction sets; all unless given")
    parser.add_argument("--workers", type=int, default=1, help="processes of a row with one thread")
    asked = parser.parse_args()
    folder = ROOT / "build" / "machines"
    folder.mkdir(parents=True, exist_ok=True)
    best = probe({name: value for name, value in os.environ.items() if name not in VARIABLES})["torch"]
    closing: dict[str, str] = {}
    for row in choose_rows(asked.names):
        print(f"{row.name} …", flush=True)
        closing[row.name] = find_fault(row, best) or run_row(row, asked.workers, folder / f"{row.name}.txt")
        print(f"{row.name}: {closing[row.name]}", flush=True)
    print("\n| machine | pytest's last line |\n|---|---|")
    print(*(f"| {name} | {line} |" for name, line in closing.items()), sep="\n")
    ran = [line for line in closing.values() if not line.startswith("not run")]
    return int(not ran or any(line.startswith("failed") for line in ran))


if __name__ == "__main__":
    sys.exit(main())
