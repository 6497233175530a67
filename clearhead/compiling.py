"""`compile`: torch.compile if the machine can, else eager, with a message. `jit`: kernels in Triton's
language, beside the functions that launch them; as an `Operator`, in a form that a compiled graph can hold.

Triton may be missing, and takes a while to import, so it is imported when the first kernel is launched. A file with
kernels has `from __future__ import annotations`, which leaves `tl.constexpr` in a signature unread, and imports `tl`
(and `cuda`) for the type checker alone: a kernel finds the real ones when it is compiled.
"""

import functools
import importlib.util
import inspect
import os
import shutil
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.library import custom_op, triton_op

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
    """Return the target compiled as one full graph; the target itself, with a warning, if there is no compiler.

    Args:
        target: A module or function.
        device: Device it will run on.

    Returns:
        Something with the target's signature.

    Raises:
        ArgumentError: If the target is neither a module nor a function.
    """
    if isinstance(target, type) or not callable(target):
        raise ArgumentError(f"compile: expected a model or a function; came {target!r:.80}")
    missing = missing_compiler(device)
    if missing is None:
        return torch.compile(target, fullgraph=True)  # type: ignore[return-value]
    warnings.warn(f"running eagerly, not compiled: {missing}", stacklevel=2)
    return target


Result = TypeVar("Result")

OPERATORS: "list[Operator[Any]]" = []
"""All of them: each module that launches kernels in a model or its loss adds its own."""


class Operator(Generic[Result]):
    """A function that launches Triton kernels and returns new tensors. It can be called as it is; a compiled graph can
    hold it once it is `registered`.

    The compiler reads what such a function does. With `like`, which returns empty tensors for its results, it does not:
    the function is then called as it stands, and not computed again inside other kernels.
    """

    def __init__(self, name: str, launch: Callable[..., Result], like: Callable[..., Result] | None = None) -> None:
        self.name, self.launch, self.like = name, launch, like
        self.registered = False
        OPERATORS.append(self)

    def __call__(self, *args: Any) -> Result:
        return self.launch(*args)

    def register(self) -> None:
        """Make it an operator of torch."""
        if self.registered:
            return
        name = f"clearhead::{self.name}"
        if self.like is None:
            self.launch = triton_op(name, self.launch, mutates_args=())
        else:
            opaque = custom_op(name, self.launch, mutates_args=())
            opaque.register_fake(self.like)
            self.launch = opaque
        self.registered = True


def register_operators() -> None:
    """Register all operators, where Triton runs. This imports torch's compiler, which takes seconds: call it where a
    model will be compiled.
    """
    if missing_triton("cuda") is None:
        for operator in OPERATORS:
            operator.register()


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
