"""A site: one attention of a trace, with every step of any head rebuilt for any rows and checked against the kernel.

Rebuilding goes through the reference, a block of rows at a time, so that n x n numbers exist only for a caller who asks
for a whole matrix. Each time rows are rebuilt, so is their context, and it must be the kernel's.
"""

import functools
import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention import kernels, reference
from clearhead.attention.inputs import AttentionInputs, ordinary
from clearhead.attention.layer import Attention
from clearhead.attention.mask_rules import Mask
from clearhead.attention.positions import Position
from clearhead.attention.reference import Steps
from clearhead.attention.score_index import Positions
from clearhead.attention.similarity import Similarity
from clearhead.attention.weighting import Weighting
from clearhead.decoding.generating import eval_mode
from clearhead.errors import OptionError, PlaceError, TraceError
from clearhead.notebook import Display, Matrix, flow, heat_maps, paragraph
from clearhead.tracing.arithmetic import Cell, Turn, cell_of, tie_mask, turn_of
from clearhead.tracing.edits import apply_edits, step_tap
from clearhead.tracing.recording import Counted, RecordedAttention, check_stopped

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""How far a rebuilt context may be from the kernel's, times the larger of 1 and its largest number."""
TILE = 256
MATRICES = ("score", "scaled", "masked", "weight")
"""The steps that have a number for each query and key."""
ALLOWED = "allowed"
"""The mask as a matrix: 1 where the query may attend to the key."""
WEIGHTED = "weighted"
"""The weights, each times how long a vector its value adds to the stream."""
SIDE, SMALL = 128, 64
"""The most rows and columns of a map, and of one among many: of a longer text each cell is the largest of several."""
MANY = 16
"""More maps than these are small."""
CELLS = 1 << 20
"""How many cells are computed at a time: 4 MB in float32."""


def head_outputs(layer: Attention, context: Float[Tensor, "head n d_value"]) -> Iterator[Float[Tensor, "n d_model"]]:
    """Yield what W_O makes of vectors of each head, without the bias: of contexts, or of values."""
    with eval_mode(layer):
        bias = layer.output(context.new_zeros(1, context.shape[0] * context.shape[2]))
        for head, of_head in enumerate(context):
            alone = torch.zeros_like(context)
            alone[head] = of_head
            yield layer.output(alone.transpose(0, 1).flatten(1)) - bias


