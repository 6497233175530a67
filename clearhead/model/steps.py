"""Steps: the values that a part of a model makes on its way, by name, and how each follows from others.

A norm, a feed-forward and an output say here what happens inside them, so that a trace has a name for every value and
the explorer works each one out without knowing the part.

>>> from clearhead.model.norms import RMSNorm
>>> [step.name for step in RMSNorm().build(8).steps]
['mean_square', 'normalized', 'gamma', 'out']
"""

from typing import NamedTuple

from torch import Tensor

from clearhead.model.fast_step import DecodingModule


class ModuleStep(NamedTuple):
    """One value that a part makes.

    Attributes:
        name: Its name.
        of: The value that the map reads; `x` is the input.
    """

    name: str
    formula: str = ""
    """Formula in other values, whose names stand in braces; `{x}` is the input. Without braces: in words."""
    map: str = ""
    """The attribute that holds the linear map which makes the value from `of`; empty where no linear map does."""
    of: str = "x"
    learned: bool = False
    """True if it is a learned vector, the same at every position."""
    neutral: float = 0.0
    """The number that changes nothing: 1 for a factor, 0 for what is added."""


class Explained(DecodingModule):
    """Base class of modules that name the values they make; the last step is what they return."""

    @property
    def steps(self) -> tuple[ModuleStep, ...]:
        """Return the steps in the order they happen: each is tapped in `forward`, or returned by `explain`."""
        return (ModuleStep("out"),)

    def explain(self, x: Tensor) -> dict[str, Tensor]:
        """Return the steps that `forward` does not make by themselves, because one fused operation does it all."""
        return {}
