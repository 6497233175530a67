"""The metrics of every head of a site, or of all sites."""

import functools
from dataclasses import asdict, dataclass
from typing import ClassVar, TypedDict, cast, final

from clearhead.serve.budget import Cost
from clearhead.serve.costs import rows_cost
from clearhead.serve.questions.question import TraceQuestion, bounded
from clearhead.serve.traced import TEXT, Traced
from clearhead.tracing.head_metrics import readings
from clearhead.tracing.site import Site

LEAST_ROWS = 64
"""The fewest rows of a long text that the metrics of a head are read from."""


class ReadingsMessage(TypedDict):
    """Of each head, means over its queries; null where there is no such key for any query. Entropy is in bits."""

    entropy: list[float | None]
    distance: list[float | None]
    first: list[float | None]
    itself: list[float | None]
    previous: list[float | None]
    same: list[float | None]
    induction: list[float | None]
    gain: list[float | None]
    """What W_O makes of the head: how many times as long as its contexts is what it adds to the stream."""


@final
@dataclass(frozen=True, kw_only=True)
class AskReadings(TraceQuestion[dict[str, ReadingsMessage]]):
    """Of one site, or of all; of a long text, from no more than `rows` queries."""

    turn: ClassVar = "weights"
    site: str | None = None
    rows: int | None = bounded(None, least=LEAST_ROWS)

    def answer_of(self, traced: Traced) -> dict[str, ReadingsMessage]:
        sites = list(traced.trace.sites.values()) if self.site is None else [traced.trace[self.site]]
        costs = [rows_cost(site.head, min(self.rows or site.n_query, site.n_query), kept=1) for site in sites]
        cost = functools.reduce(Cost.__add__, costs)
        what = "all attentions" if self.site is None else self.site
        instead = "ask for one attention" if self.site is None else TEXT
        traced.budget.check(cost, f"reading every weight of {what}", instead)
        return {site.name: self.read(traced, site) for site in sites}

    def python_of(self, traced: Traced) -> list[str]:
        rows = "" if self.rows is None else f", rows={self.rows}"
        if self.site is not None:
            return [f"{{{self.site!r}: ch.tracing.readings(trace, {self.site!r}{rows})}}"]
        return [f"{{site: ch.tracing.readings(trace, site{rows}) for site in trace.sites}}"]

    def read(self, traced: Traced, site: Site) -> ReadingsMessage:
        rows = self.rows if self.rows is not None and self.rows < site.n_query else None

        def make() -> ReadingsMessage:
            heads = [asdict(head) for head in readings(traced.trace, site, rows)]
            return cast(ReadingsMessage, {name: [head[name] for head in heads] for name in heads[0]})

        return traced.once(f"readings {site.name} {rows}", make)