class Site:
    """An attention of a trace: its parts, its vectors, and its heads, for one row of a batch."""

    def __init__(self, name: str, recorded: RecordedAttention, row: int = 0) -> None:
        self.name, self.recorded = name, recorded
        side, layer, self.slot = name.split(".")
        self.side, self.layer = side, int(layer)
        self.call: AttentionInputs = recorded.call.of_row(row).to_float32()
        self.projected = None if recorded.projected is None else tuple(vectors[row] for vectors in recorded.projected)
        """Queries and keys before the position turned them: `(head, n, d_head)` each; None if it turns nothing."""
        self.recorded_context = recorded.context[row]
        """The context of every head, as the kernel gave it: `(head, query, d_value)`."""
        self.head = Counted([Head(self, index) for index in range(self.n_heads)], f"{name}: head")
        self.attention: Attention | None = None
        """The layer that it ran in, which has W_O; None in a trace without its model."""
        self.tokens: tuple[Sequence[str], Sequence[str]] = range_names(self.n_query), range_names(self.n_key)
        """The queries and the keys as they are shown: numbers, until a trace names them."""

    def __repr__(self) -> str:
        ran = f"kernel {self.kernel}" + (f" ({self.why})" if self.why else "")
        return f"Site({self.name}: {self.n_heads} heads, {self.n_query} queries x {self.n_key} keys, {ran})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self.show()._repr_html_()

    def show(self, head: int | None = None) -> Display:
        """Return the weights of all heads, or of one, as heat maps: a notebook shows it, and `save` writes it."""
        if head is not None:
            check_place(self.name, "head", head, self.n_heads)
        heads = self.head if head is None else [self.head[head]]
        side = SIDE if len(heads) <= MANY else SMALL
        drawn = heat_maps([one.matrix(f"head {one.index}", side) for one in heads])
        which = f"{self.n_heads} heads" if head is None else f"head {head}"
        title = f"{self.name}, {which}: {self.n_query} queries x {self.n_key} keys"
        return Display(title, flow(drawn) + paragraph("Rows are queries, columns keys: where each query looks."))

    @property
    def kernel(self) -> str:
        return self.recorded.kernel

    @property
    def why(self) -> str:
        return self.recorded.why

    @property
    def is_edited(self) -> bool:
        return bool(self.recorded.changes)

    @property
    def n_heads(self) -> int:
        return self.call.n_heads

    @property
    def n_kv_heads(self) -> int:
        return self.call.key.shape[1]

    @property
    def n_query(self) -> int:
        return self.call.n_query

    @property
    def n_key(self) -> int:
        return self.call.n_key

    @property
    def d_head(self) -> int:
        return self.call.query.shape[-1]

    @property
    def d_value(self) -> int:
        return self.call.value.shape[-1]

    @property
    def similarity(self) -> Similarity:
        return self.call.similarity

    @property
    def weighting(self) -> Weighting:
        return self.call.weighting

    @property
    def position(self) -> Position:
        return self.call.position

    @property
    def mask(self) -> Mask:
        return self.call.mask

    @property
    def query(self) -> Float[Tensor, "head query d_head"]:
        """Return the queries as they meet the keys: after rotary."""
        return self.call.query[0]

    @property
    def key(self) -> Float[Tensor, "head key d_head"]:
        """Return the keys, one for each query head: shared ones (GQA) are repeated."""
        return self.call.with_every_head().key[0]

    @property
    def value(self) -> Float[Tensor, "head key d_value"]:
        return self.call.with_every_head().value[0]

    @property
    def context(self) -> Float[Tensor, "head query d_value"]:
        """Return the context as it went on: with its edits."""
        return apply_edits(f"{self.name}.context", self.recorded_context.unsqueeze(0), self.recorded.changes)[0]

    @functools.cached_property
    def value_norms(self) -> Float[Tensor, "head key"]:
        """Return how long a vector each key's value adds to the stream in each head, at weight 1: ‖v · W_O‖."""
        if self.attention is None:
            raise OptionError(f"{self.name}: W_O is the model's, and this trace has none: Trace.load(path, model)")
        value = self.value.to(next(self.attention.parameters()).dtype)
        return torch.stack([out.norm(dim=-1) for out in head_outputs(self.attention, value)]).to(self.value.dtype)

    @functools.cached_property
    def visible_call(self) -> AttentionInputs:
        """Return the inputs with zeros in place of NaN or Inf where no query attends."""
        call = self.call
        if call.unmasked or all(ordinary(x) for x in (call.query, call.key, call.value)):
            return call
        return call.set_hidden_to_zero(kernels.sight(call.with_every_head(), TILE))

    def check(self, context: Tensor, head: int, rows: slice) -> None:
        """Raise TraceError where rebuilt contexts are not what the kernel gave."""
        kernel = self.recorded_context[head, rows]
        if self.is_edited and not bool(kernel.isfinite().all()):
            raise overflow_of(f"{self.name}.context", kernel.dtype)
        off = (context - kernel).abs().max().item()
        allowed = TOLERANCE[self.recorded_context.dtype] * max(1.0, kernel.abs().max().item())
        if not off <= allowed:
            raise TraceError(
                f"{self.name}, head {head}: the context rebuilt by the reference is off from what kernel {self.kernel} "
                f"gave by {off:.1e}, and {allowed:.1e} is allowed; one of the two is wrong: please report it"
            )


