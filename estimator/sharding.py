"""Which bytes of a model each GPU holds and exchanges, exactly: replicated by DDP, or sharded by FSDP2.

FSDP2 cuts every parameter along its first axis into as many chunks as there are GPUs. Each GPU holds ceil(rows / GPUs)
rows, padded with zeros where they do not divide: a matrix of 512 rows takes a row on each of 1,024 GPUs, and half of
these rows are padding. A block is gathered and freed as a unit; embeddings, output and last norm are the root's.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import nn

from clearhead.model.blocks import Block
from clearhead.model.sizes import Spec, build_for_shapes

FLOAT32 = 4
STEP_COUNT = 4
"""Bytes in which AdamW counts the steps of each parameter."""
MOMENTS = 2


class Shape(NamedTuple):
    """A parameter: its shape, and whether it is trained."""

    sizes: tuple[int, ...]
    trained: bool

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    def padded(self, gpus: int) -> int:
        """Return the numbers that each GPU holds of it, padding included."""
        rows = self.sizes[0] if self.sizes else 1
        return -(-rows // gpus) * math.prod(self.sizes[1:])

    def own(self, gpus: int, rank: int) -> int:
        """Return the numbers of it that belong to a rank: none where the ranks before hold all rows."""
        rows = self.sizes[0] if self.sizes else 1
        rows_per_rank = -(-rows // gpus)
        return max(0, min(rows_per_rank, rows - rank * rows_per_rank)) * math.prod(self.sizes[1:])


class Unit(NamedTuple):
    """Parameters that are gathered together: those of a block, or those of the root."""

    name: str
    shapes: tuple[Shape, ...]

    @property
    def size(self) -> int:
        return sum(shape.size for shape in self.shapes)

    def gathered(self, gpus: int, *, trained: bool = False) -> int:
        """Return how many numbers an all-gather makes, or of the trained ones a reduce-scatter takes, with padding."""
        return sum(gpus * shape.padded(gpus) for shape in self.shapes if shape.trained or not trained)


class RankBytes(NamedTuple):
    """Bytes of one GPU that stay from step to step."""

    parameters: int
    gradients: int
    optimizer: int
    average: int


def units_of(model: Spec | nn.Module) -> list[Unit]:
    """Return the root and the blocks of a model, or of the one a spec would build.

    Blocks that share parameters with anything outside belong to the root: FSDP2 cannot split a shared one.

    >>> from clearhead.model import presets
    >>> [(unit.name, unit.size) for unit in units_of(presets.gpt2("tiny", vocabulary=50, length=8))]
    [('root', 3840), ('stack.blocks.0', 49984), ('stack.blocks.1', 49984)]
    """
    built = model if isinstance(model, nn.Module) else build_for_shapes(model)
    uses = Counter(id(parameter) for _, parameter in built.named_parameters(remove_duplicate=False))
    seen: set[int] = set()
    units = []
    for name, block in built.named_modules():
        if isinstance(block, Block):
            inside = Counter(id(parameter) for _, parameter in block.named_parameters(remove_duplicate=False))
            if all(uses[parameter] == count for parameter, count in inside.items()):
                units.append(Unit(name, tuple(new_shapes(block.parameters(), seen))))
    return [Unit("root", tuple(new_shapes(built.parameters(), seen))), *units]


def new_shapes(parameters: Iterable[nn.Parameter], seen: set[int]) -> Iterator[Shape]:
    for parameter in parameters:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield Shape(tuple(parameter.shape), parameter.requires_grad)


def held_bytes(units: Iterable[Unit], *, gpus: int, sharded: bool, averaged: bool, rank: int = 0) -> RankBytes:
    """Return the bytes of parameters, gradients, AdamW's states and averaged weights on a rank, all in float32.

    Rank 0 holds most. Parameters and gradients of FSDP are stored with their padding, optimizer states without.
    """
    shapes = [shape for unit in units for shape in unit.shapes]
    n_shards, shard = (gpus, rank) if sharded else (1, 0)
    trained = [shape for shape in shapes if shape.trained]
    return RankBytes(
        parameters=FLOAT32 * sum(shape.padded(n_shards) for shape in shapes),
        gradients=FLOAT32 * sum(shape.padded(n_shards) for shape in trained),
        optimizer=sum(MOMENTS * FLOAT32 * shape.own(n_shards, shard) + STEP_COUNT for shape in trained),
        average=FLOAT32 * sum(shape.padded(n_shards) for shape in shapes) if averaged else 0,
    )
