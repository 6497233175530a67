"""The fast decoding step: a module as a function of one new position of every row, `(row, d_model)`.

In a step of a small model the arithmetic takes less time than Python takes to walk through the modules. So each module
may give a shorter way by its `fast_step` method: a function bound to its weights, made once for a whole decoding. A
module without one (a user's own norm or feed-forward, an adapter) is called as it is. The tests hold
cached decoding to the uncached forward for every kind of module.

On a CPU a step spends its time on products of a few rows with a large matrix: `clearhead.attention.cpu_matmul`.

Steps: the values that a part of a model makes on its way, by name, and how each follows from others.

A norm, a feed-forward and an output say here what happens inside them, so that a trace has a name for every value and
the explorer works each one out without knowing the part.

>>> from clearhead.model.norms import RMSNorm
>>> [step.name for step in RMSNorm().build(8).steps]
['mean_square', 'normalized', 'gamma', 'out']
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeGuard

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.cpu_matmul import can_pack, few_rows, find_packed, is_large
from clearhead.attention.heads import WholeMap, alike, is_hooked, joinable
from clearhead.taps import Tapped

FastStep = Callable[[Tensor], Tensor]
"""Maps the vectors of one position, `(row, d_model)`, to the module's output there, without dropout."""


class StepNorm(NamedTuple):
    """A norm as the kernels of `fused_step` take it: `kind` is `layer` or `rms`."""

    kind: str
    gamma: Float[Tensor, "d_model"]
    beta: Float[Tensor, "d_model"] | None
    epsilon: float


class StepMatrix(NamedTuple):
    """A linear map as the kernels of `fused_step` take it. With a `scale` for each output the weight is int8 codes."""

    weight: Float[Tensor, "d_out d_in"] | Int8[Tensor, "d_out d_in"]
    bias: Float[Tensor, "d_out"] | None
    scale: Float[Tensor, "d_out"] | None = None


class DecodingModule(Tapped):
    """A module that maps each position by itself; a subclass may give a shorter way than its `forward`."""

    @property
    def step_norm(self) -> StepNorm | None:
        """Return the module as a norm that a kernel can take into a product; None if it is something else."""
        return None

    def fast_step(self) -> FastStep:
        """Return the module as a function of one position of every row: by default a call of the module."""
        return call_module(self)


def call_module(module: nn.Module) -> FastStep:
    """Return a function that calls the module with a sequence of length 1."""
    return lambda x: module(x.unsqueeze(1)).squeeze(1)


def fast_step_of(module: nn.Module) -> FastStep:
    """Return the module's own fast step where it has one, else a call of the module."""
    if isinstance(module, DecodingModule) and has_own_step(module):
        return module.fast_step()
    return call_module(module)


def has_own_step(module: nn.Module) -> bool:
    """Check that the class which defines the module's `forward` is also the one which defines its `fast_step`.

    A subclass that changes `forward` alone would otherwise be decoded by the `fast_step` of its parent.
    """
    latest = next(kind for kind in type(module).__mro__ if "forward" in vars(kind) or "fast_step" in vars(kind))
    return "fast_step" in vars(latest)


def is_observed(module: nn.Module) -> bool:
    """Check whether a hook or a tap sees the module's inputs or outputs, so that its forward must run."""
    return is_hooked(module) or (isinstance(module, Tapped) and module.tapped)


def plain_linear(module: nn.Module) -> bool:
    """Check for torch's own linear map with a plain weight: not a subclass, an adapter or a quantized map."""
    return type(module) is nn.Linear and alike([module.weight])


class SteppedLinear(nn.Linear):
    """A linear map that is not plain and has a fast step of its own, as an int8 map has."""

    @property
    def step_kind(self) -> Hashable:
        """Return what maps must have in common to be joined; None while it has no fast step, on another device say."""
        raise NotImplementedError

    def join_step(self, others: Sequence[nn.Module] = ()) -> FastStep:
        """Return this map, and others of its class, as a function of one vector, their outputs side by side."""
        raise NotImplementedError

    @property
    def step_matrix(self) -> StepMatrix | None:
        """Return the map as a matrix that a kernel on a GPU can read; None if it is more than that."""
        return None


def find_step_matrix(module: nn.Module) -> StepMatrix | None:
    """Return a linear map as a matrix for the kernels of `fused_step`; None for any other module."""
    if plain_linear(module):
        assert isinstance(module, nn.Linear)
        return StepMatrix(module.weight, module.bias)
    return module.step_matrix if isinstance(module, SteppedLinear) else None


def join_matrices(matrices: Sequence[StepMatrix]) -> StepMatrix:
    """Return several maps of the same vector as one, their outputs side by side."""
    if len(matrices) == 1:
        return matrices[0]
    weights, biases, scales = ([part for part in parts if part is not None] for parts in zip(*matrices, strict=True))
    return StepMatrix(torch.cat(weights), torch.cat(biases) if biases else None, torch.cat(scales) if scales else None)


def can_join(maps: Sequence[nn.Module]) -> TypeGuard[Sequence[WholeMap]]:
    """Check whether one product can take the place of these maps in a fast step (`join_linears`)."""
    if joinable(maps):
        return True
    if not all(type(part) is WholeMap and not is_hooked(part) and not is_hooked(part.linear) for part in maps):
        return False
    linears = [part.linear for part in maps if isinstance(part, WholeMap)]
    kinds = {(type(part), part.step_kind if isinstance(part, SteppedLinear) else None) for part in linears}
    return len(kinds) == 1 and kinds.pop()[1] is not None


def linear_step(module: nn.Module) -> FastStep:
    """Return a linear map as a function of its weights; any other module in its place is called."""
    if isinstance(module, SteppedLinear) and module.step_kind is not None:
        return module.join_step()
    if not plain_linear(module):
        return call_module(module)
    assert isinstance(module, nn.Linear)
    return join_linears([module])


def join_linears(maps: Sequence[nn.Linear]) -> FastStep:
    """Return several linear maps of the same vector as one product, their outputs side by side."""
    first, *rest = maps
    if isinstance(first, SteppedLinear):
        return first.join_step(rest)
    weights: list[Tensor] = [part.weight for part in maps]
    biases: list[Tensor] = [part.bias for part in maps if part.bias is not None]
    bias = torch.cat(biases) if biases else None
    if can_pack(*weights):
        return functools.partial(find_packed(first, weights), bias=bias)
    return multiply_by(weights[0] if len(weights) == 1 else torch.cat(weights), bias)


def multiply_by(weight: Tensor, bias: Tensor | None) -> FastStep:
    """Return the product with a matrix, in the quickest way for a few rows."""
    # A small matrix is MKL's: oneDNN would put it into its own order in every call.
    return functools.partial(few_rows if is_large(weight) else F.linear, weight=weight, bias=bias)


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
    """The attribute that holds the linear map which makes the value from `of`; empty if no linear map does."""
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