class Head:
    """A head of a site: its steps, rebuilt when asked for."""

    def __init__(self, site: Site, index: int) -> None:
        self.site, self.index = site, index

    def __repr__(self) -> str:
        return f"Head({self.site.name}, {self.index})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self.show()._repr_html_()

    def show(self) -> Display:
        """Return its weights as a heat map: a notebook shows it, and `save` writes it."""
        return self.site.show(self.index)

    def matrix(self, name: str, side: int) -> Matrix:
        """Return its weights to draw: at the finest level with no more rows and columns than `side`."""
        level = max(0, math.ceil(math.log2(max(self.site.n_query, self.site.n_key) / side)))
        rows, columns = self.site.tokens if level == 0 else ((), ())
        return Matrix(name, self.pooled_weights(level), rows, columns, pool=1 << level)

    def pooled_weights(self, level: int) -> Float[Tensor, "row column"]:
        """Return all of its weights at a level, as `tile` does, with NaN where every key is masked."""
        weight = self.tile("weight", level, 0, 0)
        return weight.masked_fill(self.tile(ALLOWED, level, 0, 0) == 0, float("nan"))

    @functools.cached_property
    def call(self) -> AttentionInputs:
        """Return the inputs of this head alone, where every part can be split by heads; else of all heads."""
        visible = self.site.visible_call
        return visible.of_head(self.index) or visible.with_every_head()

    @property
    def call_index(self) -> int:
        return 0 if self.call.n_heads == 1 else self.index

    @functools.cached_property
    def prepared(self) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return self.call.similarity.prepare(self.call.query, self.call.key)

    @property
    def query(self) -> Float[Tensor, "query d_head"]:
        return self.call.query[0, self.call_index]

    @property
    def key(self) -> Float[Tensor, "key d_head"]:
        return self.call.key[0, self.call_index]

    @property
    def value(self) -> Float[Tensor, "key d_value"]:
        return self.call.value[0, self.call_index]

    @property
    def score(self) -> Float[Tensor, "query key"]:
        return self.rows().score

    @property
    def scaled(self) -> Float[Tensor, "query key"]:
        return self.rows().scaled

    @property
    def masked(self) -> Float[Tensor, "query key"]:
        return self.rows().masked

    @property
    def weight(self) -> Float[Tensor, "query key"]:
        return self.rows().weight

    @property
    def weighted(self) -> Float[Tensor, "query key"]:
        """Return the value-weighted attention ‖w · v · W_O‖: how long a vector each key adds to the stream."""
        return self.weight.abs() * self.site.value_norms[self.index]

    @property
    def context(self) -> Float[Tensor, "query d_value"]:
        return self.site.context[self.index]

    @property
    def scale(self) -> float:
        """Return the factor of its scores."""
        scale = self.call.scale
        return scale if isinstance(scale, int | float) else scale.flatten()[self.call_index].item()

    @torch.no_grad()
    def rows(self, start: int = 0, stop: int | None = None) -> Steps:
        """Return all steps of these query rows, without batch and head axes; the context is as it went on."""
        check_stopped()
        whole = isinstance(start, int) and isinstance(stop, int | None)
        rows = slice(start, self.site.n_query if stop is None else min(stop, self.site.n_query)) if whole else slice(0)
        if not whole or not 0 <= rows.start < rows.stop:
            raise PlaceError(f"{self.site.name}: rows {start!r} to {stop!r} of {self.site.n_query} queries are none")
        call, (query, key) = self.call, self.prepared
        tap = step_tap(self.site.recorded.changes, call, rows)
        weighed = reference.weigh(call, query[:, :, rows], key, rows, tap)
        self.site.check(reference.mix(call, weighed.weight, call.value)[0, self.call_index], self.index, rows)
        return Steps(
            query=self.query[rows],
            key=self.key,
            value=self.value,
            **{step: getattr(weighed, step)[0, self.call_index] for step in MATRICES},
            context=self.context[rows],
        )

    @torch.no_grad()
    def seen_weights(self, start: int, stop: int) -> Float[Tensor, "query seen"]:
        """Return the weights of these rows on the keys that they may see under a causal mask: the others are 0.

        Half of a long causal map is masked, and is left out. Other masks and weightings, and edits, need all keys.
        """
        call, (query, key) = self.call, self.prepared
        n = call.n_key - call.n_query + stop
        plain = call.mask.kinds == {"causal"} and call.weighting.form == "softmax" and call.given_positions is None
        if not plain or self.site.recorded.changes or n < 1:
            return self.rows(start, stop).weight
        check_stopped()
        rows, sides = slice(start, stop), call.positions
        visible = call.replace(
            key=call.key[:, :, :n], value=call.value[:, :, :n], given_positions=Positions(sides.query, sides.key[:n])
        )
        weight = reference.weigh(visible, query[:, :, rows], key[:, :, :n], rows).weight
        self.site.check(reference.mix(visible, weight, visible.value)[0, self.call_index], self.index, rows)
        return weight[0, self.call_index]

    def spans(self, rows: range) -> Iterator[tuple[int, int]]:
        """Yield the starts and ends of blocks of rows; each has about CELLS cells, and one row at least."""
        n_rows = max(1, CELLS // (self.site.n_key * self.call.n_heads))
        for start in range(rows.start, rows.stop, n_rows):
            yield start, min(start + n_rows, rows.stop)

    def blocks(self, rows: range) -> Iterator[Steps]:
        """Yield the steps of many rows, a block at a time. A view keeps its whole block in memory: copy what stays."""
        for start, stop in self.spans(rows):
            yield self.rows(start, stop)

    def column(self, key: int) -> Float[Tensor, "query"]:
        """Return how much each query looks at one key."""
        check_place(self.site.name, "key", key, self.site.n_key)
        column = self.query.new_empty(self.site.n_query)
        for start, stop in self.spans(range(self.site.n_query)):
            column[start:stop] = self.rows(start, stop).weight[:, key]
        return column

    def tile(self, step: str, level: int, row: int, column: int) -> Float[Tensor, "query key"]:
        """Return a tile of one of the matrices, at a zoom level: each number is the largest of 2^level x 2^level.

        Of `allowed` it is 1 where a query may attend to any of these keys, and 0 where all of them are masked.

        Tile (row, column) has up to 256 x 256 numbers; at level 0 they are the matrix's own.
        """
        if step not in (*MATRICES, WEIGHTED, ALLOWED):
            raise OptionError(f"a tile shows one of {', '.join((*MATRICES, WEIGHTED, ALLOWED))}; came {step!r}")
        rows, columns = self.tile_range(level, row, column)
        size = 1 << level
        tile = self.query.new_full((-(-len(rows) // size), -(-len(columns) // size)), float("-inf"))
        # a coarse level is padded no further than it reaches
        square = (min(size, len(rows)), min(size, len(columns)))
        for start, stop in self.spans(rows):
            cells = self.matrix_rows(step, start, stop)[:, columns.start : columns.stop]
            if not cells.shape[1]:  # all of these keys are masked
                continue
            # A square may reach over several blocks, so each block only raises what is there.
            first = (start - rows.start) // size
            part = max_pool(cells, square, (start - rows.start) % size)
            region = tile[first : first + len(part), : part.shape[1]]
            torch.maximum(region, part, out=region)
        return tile.masked_fill_(tile == float("-inf"), 0.0) if step in ("weight", WEIGHTED) else tile

    def matrix_rows(self, step: str, start: int, stop: int) -> Float[Tensor, "query key"]:
        """Return rows of one matrix; of the weights, the keys that are seen."""
        if step in ("weight", WEIGHTED):
            weight = self.seen_weights(start, stop)
            norms = self.site.value_norms[self.index] if step == WEIGHTED else None
            return weight if norms is None else weight.abs() * norms[: weight.shape[1]]
        return self.allowed(start, stop).float() if step == ALLOWED else getattr(self.rows(start, stop), step)

    def tile_range(self, level: int, row: int, column: int) -> tuple[range, range]:
        """Return the queries and the keys that a tile shows; raise if there are none."""
        if not all(isinstance(number, int) and number >= 0 for number in (level, row, column)):
            raise PlaceError(f"{self.site.name}: there is no tile ({row!r}, {column!r}) at level {level!r}")
        size = TILE << level
        rows, columns = (
            range(index * size, min((index + 1) * size, n))
            for index, n in ((row, self.site.n_query), (column, self.site.n_key))
        )
        if not rows or not columns:
            raise PlaceError(f"{self.site.name}: there is no tile ({row}, {column}) at level {level}")
        return rows, columns

    def cell(self, query: int, key: int) -> Cell:
        """Return the arithmetic of one cell, every number of it."""
        check_place(self.site.name, "query", query, self.site.n_query)
        check_place(self.site.name, "key", key, self.site.n_key)
        row, allowed = self.rows(query, query + 1), self.allowed(query, query + 1)[0]
        meeting = self.prepared[0][0, self.call_index, query], self.prepared[1][0, self.call_index, key]
        turn = self.turn(query, key)
        return cell_of(self.call, meeting, row, key=key, scale=self.scale, allowed=allowed, turn=turn)

    def turn(self, query: int, key: int) -> Turn | None:
        """Return how the position turned this query and this key; None if it turns nothing, or it is not known."""
        check_place(self.site.name, "query", query, self.site.n_query)
        check_place(self.site.name, "key", key, self.site.n_key)
        if self.site.projected is None:
            return None
        queries, keys = self.site.projected
        shared = self.index * keys.shape[0] // self.site.n_heads
        return turn_of(self.call, (queries[self.index, query], keys[shared, key]), (query, key))

    def allowed(self, start: int, stop: int) -> Bool[Tensor, "query key"]:
        """Return where these queries may attend."""
        call, rows = self.call, slice(start, stop)
        tap = step_tap(self.site.recorded.changes, call, rows)
        allowed = tap("allowed", call.mask.allowed(call.cells(rows)))
        return allowed.broadcast_to(1, call.n_heads, stop - start, call.n_key)[0, self.call_index]

    def ties(self, query: int) -> list[int]:
        """Return the keys whose score is the row's highest, within argmax's tolerance for ties."""
        check_place(self.site.name, "query", query, self.site.n_query)
        row, allowed = self.rows(query, query + 1), self.allowed(query, query + 1)
        return tie_mask(row.masked[0], allowed[0]).nonzero().flatten().tolist()


def check_place(site: str, axis: str, index: int, n: int) -> None:
    """Raise PlaceError for a head, a query or a key that is not there."""
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < n:
        raise PlaceError(f"{site}: there is no {axis} {index!r}; there are {n}, counted from 0")


def range_names(n: int) -> list[str]:
    return [str(index) for index in range(n)]


def overflow_of(name: str, dtype: torch.dtype) -> OptionError:
    """Return the error for a changed model in which a value is infinite or no number."""
    return OptionError(
        f"{name} overflows: with these edits it has numbers that {str(dtype).removeprefix('torch.')} cannot hold (the "
        f"largest is {torch.finfo(dtype).max:.1e}), so nothing after it means anything; edit by smaller numbers"
    )


def max_pool(
    matrix: Float[Tensor, "query key"], square: tuple[int, int], above: int = 0
) -> Float[Tensor, "row column"]:
    """Return the largest value of each height x width square; squares at the edges may be smaller. `above` is how
    many rows the first squares lack.
    """
    height, width = square
    rows, columns = matrix.shape
    matrix = F.pad(matrix, (0, -columns % width), value=float("-inf")).unflatten(1, (-1, width)).amax(2)
    matrix = F.pad(matrix, (0, 0, above, -(above + rows) % height), value=float("-inf"))
    return matrix.unflatten(0, (-1, height)).amax(1)
