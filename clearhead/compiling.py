"""`compile`: torch.compile where the machine can, eager where it cannot, and it says so."""

import functools
import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from clearhead.calls import public
from clearhead.errors import ArgumentError

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None
TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton runs its kernels in its interpreter, on CPU tensors: for tests. It decides so when it is imported."""

Compiled = TypeVar("Compiled", bound=Callable[..., object])


def missing_compiler(device: str = "cpu") -> str | None:
    """Say what torch.compile lacks on this machine for that device; None if nothing."""
    if device == "mps":
        return "what is compiled for mps was never tested here"
    if device != "cpu":
        return None
    compiler = os.environ.get("CXX", "g++")
    if find_command(compiler, os.environ.get("PATH")) is None:
        return f"no C++ compiler ({compiler}) was found; install one, or name it in the environment variable CXX"
    return None


@functools.lru_cache(maxsize=8)
def find_command(name: str, path: str | None) -> str | None:
    """Return where a command is; looked up once, as this is asked before every call of a compiled kernel."""
    return shutil.which(name, path=path)


def missing_triton(device: str) -> str | None:
    """Say what Triton kernels lack on that device; None if they run there."""
    if not TRITON_INSTALLED:
        return "it is written in Triton, which is not installed here"
    if device != "cuda" and not TRITON_INTERPRETED:
        return f"it runs on a CUDA device only, and these tensors are on {device}"
    return None


@public
def compile(target: Compiled, *, device: str = "cpu") -> Compiled:
    """Return the target compiled as one full graph; the target itself, with a warning, where there is no compiler."""
    if isinstance(target, type) or not callable(target):
        raise ArgumentError(f"compile: expected a model or a function; came {target!r:.80}")
    missing = missing_compiler(device)
    if missing is None:
        return torch.compile(target, fullgraph=True)  # type: ignore[return-value]
    warnings.warn(f"running eagerly, not compiled: {missing}", stacklevel=2)
    return target
