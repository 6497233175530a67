"""`compile`: torch.compile where the machine can, eager where it cannot, and it says so."""

import os
import shutil
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["compile", "missing_compiler"]

Compiled = TypeVar("Compiled", bound=Callable[..., object])


def missing_compiler(device: str = "cpu") -> str | None:
    """What torch.compile lacks on this machine for that device; None if nothing."""
    if device != "cpu":
        return None
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"no C++ compiler ({compiler}) was found; install one, or name it in the environment variable CXX"
    return None


def compile(target: Compiled, *, device: str = "cpu") -> Compiled:
    """The target compiled as one full graph; the target itself, with a warning, where there is no compiler."""
    missing = missing_compiler(device)
    if missing is None:
        return torch.compile(target, fullgraph=True)  # type: ignore[return-value]
    warnings.warn(f"running eagerly, not compiled: {missing}", stacklevel=2)
    return target
