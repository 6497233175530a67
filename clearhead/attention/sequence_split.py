"""`SequenceSplit`: which places of a sequence each process of a group holds, and how they are gathered again.

A sequence is cut into twice as many blocks as there are processes, and process r of n holds blocks r and 2n - 1 - r:
under a causal mask each such pair has as many scores as any other.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.attention.score_index import Positions
from clearhead.calls import public
from clearhead.errors import ShapeError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Held(NamedTuple):
    """A block of a sequence that a process holds: where it lies in its own tensors, and in the sequence.

    The last blocks may reach beyond the sequence: `whole` has only the places that there are, maybe none.
    """

    number: int
    own: slice
    whole: slice

    @property
    def length(self) -> int:
        return self.whole.stop - self.whole.start


@final
@public
@dataclass(frozen=True, eq=False)
class SequenceSplit:
    """Sequences over the processes of a group, as one of them sees them. `SequenceSplit.over(group, n)` makes it.

    Args:
        n: Number of places of a sequence.
        rank: Number of this process in the group.
        count: Number of processes.
        group: The group; None for one process alone.

    >>> import clearhead as ch
    >>> split = ch.SequenceSplit(10, rank=1, count=2)
    >>> split.indices().tolist()                     # blocks 1 and 2 of four, three places each
    [3, 4, 5, 6, 7, 8]
    """

    n: int
    rank: int = 0
    count: int = 1
    group: "ProcessGroup | None" = None

    @staticmethod
    def over(group: "ProcessGroup", n: int) -> "SequenceSplit":
        """Return the split of sequences of `n` places over the processes of a group."""
        return SequenceSplit(n, dist.get_rank(group), dist.get_world_size(group), group)

    @property
    def block(self) -> int:
        """Number of places in a block."""
        return -(-self.n // (2 * self.count))

    @property
    def held(self) -> tuple[Held, Held]:
        """Return the two blocks of this process."""
        size = self.block
        blocks = []
        for order, number in enumerate((self.rank, 2 * self.count - 1 - self.rank)):
            start = min(self.n, number * size)
            stop = min(self.n, start + size)
            blocks.append(Held(number, slice(order * size, order * size + stop - start), slice(start, stop)))
        return blocks[0], blocks[1]

    def indices(self, device: torch.device | None = None) -> Tensor:
        """Return the places that this process holds; the last of all where its blocks reach beyond the sequence."""
        starts = torch.tensor([self.rank, 2 * self.count - 1 - self.rank], device=device).unsqueeze(1) * self.block
        return (starts + torch.arange(self.block, device=device)).flatten().clamp(max=self.n - 1)

    def positions(self, device: torch.device) -> Positions:
        """Return the positions of queries and keys that count along the whole sequence."""
        indices = self.indices(device)
        return Positions(indices, indices)

    def take(self, tensor: Tensor, axis: int, fill: float | int | None = None) -> Tensor:
        """Return this process's part of a tensor of whole sequences; `fill` beyond their end, else the last place."""
        if tensor.shape[axis] != self.n:
            raise ShapeError(f"expected sequences of {self.n} places on axis {axis}; came {tuple(tensor.shape)}")
        taken = tensor.index_select(axis, self.indices(tensor.device))
        if fill is None:
            return taken
        beyond = torch.ones(2 * self.block, dtype=torch.bool, device=tensor.device)
        for held in self.held:
            beyond[held.own] = False
        return taken.movedim(axis, -1).masked_fill(beyond, fill).movedim(-1, axis)

    def gather(self, own: Tensor, axis: int) -> Tensor:
        """Return what all processes hold, in the order of the sequence; its gradient is the sum over all of them."""
        return self.gather_blocks(own, axis).narrow(axis, 0, self.n)

    def gather_blocks(self, own: Tensor, axis: int) -> Tensor:
        """Return the blocks of all processes in order, of any length each: own ones are the halves of an axis."""
        if self.count == 1:
            return own
        gathered = Gathered.apply(own.movedim(axis, 0).contiguous(), self.group, self.count)
        halves = gathered.unflatten(0, (self.count, 2, -1))
        return torch.cat([halves[:, 0].flatten(0, 1), halves[:, 1].flip(0).flatten(0, 1)]).movedim(0, axis)


class Gathered(torch.autograd.Function):
    """Tensors of all processes of a group along the first axis; backward each gets the sum of its part's gradients.

    The collectives are those that take lists: those that take one tensor have other names in torch 2.11 and 2.13.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: "ProcessGroup", count: int) -> Tensor:
        ctx.group, ctx.count = group, count
        everything = own.new_empty(count * own.shape[0], *own.shape[1:])
        dist.all_gather(list(everything.chunk(count)), own, group=group)
        return everything

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        parts = list(grads[0].contiguous().chunk(ctx.count))
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts, group=ctx.group)
        return own, None, None
