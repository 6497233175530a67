"""The clock of a decoding session: where every row stands, for all layers at once."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention.masks import Table
from clearhead.attention.positions import Position

PerHead = Float[Tensor, "row head n d"]
NOBODY = -1
"""The owner of a column that a beam does not see."""


class Clock:
    """Where every row stands: `n` columns are filled, `new` are being added, `pads[row]` of all are padding.

    There will be no more than `limit` columns, as far as is known.

    A step that is recorded as a CUDA graph cannot have `n` in it as a number. Between `fix` and `release` the new
    column is therefore the one in the tensor `column`, of `columns`. Keys of a sentence's beams then lie side by side,
    and stay where they were written: `owners[sentence, beam, column]` is the beam that wrote what this beam has in this
    column, so that a beam that continues another takes over its owners and not its keys.
    """

    def __init__(self, pads: Int[Tensor, "row"] | None, device: torch.device, limit: int) -> None:
        self.pads, self.device, self.limit = pads, device, limit
        self.n = self.new = 0
        self.cached: dict[Hashable, Any] = {}
        self.tables: dict[Hashable, tuple[Tensor, ...]] = {}
        self.column: Int[Tensor, "1"] | None = None
        self.owners = self.beam_ids = self.firsts = torch.empty(0)
        self.columns, self.beams = 0, 1

    def fix(self, sentences: int, beams: int, columns: int) -> None:
        """Keep the new column's number in a tensor from now on; the first call makes `beams` beams of every row."""
        column = self.n + self.new
        if self.column is None:
            filled = torch.arange(columns, device=self.device) < column
            if self.pads is not None:
                filled = (filled & (torch.arange(columns, device=self.device) >= self.pads.unsqueeze(1))).unsqueeze(1)
                self.pads = self.pads.repeat_interleave(beams)
            self.beam_ids = torch.arange(beams, dtype=torch.int32, device=self.device).view(1, beams, 1)
            self.owners = torch.where(filled, self.beam_ids, NOBODY).expand(sentences, beams, columns).clone()
        else:
            self.owners = F.pad(self.owners, (0, columns - self.columns), value=NOBODY)
        self.column = torch.tensor([column], device=self.device)
        self.firsts = torch.arange(0, beams * columns, columns, device=self.device)
        self.columns, self.beams, self.cached = columns, beams, {}

    def release(self) -> None:
        """Count columns in Python numbers again, after recorded steps with one beam for each row."""
        assert self.beams == 1
        self.column, self.cached = None, {}

    def restart(self) -> None:
        """Go back to the first column, by work that can be recorded: no column is filled."""
        assert self.column is not None
        self.column.zero_()
        self.owners.fill_(NOBODY)

    def begin_step(self) -> None:
        """Begin a recorded step: every beam owns the new column."""
        assert self.column is not None
        self.cached = {}
        self.owners.index_copy_(2, self.column, self.beam_ids.expand(len(self.owners), -1, -1))

    def end_step(self, origins: Int[Tensor, "sentence beam"] | None) -> None:
        """End a recorded step: beam b continues beam `origins[sentence, b]` (None: itself), at the next column."""
        assert self.column is not None
        if origins is not None:
            self.owners.copy_(self.owners.gather(1, origins.unsqueeze(2).expand_as(self.owners)))
        self.column += 1

    @property
    def bounds(self) -> tuple[Tensor | None, Tensor, int] | None:
        """Return what a kernel of one step needs: the first column of each row (None: 0), the new column, and how far
        apart the rows' new columns are in it. None where columns are counted in Python, or rows have several beams.
        """
        return None if self.column is None or self.beams > 1 else (self.pads, self.column, 0)

    def angle_table(self, position: Position, width: int) -> tuple[Tensor, ...]:
        """Return what rotates vectors of this width, in float32, for every position that there may be."""
        key = position, width
        if key not in self.tables:
            angles = position.angles(torch.arange(self.limit, device=self.device), width)
            self.tables[key] = tuple(part.reshape(self.limit, -1).float() for part in angles)
        return self.tables[key]

    @property
    def slots(self) -> Int[Tensor, "beam"]:
        """Return where each beam of a sentence writes the new column."""
        column = self.column
        assert column is not None
        return self.once("slots", lambda: self.firsts + column)

    def bias(self, dtype: torch.dtype) -> Float[Tensor, "sentence 1 beam column"]:
        """Return the bias that a recorded step adds to scores: 0 where a beam may see a column, -inf elsewhere.

        It is made once for all layers; from a mask, torch would make it again in every layer.
        """
        return self.once(("bias", dtype), lambda: self.find_seen().to(dtype).log_())

    def find_seen(self) -> Bool[Tensor, "sentence 1 beam column"]:
        return (self.owners.unsqueeze(2) == self.beam_ids).flatten(2).unsqueeze(1)

    def by_sentence(self, vectors: Float[Tensor, "row head 1 d"]) -> Float[Tensor, "sentence head beam d"]:
        """Return vectors of one position with the beams of each sentence side by side."""
        return vectors if self.beams == 1 else vectors.squeeze(2).unflatten(0, (-1, self.beams)).transpose(1, 2)

    def advance(self, new: int) -> None:
        self.n, self.new, self.cached = self.n + self.new, new, {}

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` computes from the positions; it is called once a step, for all layers."""
        if name not in self.cached:
            self.cached[name] = make()
        return self.cached[name]

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
        if self.column is not None:
            return self.column if self.pads is None else self.column - self.pads.unsqueeze(1)
        return self.keys[..., self.n :]

    @property
    def real(self) -> Table | None:
        """Mask of columns that are not padding; None if there is no padding."""
        return None if self.pads is None else self.once("real", lambda: Table((self.keys >= 0)[:, None, None, :]))

    def sdpa_mask(self, dtype: torch.dtype) -> Tensor | None:
        """Return the mask of columns that are not padding as torch's kernel takes it."""
        return None if self.real is None else self.real.table

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
        return self.n + self.new

    def select(self, rows: Int[Tensor, "new_row"]) -> None:
        """Keep these rows; where the columns are fixed, these sentences with all their beams."""
        if self.pads is not None:
            self.pads = self.pads.unflatten(0, (-1, self.beams))[rows].flatten()
        if self.column is not None:
            self.owners = self.owners[rows]
        self.cached = {}
