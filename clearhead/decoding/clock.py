"""The clock of a decoding session: where every row stands, for all layers at once."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.attention.masks import Table
from clearhead.attention.positions import Position

__all__ = ["Clock"]

PerHead = Float[Tensor, "row head n d"]


class Clock:
    """Where every row stands: `n` columns are filled, `new` are being added, `pads[row]` of all are padding.

    There will be no more than `limit` columns, as far as is known.

    A step that is recorded as a CUDA graph cannot have `n` in it as a number. Between `fix` and `release` the new
    column is therefore the one in the tensor `place`, and all `columns` are attended to, those after it hidden.
    """

    def __init__(self, pads: Int[Tensor, "row"] | None, device: torch.device, limit: int) -> None:
        self.pads, self.device, self.limit = pads, device, limit
        self.n = self.new = 0
        self.known: dict[Hashable, Any] = {}
        self.place: Int[Tensor, "1"] | None = None
        self.columns = 0

    def fix(self, place: Int[Tensor, "1"], columns: int) -> None:
        """Take the new column from a tensor, and attend to this many columns."""
        self.place, self.columns, self.known = place, columns, {}

    def release(self) -> None:
        """Count columns in numbers again."""
        self.place, self.known = None, {}

    def advance(self, new: int) -> None:
        self.n, self.new, self.known = self.n + self.new, new, {}

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` computes from the positions, once a step for all layers."""
        if name not in self.known:
            self.known[name] = make()
        return self.known[name]

    @property
    def keys(self) -> Tensor:
        """Return the positions of all columns, `(n,)` or `(row, n)`."""
        return self.once("keys", self.all_positions)

    def all_positions(self) -> Tensor:
        columns = torch.arange(self.total, device=self.device)
        return columns if self.pads is None else columns - self.pads.unsqueeze(1)

    @property
    def positions(self) -> Tensor:
        """Return the positions of the new columns."""
        if self.place is not None:
            return self.place if self.pads is None else self.place - self.pads.unsqueeze(1)
        return self.keys[..., self.n :]

    @property
    def real(self) -> Table | None:
        """Mask of what is neither padding nor, where the columns are fixed, still to come; None where that is all."""
        if self.pads is None and self.place is None:
            return None
        return self.once("real", lambda: Table(self.find_real()[:, None, None, :]))

    def find_real(self) -> Bool[Tensor, "#row n"]:
        columns = torch.arange(self.total, device=self.device).unsqueeze(0)
        there = columns >= 0 if self.place is None else columns <= self.place
        return there if self.pads is None else there & (self.keys >= 0)

    @property
    def padding(self) -> Bool[Tensor, "row n"] | None:
        """True at new columns that are padding; None after the first step, since padding comes before the tokens."""
        return None if self.pads is None or self.n else self.once("padding", lambda: self.positions < 0)

    def turn(self, position: Position, vectors: PerHead) -> PerHead:
        """Return new queries or keys rotated by their positions."""
        if not position.turns:
            return vectors
        width = vectors.shape[-1]
        return position.turn_by(vectors, self.once((position, width), lambda: position.angles(self.positions, width)))

    @property
    def total(self) -> int:
        return self.n + self.new if self.place is None else self.columns

    def select(self, rows: Int[Tensor, "new_row"]) -> None:
        self.pads = None if self.pads is None else self.pads[rows]
        self.known = {}
