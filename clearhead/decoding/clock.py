"""The clock of a session: where every slot stands, for all layers at once, and what its rows may attend to.

Sequences join and leave at any step, so rows stand at different positions. Every layer needs the same few tensors that
follow from them: positions, the mask of columns that are written, the indices that keys are written to. The clock makes
each once a step, when the first layer asks (`Clock.once`), and by operations that read nothing back from the device: so
a step can be recorded as a CUDA graph, and replayed while rows move on, since its tensors stay at their addresses.

Two cases are common and made cheaper. If all rows stand at one position, it is a number: keys go into one column, and
nothing is masked. And beams that continue each other exchange who owns a column, instead of copying keys.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.attention.mask_rules import TensorMask
from clearhead.attention.parts import HeadShape
from clearhead.attention.positions import Position

PerHead = Float[Tensor, "row head n d"]
MOST_HEADS = 1024
NOBODY = -1
"""The owner of a column that a beam does not see."""


class SessionSize(NamedTuple):
    """How much a session holds: its slots, the most columns of a row and of its source.

    `shared`: how many neighbouring slots have one source.
    """

    slots: int
    columns: int
    source_columns: int = 0
    shared: int = 1


@final
class Clock:
    """Where every slot stands: `at[slot]` is the position of its next token, and the column that its key is written to.

    The first `rows` slots are computed; `columns` columns of what they wrote are read, and `source_columns` of what
    they translate. `shared` neighbouring rows have one source. If all rows stand at one position, it is in `common`, as
    a number: then nothing is masked, and a step writes into one column. `alike` says the same of sources: each fills
    its columns.

    A search on the device (`search_beams`) has the beams of a sentence in one slot, side by side: beam b writes column
    c at b * `columns` + c. Keys stay where they were written: `owners[slot, beam, column]` is the beam that wrote what
    this beam has in this column, so that a beam that continues another takes over its owners and not its keys.
    """

    common: int | None = None
    alike = False
    searching = level = False
    """Whether a search on the device chooses the tokens, and whether its rows all stand at one position."""

    reading = False
    """Whether prompts are read, `new` columns at a time from `common` on; shorter ones are padded at their end."""
    lengths: Int[Tensor, "row"] | None = None
    """Tokens of each prompt that is read; None if nothing is padded."""

    def __init__(self, size: SessionSize, device: torch.device, dtype: torch.dtype) -> None:
        # On a CPU torch multiplies a few vectors of bfloat16 by a routine that is five times slower than float32's.
        self.dtype = torch.promote_types(dtype, torch.float32) if device.type == "cpu" else dtype
        """The dtype in which plain attention of a step is computed, and its keys and values are kept."""
        self.size, self.device, self.shared = size, device, size.shared
        self.rows, self.new, self.columns, self.source_columns, self.beams = size.slots, 1, 1, 1, 1
        self.at = torch.zeros(size.slots, dtype=torch.long, device=device)
        # Slots, columns, heads and positions are all slices of this one range: none is made in a step.
        self.every = torch.arange(max(size.slots, 2 * size.columns, MOST_HEADS), device=device)
        self.sources = SourceMask(size.slots // size.shared, device, self.dtype)
        self.owners = self.beam_ids = torch.empty(0)
        # What follows from positions holds for one step; tables of angles hold for as long as the session does.
        self.cached: dict[Hashable, Any] = {}
        self.tables: dict[Hashable, tuple[Tensor, ...]] = {}

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` computes from the positions; it is called once a step, for all layers."""
        if name not in self.cached:
            self.cached[name] = make()
        return self.cached[name]

    def begin_step(self) -> None:
        """Begin a step. In a search on the device every beam owns the column that it writes."""
        self.cached = {}
        if self.beams > 1:
            here = self.at[: self.n_own].view(-1, 1, 1).expand(-1, self.beams, 1)
            self.owners.scatter_(2, here, self.beam_ids.expand_as(here))

    def search_beams(self, beams: int, columns: int) -> None:
        """Have `beams` beams in every slot from now on, of this many columns; the first beam wrote what is there."""
        slots, before = self.rows // self.beams, self.owners
        self.searching, self.rows, self.columns = True, slots * beams, columns
        if beams > 1:
            self.beam_ids = torch.arange(beams, dtype=torch.int32, device=self.device).view(1, beams, 1)
            filled = self.every[:columns] < self.at[:slots].view(-1, 1, 1)
            self.owners = torch.where(filled, 0, NOBODY).to(torch.int32).expand(-1, beams, -1).clone()
            if self.beams > 1:
                self.owners[:, :, : before.shape[2]] = before[:slots]
        self.beams = self.shared = beams

    def continue_beams(self, origins: Int[Tensor, "sentence beam"]) -> None:
        """Let beam b continue beam `origins[sentence, b]`, in a search on the device."""
        if self.beams > 1:
            # Written over in place: a recorded step reads the owners at this address.
            self.owners.copy_(self.owners.gather(1, origins.unsqueeze(2).expand_as(self.owners)))

    def restart(self) -> None:
        """Go back to the first column, by work that can be recorded: no column is filled."""
        self.at.zero_()
        if self.beams > 1:
            self.owners.fill_(NOBODY)

    def copy(self, origins: Int[Tensor, "moved"], slots: Int[Tensor, "moved"]) -> None:
        """Let some slots stand where others do."""
        for tensor in (self.at, self.owners) if self.beams > 1 else (self.at,):
            tensor.index_copy_(0, slots, tensor[origins])

    @property
    def n_own(self) -> int:
        """Return how many slots the rows are in."""
        return self.rows // self.beams

    @property
    def n_sources(self) -> int:
        """Return how many sources the rows have."""
        return self.rows // self.shared

    @property
    def total(self) -> int:
        """Return how many columns are read, the new ones among them."""
        return self.columns if self.common is None else self.common + self.new

    @property
    def last(self) -> Int[Tensor, "1"]:
        """Return the last column that any row has, in a search on the device."""
        return self.at[:1] if self.level else self.once("last", lambda: self.at[: self.n_own].amax(0, keepdim=True))

    @property
    def positions(self) -> Int[Tensor, "new"] | Int[Tensor, "row 1"]:
        """Return the positions of the new columns, of all rows together or of each."""
        if self.common is not None:
            return self.every[self.common : self.total]
        at = self.at[: self.n_own]
        return (at if self.beams == 1 else at.repeat_interleave(self.beams)).unsqueeze(1)

    @property
    def keys(self) -> Int[Tensor, "column"] | Int[Tensor, "row column"]:
        """Return the positions of all columns; those not yet written stand at the last one, and `real` hides them."""
        if self.common is not None:
            return self.every[: self.total]
        return self.once("keys", lambda: torch.minimum(self.every[: self.columns], self.positions))

    @property
    def real(self) -> TensorMask | None:
        """Mask of the columns that a row has written; None if all rows have written all of them."""
        if self.common is not None:
            return None
        return self.once(
            "real", lambda: TensorMask((self.every[: self.columns] <= self.positions)[:, None, None, :].contiguous())
        )

    @property
    def padding(self) -> Bool[Tensor, "row new"] | None:
        """True at new columns that are padding; None if there is none."""
        lengths = self.lengths
        return None if lengths is None else self.once("padding", lambda: self.positions >= lengths.unsqueeze(1))

    def bias(self, dtype: torch.dtype, *, of_source: bool = False) -> Float[Tensor, "row 1 n column"] | None:
        """Return the bias to add to scores, made once for all layers; None where every column is seen.

        From a mask, torch would make it again in every layer.
        """
        if of_source:
            return None if self.alike else self.sources.added[: self.n_sources, ..., : self.source_columns]
        if self.common is not None:
            return None
        # The logarithm of 1 is 0, and that of 0 is -inf: a mask becomes a bias in one operation.
        return self.once(("bias", dtype), lambda: self.find_seen().to(dtype).log_())

    def find_seen(self) -> Bool[Tensor, "sentence 1 beam column"]:
        if self.beams > 1:
            return (self.owners[: self.n_own].unsqueeze(2) == self.beam_ids).flatten(2).unsqueeze(1)
        assert self.real is not None
        return self.real.table

    def head_bias(
        self, heads: int, dtype: torch.dtype, *, of_source: bool
    ) -> Float[Tensor, "row_head n column"] | None:
        """Return the same for each head of each row."""
        if (bias := self.bias(dtype, of_source=of_source)) is None:
            return None
        return self.once((of_source, heads, dtype), lambda: bias.expand(-1, heads, -1, -1).flatten(0, 1))

    def by_sentence(self, vectors: Float[Tensor, "row head 1 d"]) -> Float[Tensor, "sentence head beam d"]:
        """Return vectors of one position with the beams of each slot side by side."""
        return vectors if self.beams == 1 else vectors.squeeze(2).unflatten(0, (-1, self.beams)).transpose(1, 2)

    def by_products(self, heads: HeadShape) -> bool:
        """Check whether attention is computed by plain products, as on a CPU."""
        return self.device.type == "cpu" and heads.n_kv_heads <= MOST_HEADS

    def places(self, heads: int, columns: int) -> Int[Tensor, "place"]:
        """Return the index at which each row and head writes, in flat memory of `(slot, head, column)`."""

        # `alpha` multiplies within the sum, so each axis costs one operation.
        def make() -> Tensor:
            slots = torch.add(self.at[: self.n_own], self.every[: self.n_own], alpha=heads * columns)
            rows = torch.add(slots.unsqueeze(1), self.every[: self.beams], alpha=self.columns).flatten()
            return torch.add(rows.unsqueeze(1), self.every[:heads], alpha=columns).flatten()

        return self.once(("places", heads, columns), make)

    def turn(self, position: Position, vectors: PerHead) -> PerHead:
        """Return new queries or keys rotated by their positions."""
        if not position.turns:
            return vectors
        width = vectors.shape[-1]
        return position.turn_by(vectors, self.once((position, width), lambda: position.angles(self.positions, width)))

    def angle_table(self, position: Position, width: int) -> tuple[Tensor, ...]:
        """Return what rotates vectors of this width, in float32, for every position that there may be."""
        key, limit = (position, width), self.size.columns
        if key not in self.tables:
            # For all positions at once, since a kernel looks up its row's own: which that is, only the device knows.
            angles = position.angles(torch.arange(limit, device=self.device), width)
            self.tables[key] = tuple(part.reshape(limit, -1).float() for part in angles)
        return self.tables[key]


