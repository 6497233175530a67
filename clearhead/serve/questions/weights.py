"""The weights of a head: a row, a column, a cell's arithmetic, a tile of the matrix, and small pictures of heads."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal, NotRequired, TypedDict, cast, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.serve.budget import FLOAT, JSON_NUMBER, Cost
from clearhead.serve.costs import row_cost, rows_cost
from clearhead.serve.params import bounded
from clearhead.serve.python_lines import head_code
from clearhead.serve.questions.question import Matrix, Thumbs, TraceQuestion
from clearhead.serve.questions.run import WeightingKind
from clearhead.serve.traced import TEXT, HeadChoice, Traced, check_below, mean_of, name_heads
from clearhead.tracing.site import ALLOWED, MATRICES, TILE, Head


class Row(TypedDict):
    """null stands for −∞. The mean of heads has only its weight."""

    query: NotRequired[list[float]]
    score: NotRequired[list[float | None]]
    scaled: NotRequired[list[float | None]]
    masked: NotRequired[list[float | None]]
    weight: list[float]
    context: NotRequired[list[float]]
    allowed: NotRequired[list[bool]]


@final
@dataclass(frozen=True, kw_only=True)
class AskRow(TraceQuestion[Row]):
    """One query's numbers against every key, of one head or of the mean."""

    turn: ClassVar = "part"
    site: str
    head: HeadChoice
    query: int

    def answer_of(self, traced: Traced) -> Row:
        heads = traced.heads(self.site, self.head)
        query = check_below("query", self.query, heads[0].site.n_query)
        traced.budget.check(
            row_cost(heads), f"a row of {name_heads(heads)}", "ask for one head, or trace a shorter text"
        )
        rows = [head.rows(query, query + 1) for head in heads]
        if self.head == "mean":
            return {"weight": mean_of([row_steps.weight for row_steps in rows])[0].tolist()}
        [steps] = rows
        numbers = {name: getattr(steps, name)[0].tolist() for name in ("query", *MATRICES, "context")}
        return cast(Row, {**numbers, "allowed": heads[0].allowed(query, query + 1)[0].tolist()})

    def python_of(self, traced: Traced) -> list[str]:
        if self.head == "mean":
            return [head_code(self.site, self.head, f"weight[{self.query}]")]
        return [head_code(self.site, self.head, f"rows({self.query}, {self.query + 1})")]


class Column(TypedDict):
    weight: list[float]


@final
@dataclass(frozen=True, kw_only=True)
class AskColumn(TraceQuestion[Column]):
    """The weights of one key, query by query."""

    turn: ClassVar = "part"
    site: str
    head: HeadChoice
    key: int

    def answer_of(self, traced: Traced) -> Column:
        heads = traced.heads(self.site, self.head)
        key, n = check_below("key", self.key, heads[0].site.n_key), heads[0].site.n_query
        cost = rows_cost(heads, n, kept=1) + Cost(memory=n * JSON_NUMBER)
        instead = "ask for one head, for rows, or for a tile of it"
        traced.budget.check(cost, f"a column of {name_heads(heads)}", instead)
        return {"weight": mean_of([head.column(key) for head in heads]).tolist()}

    def python_of(self, traced: Traced) -> list[str]:
        return [head_code(self.site, self.head, f"column({self.key})")]


class TurnMessage(TypedDict):
    """A query and a key before their turn, and by how much each pair of their numbers is turned, in radians."""

    query: list[float]
    key: list[float]
    query_position: int
    key_position: int
    pairs: list[tuple[int, int]]
    query_angles: list[float]
    key_angles: list[float]


class CellMessage(TypedDict):
    """Every number of one cell's arithmetic."""

    kind: WeightingKind
    query: list[float]
    key: list[float]
    products: list[float]
    score: float | None
    scale: float
    scaled: float | None
    bias: float | None
    allowed: bool
    masked: float | None
    highest: float | None
    temperature: float
    """What softmax divides by before the exponential."""
    exponential: float | None
    """What the weight is a share of `total` of; null in weightings that are no share."""
    total: float | None
    weight: float
    ties: list[int]
    value: list[float]
    share: list[float]
    context: list[float]
    turn: TurnMessage | None
    """How the positions turned query and key before they were compared; null where they did not."""
    input: list[float] | None
    """What the head reads of the query's vector: in sliced heads, its slice."""
    input_start: int | None
    """The place of the first of these numbers in the vector; null where the head reads all of it."""
    latent: list[float] | None
    """The key's value between V_down and V_up; null where values are not of low rank."""
    n_query: int
    n_key: int


