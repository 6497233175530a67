"""Decoding steps recorded as CUDA graphs and replayed: launching their kernels one by one takes longer than they run.

A recorded step is bound to its memory: as many rows as when it was recorded, caches of fixed size. When the columns are
used up, it is recorded anew in larger memory; when half of the rows have ended, for fewer of them.
"""

from collections.abc import Callable, Hashable

import torch

from clearhead.cuda_graphs import capture, shared_pool

FEWEST = 8
"""Steps that must still be to come: for fewer, recording costs more than it saves."""


def can_record_on(device: torch.device) -> bool:
    """Check whether steps are recorded on this device."""
    return device.type == "cuda"


def is_worth_recording(steps: int) -> bool:
    """Check whether there are enough steps to come that recording them is worth it."""
    return steps >= FEWEST


def record(work: Callable[[], None]) -> Callable[[], None]:
    """Return a function that replays the work."""
    return capture(work, shared_pool(torch.cuda.current_device()))


class Replay:
    """Work that is recorded when it is called, and replayed from then on.

    What is recorded must have run before with the same shapes: kernels are loaded and libraries set up when they are
    first used. So a call of a kind that was never `seen` runs as it is, and the next is recorded.
    """

    def __init__(self, work: Callable[[], None], seen: set[Hashable], kind: Hashable) -> None:
        self.work, self.seen, self.kind = work, seen, kind
        self.replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self.replay is None:
            if self.kind not in self.seen:
                self.seen.add(self.kind)
                self.work()
                return
            self.replay = record(self.work)
        self.replay()