@dataclass(frozen=True)
class EncodedSource:
    """The encoder's output: vectors of each sentence, and how many of them count (None: all)."""

    vectors: Float[Tensor, "sentence n d_model"]
    lengths: Int[Tensor, "sentence"] | None

    def padding(self) -> Bool[Tensor, "sentence n"] | None:
        """Return True at padding; None if there is none."""
        if self.lengths is None:
            return None
        return torch.arange(self.vectors.shape[1], device=self.vectors.device) >= self.lengths.unsqueeze(1)


@final
class SourceMask:
    """Which columns of its source each place has; the same for all layers, so it is changed once for all of them.

    `added` is what is added to scores.
    """

    def __init__(self, sources: int, device: torch.device, dtype: torch.dtype) -> None:
        self.real = torch.zeros(sources, 1, 1, 0, dtype=torch.bool, device=device)
        self.dtype, self.added = dtype, self.real.to(dtype)

    def grow(self, columns: int) -> None:
        columns_before = self.real.shape[3]
        if columns_before >= columns:
            return
        real = self.real.new_zeros(len(self.real), 1, 1, columns)
        if columns_before:
            real[..., :columns_before] = self.real
        else:
            real[..., :1] = True  # a place without a source attends to zeros: nothing to attend to would be NaN
        self.real, self.added = real, real.to(self.dtype).log_()

    def join(self, lengths: Int[Tensor, "row"], rows: Int[Tensor, "guest"], places: Int[Tensor, "guest"]) -> None:
        """Take over how long some rows' sources are."""
        columns = torch.arange(self.real.shape[3], device=lengths.device)
        joined = (columns < lengths.index_select(0, rows).unsqueeze(1))[:, None, None]
        self.real.index_copy_(0, places, joined)
        self.added.index_copy_(0, places, joined.to(self.dtype).log_())

    def copy(self, origins: Int[Tensor, "moved"], places: Int[Tensor, "moved"]) -> None:
        for tensor in (self.real, self.added):
            tensor.index_copy_(0, places, tensor.index_select(0, origins))
