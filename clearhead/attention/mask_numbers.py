"""The whole numbers that masks hold (lengths, document ids), checked against the batch and read by position."""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from clearhead.attention.modes import has_numbers
from clearhead.attention.score_index import ScoreIndex
from clearhead.errors import DeviceError, DtypeError, ShapeError

__all__ = [
    "Extent",
    "Ids",
    "ListedNumbers",
    "Numbers",
    "at_position",
    "check_device",
    "check_per_row",
    "check_whole",
    "numbers_on",
    "one_run_each",
    "row_numbers",
]


class Extent(NamedTuple):
    """The box a mask must fit: what its tensors are checked against."""

    batch: int
    n_heads: int
    n_query: int
    n_key: int
    device: torch.device

    def lengths(self) -> Tensor:
        """Return an example of ragged lengths: the first row empty, the last full."""
        return torch.linspace(0, self.n_key, max(self.batch, 2), device=self.device).long()[: self.batch]

    def places(self, n: int) -> Tensor:
        return torch.arange(n, device=self.device)

    def runs(self) -> Tensor:
        """Return an example of packed documents: runs of three positions."""
        return self.places(self.n_key) // 3


@final
class ListedNumbers:
    """Whole numbers that came as a Python list: they go to whatever device the query is on.

    Each device gets one copy, the first time it asks. A mask that is used again copies nothing, so it neither waits for
    the host nor breaks the capture of a CUDA graph.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.copies = [numbers]

    def __repr__(self) -> str:
        return repr(self.copies[0].tolist())

    @property
    def shape(self) -> torch.Size:
        return self.copies[0].shape

    def on(self, device: torch.device) -> Tensor:
        for copy in self.copies:
            if copy.device == device:
                return copy
        made = self.copies[0].to(device)
        # Neither a fake tensor nor a wrapper of torch.func can be used once its trace has ended.
        if not torch.compiler.is_compiling() and type(made) is Tensor:
            self.copies.append(torch.func.debug_unwrap(made))
        return made


Numbers = Tensor | ListedNumbers
"""The numbers a mask holds. A tensor stays on its owner's device, and must be on the query's."""

Ids = Tensor | Sequence[int] | Sequence[Sequence[int]]


def row_numbers(name: str, values: Ids, axes: tuple[int, ...] = (1,), *, rows: bool = False) -> Numbers:
    """Return whole numbers with so many axes, after checking them; with `rows`, always as `(batch or 1, n)`."""
    listed = not isinstance(values, Tensor)
    try:
        numbers = torch.as_tensor(values, device="cpu") if listed else values
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"{name}: expected whole numbers, in rows of one length; came {values!r}") from error
    if numbers.numel():
        check_whole(name, numbers)
    no_rows = isinstance(values, Tensor) and numbers.shape[:1] == (0,)  # which belong to a batch of none
    if numbers.ndim not in axes or (numbers.numel() == 0 and not no_rows):
        raise ShapeError(f"{name}: expected {' or '.join(map(str, axes))} axes, not empty; came {tuple(numbers.shape)}")
    numbers = torch.atleast_2d(numbers.long()) if rows else numbers.long()
    return ListedNumbers(numbers) if listed else numbers


def check_whole(name: str, numbers: Tensor) -> None:
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise DtypeError(f"{name}: expected whole numbers, came {numbers.dtype}; convert them with .long()")


def check_device(name: str, values: Tensor, extent: Extent) -> None:
    if values.device != extent.device:
        raise DeviceError(f"{name}: on {values.device}, but the query is on {extent.device}; move it there")


def check_per_row(name: str, values: Numbers, extent: Extent) -> None:
    if isinstance(values, Tensor):
        check_device(name, values, extent)
    if values.shape[0] not in (1, extent.batch):
        raise ShapeError(f"{name}: expected one for each of the {extent.batch} batch rows; came {values.shape[0]}")


def numbers_on(numbers: Numbers, device: torch.device) -> Tensor:
    """Return the numbers as a tensor: a list's copy on this device, a tensor as it is."""
    return numbers if isinstance(numbers, Tensor) else numbers.on(device)


def at_position(numbers: Numbers, cells: ScoreIndex, position: Tensor) -> Tensor:
    """Return the id at a position of each batch row; -1 outside the ids that were given."""
    ids = numbers_on(numbers, cells.key.device)
    if cells.by_index:  # there is an id for each; within flex the three lines below take as long as the rest
        return ids[cells.batch, position] if ids.shape[0] != 1 else ids[0, position]
    inside = (position >= 0) & (position < ids.shape[-1])
    place = position.clamp(0, ids.shape[-1] - 1)
    return torch.where(inside, ids[cells.batch, place] if ids.shape[0] != 1 else ids[0, place], -1)


def one_run_each(ids: Tensor) -> bool:
    """Check whether each id of a row stands in one unbroken run."""
    if not has_numbers(ids):
        return False
    return all(int((row[1:] != row[:-1]).sum()) + 1 == row.unique().numel() for row in ids)