@final
@dataclass(frozen=True, kw_only=True)
class AskCell(TraceQuestion[CellMessage]):
    """Every number of one cell's arithmetic."""

    site: str
    head: int
    query: int
    key: int

    def answer_of(self, traced: Traced) -> CellMessage:
        head = traced.head(self.site, self.head)
        query, key = check_below("query", self.query, head.site.n_query), check_below("key", self.key, head.site.n_key)
        traced.budget.check(row_cost([head]), f"a cell of {name_heads([head])}", TEXT)
        sizes = {"n_query": head.site.n_query, "n_key": head.site.n_key}
        return cast(CellMessage, {**asdict(head.cell(query, key)), **read_by(traced, head, query, key), **sizes})

    def python_of(self, traced: Traced) -> list[str]:
        return [f"trace[{self.site!r}].head[{self.head}].cell({self.query}, {self.key})"]


def read_by(traced: Traced, head: Head, query: int, key: int) -> dict[str, list[float] | int | None]:
    """Return what the head reads of the query's input (the stream before the site, after the norm in front of it),
    where that begins, and the latent value of the key.
    """
    site, trace, boxes = head.site.name, traced.trace, traced.boxes
    query_map, latent = boxes.inner.names.input_map(site, "query"), f"{site}.latent_value"
    reads = query_map.reads(head.index)
    return {
        "input": trace.value(query_map.of, slice(query, query + 1))[0, reads].tolist(),
        "input_start": reads.start,
        "latent": trace.value(latent, slice(key, key + 1))[head.index, 0].tolist() if latent in boxes.values else None,
    }


MatrixStep = Literal["score", "scaled", "masked", "weight", "weighted", "allowed"]
COARSEST = 24
ROLLOUT = "rollout"
"""The name of a rollout among the tiles."""
MULTIPLIED = 1000
"""Products of a matrix multiplication in the time in which one weight is rebuilt."""


