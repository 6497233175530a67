"""A tile of a head's matrix: 256 × 256 cells of it, or of it made smaller."""

from dataclasses import dataclass
from typing import Literal, final

from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.serve.budget import FLOAT, Cost
from clearhead.serve.costs import rows_cost
from clearhead.serve.python_lines import head_code
from clearhead.serve.questions.question import Matrix, TraceQuestion, bounded
from clearhead.serve.traced import TEXT, HeadChoice, Traced, mean_of, name_heads
from clearhead.tracing.site import ALLOWED, TILE, Head

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
