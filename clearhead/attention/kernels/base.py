"""What a kernel is: a name, what it refuses and why, and the arithmetic."""

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from clearhead.attention.call import Call, Facts

__all__ = ["Context", "Kernel"]

Context = Float[Tensor, "batch head query d_value"]


class Kernel(ABC):
    """A way to compute attention. It does all of a call, exactly, or refuses it."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What it is good for, in a few words: the reason `auto` gives."""

    @abstractmethod
    def refusal(self, facts: Facts) -> str | None:
        """Why it cannot do this; None if it can."""

    def yields_to(self, facts: Facts) -> str | None:
        """Name the kernel that `auto` prefers over this one here, if that one can do it; None if there is none."""
        return None

    def notes(self, facts: Facts) -> tuple[str, ...]:
        """What it costs that one would not expect."""
        return ()

    @abstractmethod
    def run(self, call: Call) -> Context:
        """The context of every query."""
