"""`compile`: torch.compile where the machine can, eager where it cannot, and it says so."""

import functools
import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["compile", "interprets_triton", "missing_compiler", "missing_triton"]

Compiled = TypeVar("Compiled", bound=Callable[..., object])


def missing_compiler(device: str = "cpu") -> str | None:
    """What torch.compile lacks on this machine for that device; None if nothing."""
    if device != "cpu":
        return None
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"no C++ compiler ({compiler}) was found; install one, or name it in the environment variable CXX"
    return None


@functools.cache
def interprets_triton() -> bool:
    """Whether Triton runs kernels in its interpreter, on CPU tensors: it was so asked when the process began."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def missing_triton(device: str) -> str | None:
    """Say what Triton kernels lack on that device; None if they run there."""
    if importlib.util.find_spec("triton") is None:
        return "it is written in Triton, which is not installed here"
    if device != "cuda" and not interprets_triton():
        return f"it runs on a CUDA device only, and these tensors are on {device}"
    return None


def compile(target: Compiled, *, device: str = "cpu") -> Compiled:
    """The target compiled as one full graph; the target itself, with a warning, where there is no compiler."""
    missing = missing_compiler(device)
    if missing is None:
        return torch.compile(target, fullgraph=True)  # type: ignore[return-value]
    warnings.warn(f"running eagerly, not compiled: {missing}", stacklevel=2)
    return target
