"""Operators: functions that launch Triton kernels, in a form that a compiled graph can hold."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

from torch.library import triton_op

from clearhead.compiling import missing_triton

Result = TypeVar("Result")

OPERATORS: "list[Operator[Any]]" = []
"""All of them: each module that launches kernels in a model or its loss adds its own."""


@final
class Operator(Generic[Result]):
    """A function that launches Triton kernels and returns new tensors. It can be called as it is; a compiled graph can
    hold it once it is `registered`.
    """

    def __init__(self, name: str, launch: Callable[..., Result]) -> None:
        self.name, self.launch = name, launch
        self.registered = False
        OPERATORS.append(self)

    def __call__(self, *args: Any) -> Result:
        return self.launch(*args)

    def register(self) -> None:
        """Make it an operator of torch."""
        if not self.registered:
            self.launch = triton_op(f"clearhead::{self.name}", self.launch, mutates_args=())
            self.registered = True


def register_operators() -> None:
    """Register all operators, where Triton runs. This imports torch's compiler, which takes seconds: call it where a
    model will be compiled.
    """
    if missing_triton("cuda") is None:
        for operator in OPERATORS:
            operator.register()
