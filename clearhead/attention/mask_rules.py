"""The rules behind `clearhead.masks`: each says for positions of queries and keys who may attend to whom."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention.mask_numbers import (
    EqualDocuments,
    Extent,
    Numbers,
    Runs,
    at_position,
    check_device,
    check_per_row,
    numbers_at,
    numbers_on,
)
from clearhead.attention.parts import structure_of, words_of
from clearhead.attention.score_index import ScoreIndex, four_axes
from clearhead.calls import CodeRepr
from clearhead.errors import DtypeError, OptionError, ShapeError, UnsupportedError
from clearhead.registry import kind, register

KeyRange = tuple[Tensor, Tensor]
"""The first key that each query sees, and the one after the last, `(batch or 1, query or 1)`."""


@kind("mask")
class Mask(CodeRepr, ABC):
    """A rule that says for each query and key whether the query may attend to the key.

    Combine masks with `&`, `|` and `~`.

    >>> import clearhead as ch
    >>> both = ch.masks.causal() & ch.masks.padding([2])
    >>> ch.masks.show(both, n_query=3, n_key=3)[0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    """

    kind: ClassVar[str] = "own"
    """Kind by which kernels are chosen. Those that know a few kinds only refuse any other, such as a user's own."""
    sees_itself: ClassVar[bool] = False
    """Whether a query always sees the key at its own position."""
    from_first_key: ClassVar[bool] = False
    """Whether a query that sees any key sees that of position 0, and all queries of a row see it or none does."""

    @abstractmethod
    def allowed(self, cells: ScoreIndex) -> Tensor:
        """Return True where the query may attend to the key; broadcasts to the cells."""

    def check(self, extent: Extent) -> None:
        """Raise where the mask's own tensors do not fit the box."""

    def key_range(self, query: Tensor, n_key: int) -> KeyRange | None:
        """Return which keys each query sees, where these always follow each other; None where they may not.

        `query` are positions `(n_query,)`, and keys count from 0. The range may reach beyond the keys there are.
        """
        return None

    def part(self, queries: slice, keys: slice) -> "Mask":
        """Return the mask of these queries and keys alone, by their indices. A rule over positions is the same for any
        part; masks that read tensors by index override this.
        """
        if self.kind == Mask.kind:
            raise UnsupportedError(
                f"{type(self).__name__} does not say what it is for a part of a sequence, which context parallelism "
                "needs: define part(self, queries, keys) in its class; return self if `allowed` reads only cells.query "
                "and cells.key"
            )
        return self

    @property
    def terms(self) -> tuple["Mask", ...]:
        """Masks whose intersection this is."""
        return (self,)

    @property
    def operand(self) -> str:
        """Expression of the mask beside `&`, `|` or `~`: in brackets if it is made of others."""
        return repr(self)

    @property
    def called(self) -> str:
        """Name the mask for a reader: "causal mask and padding mask", "no mask"."""
        names = (words_of(type(term)) if term.kind == Mask.kind else term.kind for term in self.terms)
        return " and ".join("no mask" if name == Everything.kind else f"{name} mask" for name in names)

    @property
    def structure(self) -> tuple[object, ...]:
        """Classes and plain numbers it is made of: masks of one structure differ in their tensors alone."""
        return structure_of(self)

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of the terms, by which kernels are chosen."""
        return frozenset([term.kind for term in self.terms])

    def __and__(self, other: "Mask | Tensor") -> "Mask":
        return Both.of((*self.terms, *as_mask(other).terms))

    def __or__(self, other: "Mask | Tensor") -> "Mask":
        return Either(self, as_mask(other))

    def __rand__(self, other: Tensor) -> "Mask":
        return as_mask(other) & self

    def __ror__(self, other: Tensor) -> "Mask":
        return as_mask(other) | self

    def __invert__(self) -> "Mask":
        return Not(self)


@dataclass(frozen=True)
class Everything(Mask):
    kind: ClassVar[str] = "none"
    made_by: ClassVar[str] = "everything"
    sees_itself: ClassVar[bool] = True
    from_first_key: ClassVar[bool] = True

    def allowed(self, cells: ScoreIndex) -> Tensor:
        return torch.ones((), dtype=torch.bool, device=cells.key.device)

    def key_range(self, query: Tensor, n_key: int) -> KeyRange:
        return query.new_zeros(1, 1), query.new_full((1, 1), n_key)


@dataclass(frozen=True)
class Causal(Mask):
    kind: ClassVar[str] = "causal"
    made_by: ClassVar[str] = "causal"
    sees_itself: ClassVar[bool] = True
    from_first_key: ClassVar[bool] = True

    def allowed(self, cells: ScoreIndex) -> Tensor:
        return cells.key <= cells.query

    def key_range(self, query: Tensor, n_key: int) -> KeyRange:
        return query.new_zeros(1, 1), (query + 1).unsqueeze(0)


@dataclass(frozen=True)
class Window(Mask):
    kind: ClassVar[str] = "window"
    made_by: ClassVar[str] = "window"
    sees_itself: ClassVar[bool] = True
    left: int
    right: int = 0

    def allowed(self, cells: ScoreIndex) -> Tensor:
        back = cells.query - cells.key
        return (back <= self.left) & (back >= -self.right)

    def key_range(self, query: Tensor, n_key: int) -> KeyRange:
        return (query - self.left).unsqueeze(0), (query + self.right + 1).unsqueeze(0)


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    kind: ClassVar[str] = "padding"
    made_by: ClassVar[str] = "padding"
    from_first_key: ClassVar[bool] = True
    lengths: Numbers

    def check(self, extent: Extent) -> None:
        check_per_row("padding lengths", self.lengths, extent)

    def allowed(self, cells: ScoreIndex) -> Tensor:
        return (cells.key >= 0) & (cells.key < cells.row(numbers_on(self.lengths, cells.key.device)))

    def key_range(self, query: Tensor, n_key: int) -> KeyRange:
        return query.new_zeros(1, 1), numbers_on(self.lengths, query.device).unsqueeze(1)


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    kind: ClassVar[str] = "prefix"
    made_by: ClassVar[str] = "prefix"
    sees_itself: ClassVar[bool] = True
    from_first_key: ClassVar[bool] = True
    lengths: Numbers

    def check(self, extent: Extent) -> None:
        check_per_row("prefix lengths", self.lengths, extent)

    def allowed(self, cells: ScoreIndex) -> Tensor:
        return (cells.key <= cells.query) | (cells.key < cells.row(numbers_on(self.lengths, cells.key.device)))

    def key_range(self, query: Tensor, n_key: int) -> KeyRange:
        lengths = numbers_on(self.lengths, query.device).unsqueeze(1)
        return query.new_zeros(1, 1), torch.maximum(query + 1, lengths)


@dataclass(frozen=True, eq=False)
class Document(Mask):
    """Within one sequence: the ids are read by position."""

    made_by: ClassVar[str] = "document"
    ids: Numbers
    packed: bool = field(repr=False)
    """Each document is one run: what the chunked linear form needs."""
    runs: Runs | None = field(default=None, repr=False, compare=False)
    """Lengths of the documents, read when the mask was made; None where they could not be read."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "document" if self.packed else "scattered documents"

    @property
    def lengths(self) -> tuple[tuple[EqualDocuments, ...], ...] | None:
        """Lengths of the documents of each row, or of every row; None if unknown, or if the ids have changed since."""
        if self.runs is None or self.runs.rows is None:
            return None
        return None if self.changed else self.runs.rows

    @property
    def changed(self) -> bool:
        """True if the ids were written to since they were read."""
        return self.runs is not None and isinstance(self.ids, Tensor) and self.ids._version != self.runs.version

    @property
    def can_change(self) -> bool:
        """True for the ids of a tensor, which its owner may write to; those of a list are the mask's own."""
        return isinstance(self.ids, Tensor)

    def check(self, extent: Extent) -> None:
        check_per_row("document ids", self.ids, extent)
        if self.ids.shape[-1] < extent.n_key:
            raise ShapeError(
                f"document ids are read by position, and there are {extent.n_key} keys but {self.ids.shape[-1]} ids; "
                "give one for each position, those already cached included (for two sequences give key_ids too)"
            )

    def allowed(self, cells: ScoreIndex) -> Tensor:
        query, key = at_position(self.ids, cells, cells.query), at_position(self.ids, cells, cells.key)
        return (query == key) & (query >= 0)

    def key_range(self, query: Tensor, n_key: int) -> KeyRange | None:
        if not self.packed:
            return None
        ids = numbers_on(self.ids, query.device)[:, :n_key]
        place = query.clamp(min=0)
        # Runs are numbered from the left, so that the numbers of a row are sorted.
        run = F.pad((ids[:, 1:] != ids[:, :-1]).cumsum(1), (1, 0))
        own = run[:, place].contiguous()
        first, stop = (torch.searchsorted(run, own, right=right) for right in (False, True))
        return first, torch.where((ids[:, place] >= 0) & (query >= 0), stop, first)

    @property
    def sees_itself(self) -> bool:  # type: ignore[override]
        """True if every position belongs to a document. A compiled call cannot ask whether the ids have changed."""
        if self.runs is None or not self.runs.complete:
            return False
        return torch.compiler.is_compiling() or not self.changed


@dataclass(frozen=True, eq=False)
class CrossDocument(Mask):
    """Between two sequences: one id for each query and each key, in their order."""

    kind: ClassVar[str] = "cross documents"
    made_by: ClassVar[str] = "document"
    query_ids: Numbers
    key_ids: Numbers

    def check(self, extent: Extent) -> None:
        for name, ids, n in (("query", self.query_ids, extent.n_query), ("key", self.key_ids, extent.n_key)):
            check_per_row(f"document ids of the {name} side", ids, extent)
            if ids.shape[-1] != n:
                raise ShapeError(f"document ids: expected one for each of the {n} {name} places; came {ids.shape[-1]}")

    def allowed(self, cells: ScoreIndex) -> Tensor:
        query = at_position(self.query_ids, cells, cells.query_index)
        key = at_position(self.key_ids, cells, cells.key_index)
        return (query == key) & (query >= 0)

    def part(self, queries: slice, keys: slice) -> Mask:
        return CrossDocument(numbers_at(self.query_ids, queries), numbers_at(self.key_ids, keys))


@dataclass(frozen=True, eq=False)
class Function(Mask):
    kind: ClassVar[str] = "function"
    rule: Callable[[Tensor, Tensor], Tensor]

    def __repr__(self) -> str:
        return f"function({getattr(self.rule, '__name__', repr(self.rule))})"

    def allowed(self, cells: ScoreIndex) -> Tensor:
        answer = self.rule(cells.query, cells.key)
        if not isinstance(answer, Tensor) or answer.dtype != torch.bool:
            returned = answer.dtype if isinstance(answer, Tensor) else type(answer).__name__
            raise DtypeError(
                f"a mask function must return a bool tensor, True where the query may attend; it returned {returned}"
            )
        try:
            broadcast = torch.broadcast_shapes(answer.shape, cells.query.shape, cells.key.shape)
        except RuntimeError:
            broadcast = None
        if broadcast != torch.broadcast_shapes(cells.query.shape, cells.key.shape):
            raise ShapeError(
                "a mask function must answer for every pair of positions it is given: expected a shape that broadcasts "
                f"with {tuple(cells.query.shape)} and {tuple(cells.key.shape)}; it returned {tuple(answer.shape)}"
            )
        return answer


@dataclass(frozen=True, eq=False)
class TensorMask(Mask):
    kind: ClassVar[str] = "tensor"
    made_by: ClassVar[str] = "tensor"
    table: Tensor

    @staticmethod
    def of(table: Tensor) -> "TensorMask":
        if not isinstance(table, Tensor):
            raise DtypeError(f"a mask tensor must be a bool tensor; came {type(table).__name__}. Use torch.tensor(...)")
        if table.dtype != torch.bool:
            raise DtypeError(
                f"a mask tensor must be bool, True where the query may attend; came {table.dtype}. "
                "For 0/-inf masks write mask == 0; for 0/1 masks mask.bool()"
            )
        if table.ndim > 4 or table.ndim < 2:
            raise ShapeError(
                f"a mask tensor has 2 to 4 axes, the last of (batch, head, query, key); came {tuple(table.shape)}"
            )
        return TensorMask(four_axes(table))

    def check(self, extent: Extent) -> None:
        check_device("the mask tensor", self.table, extent)
        full = (extent.batch, extent.n_heads, extent.n_query, extent.n_key)
        if any(size not in (1, want) for size, want in zip(self.table.shape, full, strict=True)):
            raise ShapeError(
                f"the mask tensor must broadcast to (batch, head, query, key) = {full}; "
                f"came {tuple(self.table.shape)}; a mask of (batch, key) is written mask[:, None, None, :]"
            )

    def allowed(self, cells: ScoreIndex) -> Tensor:
        return cells.lookup(self.table)

    def part(self, queries: slice, keys: slice) -> Mask:
        table = self.table if self.table.shape[2] == 1 else self.table[:, :, queries]
        return TensorMask(table if table.shape[3] == 1 else table[..., keys])


@dataclass(frozen=True)
class Both(Mask):
    kind: ClassVar[str] = "both"
    parts: tuple[Mask, ...]

    def __repr__(self) -> str:
        return " & ".join(part.operand for part in self.parts)

    @property
    def operand(self) -> str:
        return f"({self!r})"

    @staticmethod
    def of(masks: tuple[Mask, ...]) -> Mask:
        parts = tuple(mask for mask in masks if mask.kind != Everything.kind)
        return Both(parts) if len(parts) > 1 else (*parts, Everything())[0]

    @property
    def terms(self) -> tuple[Mask, ...]:
        return self.parts

    @property
    def structure(self) -> tuple[object, ...]:
        return (Both, *(part.structure for part in self.parts))

    def check(self, extent: Extent) -> None:
        for part in self.parts:
            part.check(extent)

    def allowed(self, cells: ScoreIndex) -> Tensor:
        answer = self.parts[0].allowed(cells)
        for part in self.parts[1:]:
            answer = answer & part.allowed(cells)
        return answer

    def key_range(self, query: Tensor, n_key: int) -> KeyRange | None:
        first, stop = query.new_zeros(1, 1), query.new_full((1, 1), n_key)
        for part in self.parts:
            seen = part.key_range(query, n_key)
            if seen is None:
                return None
            first, stop = torch.maximum(first, seen[0]), torch.minimum(stop, seen[1])
        return first, stop

    def part(self, queries: slice, keys: slice) -> Mask:
        return Both(tuple(part.part(queries, keys) for part in self.parts))

    @property
    def sees_itself(self) -> bool:  # type: ignore[override]
        return all(part.sees_itself for part in self.parts)

    @property
    def from_first_key(self) -> bool:  # type: ignore[override]
        return all(part.from_first_key for part in self.parts)


@dataclass(frozen=True)
class Either(Mask):
    kind: ClassVar[str] = "union"
    left: Mask
    right: Mask

    def __repr__(self) -> str:
        return f"{self.left.operand} | {self.right.operand}"

    @property
    def operand(self) -> str:
        return f"({self!r})"

    @property
    def structure(self) -> tuple[object, ...]:
        return (Either, self.left.structure, self.right.structure)

    def check(self, extent: Extent) -> None:
        self.left.check(extent)
        self.right.check(extent)

    def allowed(self, cells: ScoreIndex) -> Tensor:
        return self.left.allowed(cells) | self.right.allowed(cells)

    def part(self, queries: slice, keys: slice) -> Mask:
        return Either(self.left.part(queries, keys), self.right.part(queries, keys))


@dataclass(frozen=True)
class Not(Mask):
    kind: ClassVar[str] = "negation"
    mask: Mask

    def __repr__(self) -> str:
        return f"~{self.mask.operand}"

    @property
    def structure(self) -> tuple[object, ...]:
        return (Not, self.mask.structure)

    def check(self, extent: Extent) -> None:
        self.mask.check(extent)

    def allowed(self, cells: ScoreIndex) -> Tensor:
        return ~self.mask.allowed(cells)

    def part(self, queries: slice, keys: slice) -> Mask:
        return Not(self.mask.part(queries, keys))


# Masks that hold tensors or functions belong to a call: no file holds them.
for saved in (Everything, Causal, Window, Both, Either, Not):
    register(saved)


def as_mask(mask: Mask | Tensor | None) -> Mask:
    if mask is None:
        return Everything()
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return TensorMask.of(mask)
    raise OptionError(
        f"mask must be one of clearhead.masks, a bool tensor or None; came {type(mask).__name__}. "
        "For lengths write clearhead.masks.padding(lengths)"
    )
