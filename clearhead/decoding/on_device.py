"""What chooses tokens on a GPU, without waiting for an answer from it, and what it notes for later.

`clearhead.decoding.device_search` takes the steps; the ways to choose are in `greedy.py` and `beam_device.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decoding.hypotheses import Hypothesis

Logits = Float[Tensor, "row vocabulary"]
AT_ONCE, MOST_AT_ONCE, SHARE_AT_ONCE = 8, 64, 8
"""Steps that are taken before anyone looks what has ended, since looking waits for the GPU: at least, at most, and as
the share of those taken so far that may turn out to be for nothing (one in eight)."""


class Notes:
    """Tensors of some steps, noted one step after the other by recorded work and read together."""

    def __init__(self, *like: Tensor) -> None:
        """Allocate memory for tensors of these shapes: for the steps between two reads."""
        self.rooms = [tensor.new_zeros(MOST_AT_ONCE, *tensor.shape) for tensor in like]
        self.at = torch.zeros(1, dtype=torch.long, device=like[0].device)

    def write(self, *tensors: Tensor) -> None:
        for room, tensor in zip(self.rooms, tensors, strict=True):
            room.index_copy_(0, self.at, tensor.unsqueeze(0))
        self.at += 1

    def read(self) -> list[Tensor]:
        """Return the notes since the last call, `(step, ...)`. This waits for the GPU."""
        n = int(self.at)
        self.at.zero_()
        return [room[:n].clone() for room in self.rooms]

    def select(self, sentences: Int[Tensor, "stays"]) -> None:
        """Keep the memory of these sentences; everything that was noted must have been read."""
        self.rooms = [room[:, sentences] for room in self.rooms]


class OnDevice(ABC):
    """A way to choose tokens on the device, without waiting for an answer from it.

    Sentences are in order, with `beams` rows each.
    """

    beams: int
    kind: Hashable
    """Distinguishes different work on tensors of the same shape."""
    may_end = True
    """Whether a sentence can end before the last step."""

    def steps_at_once(self, taken: int) -> int:
        """Return how many steps to take before the next `read`, after so many."""
        return min(MOST_AT_ONCE, max(AT_ONCE, taken // SHARE_AT_ONCE)) if self.may_end else MOST_AT_ONCE

    def choose_by_logits(self, logits: Logits) -> tuple[Tensor | None, Tensor]:
        """Return what `choose` does of the log-probabilities of these logits."""
        wide = torch.promote_types(logits.dtype, torch.float32)
        return self.choose(torch.log_softmax(logits, -1, dtype=wide))

    @abstractmethod
    def choose(self, log_probs: Logits) -> tuple[Tensor | None, Tensor]:
        """Return the beam that each beam continues (None: itself) and its token, `(sentence, beam)`; note both."""

    @abstractmethod
    def restart(self) -> None:
        """Begin again in the same memory, by work that can be recorded."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the results of the last search, before another one starts in the same memory."""

    @abstractmethod
    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the outputs of every sentence, the best first."""

    @abstractmethod
    def read(self) -> list[int]:
        """Read the notes since the last call; return the sentences that have not ended."""

    @abstractmethod
    def select(self, sentences: Int[Tensor, "stays"]) -> None:
        """Keep these sentences, after a `read`."""
