"""`jit`: kernels in Triton's language, beside the functions that launch them.

Triton may be missing, and takes a while to import, so it is imported when the first kernel is launched. A file with
kernels has `from __future__ import annotations`, which leaves `tl.constexpr` in a signature unread, and imports `tl`
(and `cuda`) for the type checker alone: a kernel finds the real ones when it is compiled.
"""

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, final


@final
class TritonKernel:
    """A function for Triton to compile, launched as `kernel[grid](…)`. `jitted` is what Triton made of it."""

    def __init__(self, function: Callable[..., Any], do_not_specialize: Sequence[str]) -> None:
        # Without the check of shapes that tests put around every function.
        self.function, self.do_not_specialize = inspect.unwrap(function), do_not_specialize

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return self.jitted[grid]

    @functools.cached_property
    def jitted(self) -> Any:
        """Compile a copy whose globals are those of the module, with `tl` and `cuda`, and with kernels as Triton knows
        them: Triton looks up the functions that a kernel calls there.
        """
        import triton
        from triton import language
        from triton.language.extra import cuda

        plain: Any = self.function
        found = {name: plain.__globals__[name] for name in plain.__code__.co_names if name in plain.__globals__}
        kernels = {name: value.jitted for name, value in found.items() if isinstance(value, TritonKernel)}
        names = {**plain.__globals__, "tl": language, "cuda": cuda, **kernels}
        copy = types.FunctionType(plain.__code__, names, plain.__name__)
        copy.__annotations__, copy.__doc__ = plain.__annotations__, plain.__doc__
        return triton.jit(do_not_specialize=self.do_not_specialize)(copy)


def jit(function: Any = None, *, do_not_specialize: Sequence[str] = ()) -> Any:
    """Return a function as a kernel.

    `do_not_specialize` names numbers that change from call to call: it is not compiled anew when one is 1 or a
    multiple of 16.
    """
    if function is None:
        return functools.partial(jit, do_not_specialize=do_not_specialize)
    return TritonKernel(function, do_not_specialize)
