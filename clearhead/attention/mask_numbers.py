"""The whole numbers that masks hold (lengths, document ids), checked against the batch and read by position."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.modes import has_numbers
from clearhead.attention.score_index import ScoreIndex
from clearhead.errors import DeviceError, DtypeError, ShapeError


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


class ListedNumbers:
    """Whole numbers that came as a Python list: they go to whatever device the query is on.

    Each device gets one copy, the first time it asks. A mask that is used again copies nothing, so it neither waits for
    the host nor breaks the capture of a CUDA graph.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.copies = [numbers]

    def __repr__(self) -> str:
        numbers = self.copies[0].tolist()
        return repr(numbers[0] if self.shape[:-1] == (1,) else numbers)

    @property
    def shape(self) -> torch.Size:
        return self.copies[0].shape

    def on(self, device: torch.device) -> Tensor:
        for copy in self.copies:
            if copy.device == device:
                return copy
        copied = self.copies[0].to(device)
        # Neither a fake tensor nor a wrapper of torch.func can be used once its trace has ended.
        if not torch.compiler.is_compiling() and type(copied) is Tensor:
            self.copies.append(torch.func.debug_unwrap(copied))
        return copied


Numbers = Tensor | ListedNumbers
"""The numbers a mask holds. A tensor stays on its owner's device, and must be on the query's."""

Ids = Tensor | Sequence[int] | Sequence[Sequence[int]]


def row_numbers(name: str, values: Ids, axes: tuple[int, ...] = (1,), *, rows: bool = False) -> Numbers:
    """Return the integers after checking their dtype and axes; with `rows`, always as `(batch or 1, n)`."""
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


def numbers_at(numbers: Numbers, places: slice) -> Numbers:
    """Return the numbers of some places, `(batch or 1, n)`, wherever they are."""
    if isinstance(numbers, Tensor):
        return numbers[..., places]
    return ListedNumbers(numbers.copies[0][..., places])


def at_position(numbers: Numbers, cells: ScoreIndex, position: Tensor) -> Tensor:
    """Return the id at a position of each batch row; -1 outside the ids that were given."""
    ids = numbers_on(numbers, cells.key.device)
    if cells.by_index:  # there is an id for each; within flex the three lines below take as long as the rest
        return ids[cells.batch, position] if ids.shape[0] != 1 else ids[0, position]
    inside = (position >= 0) & (position < ids.shape[-1])
    clamped = position.clamp(0, ids.shape[-1] - 1)
    return torch.where(inside, ids[cells.batch, clamped] if ids.shape[0] != 1 else ids[0, clamped], -1)


class EqualDocuments(NamedTuple):
    """Documents of one length that follow each other, or positions that belong to no document."""

    repeats: int
    length: int
    document: bool


class Runs(NamedTuple):
    """Lengths of the documents in some ids, as they were when they were read."""

    packed: bool
    """Each id of a row stands in one unbroken run."""
    rows: tuple[tuple[EqualDocuments, ...], ...] | None
    """Runs of each row of ids, or one row if all are the same. None if a document is in several pieces, or where
    lengths change more than `MOST_RUNS` times."""
    version: int | None
    """The ids' version when they were read; None for numbers that nobody can change."""
    complete: bool
    """Every position belongs to a document."""


MOST_RUNS = 1024


def read_runs(numbers: Numbers) -> Runs | None:
    """Read ids, once, to find where documents begin and end; None if they cannot be read or watched."""
    ids = numbers if isinstance(numbers, Tensor) else numbers.copies[0]
    if not has_numbers(ids):
        return None
    listed = not isinstance(numbers, Tensor)
    with torch.inference_mode(False), torch.no_grad():
        here = ids.cpu()
        packed, rows = find_runs(here)
    if not listed and ids.is_inference():  # it does not count its changes
        return Runs(packed, None, None, complete=False)
    return Runs(packed, rows, None if listed else ids._version, complete=bool((here >= 0).all()))


def find_runs(ids: Tensor) -> tuple[bool, tuple[tuple[EqualDocuments, ...], ...] | None]:
    """Return whether each id of a row stands in one run, and the runs, where each document is one."""
    n_rows, n = ids.shape
    if ids.numel() == 0:
        return True, None
    begins = torch.ones_like(ids, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    start = begins.flatten().nonzero().squeeze(1)
    row, run_id = start // n, ids.flatten()[start]
    length = torch.diff(start, append=start.new_tensor([n_rows * n]))
    order = run_id.argsort(stable=True)
    order = order[row[order].argsort(stable=True)]  # by row, and by id within it: the same id twice stands together
    again = (row[order][1:] == row[order][:-1]) & (run_id[order][1:] == run_id[order][:-1])
    packed = not bool(again.any())
    if not packed and bool((again & (run_id[order][1:] >= 0)).any()):
        return packed, None
    facts = torch.stack([row, length, (run_id >= 0).long()], 1)
    alike, counts = torch.unique_consecutive(facts, dim=0, return_counts=True)
    if len(alike) > MOST_RUNS:
        return packed, None
    rows: list[list[EqualDocuments]] = [[] for _ in range(n_rows)]
    for (row_index, size, document), count in zip(alike.tolist(), counts.tolist(), strict=True):
        rows[row_index].append(EqualDocuments(count, size, bool(document)))
    runs = tuple(map(tuple, rows))
    return packed, runs[:1] if len(set(runs)) == 1 else runs


@functools.lru_cache(maxsize=256)
def cut_runs(runs: tuple[EqualDocuments, ...], n: int) -> tuple[EqualDocuments, ...]:
    """Return the runs of the first `n` positions; the last document may become shorter."""
    kept_runs = []
    for run in runs:
        repeats = min(run.repeats, n // run.length)
        if repeats:
            kept_runs.append(run._replace(repeats=repeats))
            n -= repeats * run.length
        if repeats < run.repeats:
            return (*kept_runs, run._replace(repeats=1, length=n)) if n else tuple(kept_runs)
    return tuple(kept_runs)
