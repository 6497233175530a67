"""`jit`: Triton's compiler for the files of Triton code, `*_triton.py`. Only they import it: Triton may be missing."""

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import triton


def jit(function: Any = None, *, do_not_specialize: Sequence[str] = ()) -> Any:
    """Compile a function by Triton, without the check of shapes that tests put around every function.

    `do_not_specialize` names numbers that change from call to call: it is not compiled anew when one is 1 or a
    multiple of 16.
    """
    if function is None:
        return functools.partial(jit, do_not_specialize=do_not_specialize)
    return triton.jit(do_not_specialize=do_not_specialize)(inspect.unwrap(function))
