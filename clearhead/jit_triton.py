"""`jit`: Triton's compiler for the files of Triton code, `*_triton.py`. Only they import it: Triton may be missing."""

import inspect
from typing import Any

import triton

__all__ = ["jit"]


def jit(function: Any) -> Any:
    """Compile a function by Triton, without the check of shapes that tests put around every function."""
    return triton.jit(inspect.unwrap(function))
