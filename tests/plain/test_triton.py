"""The Triton kernels: held to the reference in Triton's interpreter, and how they are chosen where there is no GPU."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import clearhead as ch
from clearhead import compiling
from clearhead.attention.kernels import KERNELS

ROOT = Path(__file__).parents[2]
WEIGHTINGS = {"linear": ch.weighting.Kernelized(), "argmax": ch.weighting.Argmax()}


INTERPRETED = [*WEIGHTINGS, "layer_norm", "activation", "loss", "beam", "greedy", "one_query", "fused_step", "tiles"]


@pytest.fixture(scope="module")
def interpreted():
    """What is said of all kernels, one after the other; and of errors. The process takes seconds to start."""
    pytest.importorskip("triton")
    command = [sys.executable, str(ROOT / "tests/plain/interpreted.py"), *INTERPRETED]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment())
    return found.stdout, found.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", INTERPRETED)
def test_the_interpreter_agrees_with_the_reference(kernel, interpreted):
    """Part of the grid, several chunks and segments, ties, NaN in padding, grouped heads; outputs and gradients."""
    told, errors = interpreted
    last = [line for line in told.splitlines() if line.startswith(f"{kernel}: ")][-1:]
    assert last, errors
    assert re.fullmatch(rf"{kernel}: [1-9]\d* run, 0 wrong", last[0]), told


def environment():
    import os

    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("kernel", WEIGHTINGS)
def test_on_a_cpu_they_say_what_they_need(kernel, monkeypatch):
    x = torch.randn(2, 3, 4)
    with pytest.raises(ch.ClearheadError, match="on a CUDA device only, and these tensors are on cpu"):
        ch.attend(x, x, x, weighting=WEIGHTINGS[kernel], kernel=kernel)
    assert ch.which_kernel(x, x, x, weighting=WEIGHTINGS[kernel]).kernel in ("chunked", "blockwise")
    monkeypatch.setattr(compiling, "TRITON_INSTALLED", False)
    with pytest.raises(ch.ClearheadError, match="written in Triton, which is not installed"):
        ch.attend(x, x, x, weighting=WEIGHTINGS[kernel], kernel=kernel)


def test_on_a_gpu_auto_takes_them():
    x = torch.randn(1, 2, 3, 4)
    for kernel, weighting in WEIGHTINGS.items():
        options = ch.attention.request.AttentionOptions(None, weighting, ch.positions.NoPosition(), ch.masks.causal())
        facts = options.inputs((x, x, x)).facts()
        on_gpu = facts._replace(device="cuda")
        assert next(name for name, one in KERNELS.items() if one.refusal(on_gpu) is None) == kernel


def test_importing_clearhead_does_not_import_triton():
    code = "import sys, clearhead; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), check=False).returncode == 0
