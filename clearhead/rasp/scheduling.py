"""Scheduling: which block of the model an operation belongs to. Each runs as early as what it reads is there."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from clearhead.rasp.operations import HeadOperation, HiddenUnit, HiddenUnits, Operation
from clearhead.rasp.spaces import Space


@dataclass
class Level:
    """What one block does: heads of its own attention and of its cross-attention, and units of its network."""

    own: list[HeadOperation] = field(default_factory=list)
    cross: list[HeadOperation] = field(default_factory=list)
    units: list[HiddenUnit] = field(default_factory=list)


def schedule(operations: Sequence[Operation], phases: Sequence[str]) -> list[Level]:
    """Arrange operations into blocks, each after what it reads. `phases` are what a block does, in order."""
    ready: dict[Space, int] = {}
    levels: list[Level] = [Level()]
    for operation in operations:
        step = 1 + max((ready.get(space, -1) for space in operation.reads), default=-1)
        phase = "network" if isinstance(operation, HiddenUnits) else "cross" if operation.cross else "own"
        while phases[step % len(phases)] != phase:
            step += 1
        ready[operation.out] = step
        while len(levels) <= step // len(phases):
            levels.append(Level())
        level = levels[step // len(phases)]
        if isinstance(operation, HiddenUnits):
            level.units += operation.units
        else:
            (level.cross if operation.cross else level.own).append(operation)
    return levels
