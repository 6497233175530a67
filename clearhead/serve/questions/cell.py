"""Every number of one cell's arithmetic: from a query and a key to a weight and its share of the context."""

from dataclasses import asdict, dataclass
from typing import TypedDict, cast, final

from clearhead.serve.costs import row_cost
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.questions.run import WeightingKind
from clearhead.serve.traced import TEXT, Traced, check_below, name_heads
from clearhead.tracing.site import Head


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