@final
@dataclass(frozen=True, kw_only=True)
class AskTile(TraceQuestion[Matrix]):
    """The largest of each 2^level x 2^level cells; of the mean, the mean of the heads' tiles."""

    turn: ClassVar = "part"
    site: str
    head: HeadChoice = "mean"
    step: MatrixStep
    """`weighted` is ‖w · v · W_O‖, how long a vector a key adds; `allowed` the mask: 1 where a key may be attended."""
    level: int = bounded(0, below=COARSEST)
    row: int = 0
    column: int = 0
    rollout: int = bounded(0, below=2)
    """1: the attention rollout up to the site, in the place of a head."""

    def answer_of(self, traced: Traced) -> Matrix:
        if self.rollout:
            return self.rollout_tile(traced)
        heads = traced.heads(self.site, self.head)
        rows, _ = heads[0].tile_range(self.level, self.row, self.column)
        cost = rows_cost(heads, len(rows), kept=min(TILE, heads[0].site.n_key))
        traced.budget.check(cost, f"this tile of {name_heads(heads)}", "zoom in" if self.level else "ask for one head")

        def tile(head: Head) -> Matrix:
            name = self.site, head.index, self.step, self.level, self.row, self.column
            return traced.tiles.get_or_make(name, lambda: head.tile(self.step, self.level, self.row, self.column))

        return mean_of([tile(head) for head in heads])

    def python_of(self, traced: Traced) -> list[str]:
        if self.rollout:
            rows, columns = traced.trace[self.site].head[0].tile_range(self.level, self.row, self.column)
            part = f"[{rows.start}:{rows.stop}, {columns.start}:{columns.stop}]"
            return [f"trace.rollout({self.site!r}){part}"]
        return [head_code(self.site, self.head, f"tile({self.step!r}, {self.level}, {self.row}, {self.column})")]

    def rollout_tile(self, traced: Traced) -> Matrix:
        """Return a tile of the attention rollout up to a site. It may reach what the site's own mask hides: its mask is
        where anything reaches at all.
        """
        site = traced.trace[self.site]
        rows, columns = site.head[0].tile_range(self.level, self.row, self.column)
        if self.step not in ("weight", ALLOWED):
            raise OptionError(f"weights are rolled out, over the layers; there is no {self.step} of a rollout")
        sites = [other for other in traced.trace.sites.values() if other.slot == "attention"]
        cells = sum(other.n_query**2 * (other.n_heads + other.n_query // MULTIPLIED) for other in sites)
        cost = Cost(cells=cells, memory=4 * max(site.n_query, site.n_key) ** 2 * FLOAT)
        traced.budget.check(cost, f"the rollout up to {site.name}", TEXT)
        rollout = traced.tiles.get_or_make((ROLLOUT, site.name), lambda: traced.trace.rollout(site.name))
        part = rollout[rows.start : rows.stop, columns.start : columns.stop]
        part = (part > 0).float() if self.step == ALLOWED else part
        square = min(1 << self.level, len(rows)), min(1 << self.level, len(columns))
        return F.max_pool2d(part[None], square, ceil_mode=True)[0] if self.level else part


THUMB = 48
"""The most rows and columns of a thumbnail."""
MOST_SHADE, MASKED = 254, 255
"""Bytes of a thumbnail: of weight 1, and of a masked place."""
SAMPLED = 8
"""The most rows that a row of a thumbnail is made of: of a long text the others are left out."""


@final
@dataclass(frozen=True, kw_only=True)
class AskThumbs(TraceQuestion[Thumbs]):
    """Head by head, row by row: 254 × √weight; 255 where all keys are masked.

    With `weighted` it is ‖w · v · W_O‖ in place of the weight, as a share of the largest of all heads.
    """

    turn: ClassVar = "weights"
    site: str
    weighted: int = bounded(0, below=2)

    def answer_of(self, traced: Traced) -> Thumbs:
        site = traced.trace[self.site]
        rows = min(site.n_query, THUMB * SAMPLED)
        # rows of a head are held at once with their mask, before they are made small
        cost = rows_cost(site.head, rows) + Cost(memory=rows * site.n_key * 3 * FLOAT)
        traced.budget.check(cost, f"the thumbnails of {site.name}", TEXT)
        return traced.once(f"thumbs {site.name} {self.weighted}", lambda: shade(site.head, weighted=self.weighted == 1))

    def python_of(self, traced: Traced) -> list[str]:
        return [f"[head.{'weighted' if self.weighted else 'weight'} for head in trace[{self.site!r}].head]"]


def shade(heads: Sequence[Head], *, weighted: bool) -> Thumbs:
    """Return the small maps of heads as bytes: 254 times the square root, so that small weights of a long text differ.

    It is 255 where every key of the square is masked.
    """
    values = torch.stack([small_map(head, weighted=weighted) for head in heads])
    most = values.max().clamp(min=1e-30) if weighted else 1.0
    shades = ((values / most).clamp(0, 1).sqrt() * MOST_SHADE).round()
    return shades.masked_fill(values == float("-inf"), MASKED).to(torch.uint8)


def small_map(head: Head, *, weighted: bool) -> Float[Tensor, "row column"]:
    """Return the head's weights, small: the largest of each square, of a long text from a few rows of it."""
    n_query, n_key = head.site.n_query, head.site.n_key
    height, width = -(-n_query // THUMB), -(-n_key // THUMB)
    if height <= SAMPLED:
        bands = [torch.cat([rows.weight for rows in head.blocks(range(n_query))])]
        allowed = [head.allowed(0, n_query)]
    else:
        starts = range(0, n_query, height)
        bands = [head.rows(start, start + SAMPLED).weight for start in starts]
        allowed = [head.allowed(start, min(start + SAMPLED, n_query)) for start in starts]
        height = SAMPLED
    norms = head.site.value_norms[head.index] if weighted else torch.ones(())
    small = [
        F.max_pool2d(
            (band * norms).masked_fill(~may, float("-inf"))[None], (min(height, len(band)), width), ceil_mode=True
        )[0]
        for band, may in zip(bands, allowed, strict=True)
    ]
    return torch.cat(small)
