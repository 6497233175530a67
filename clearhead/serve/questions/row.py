"""One query's numbers against every key."""

from dataclasses import dataclass
from typing import NotRequired, TypedDict, cast, final

from clearhead.serve.costs import row_cost
from clearhead.serve.python_lines import head_code
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.traced import HeadChoice, Traced, check_below, mean_of, name_heads
from clearhead.tracing.site import MATRICES


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
