"""How much every query looks at one key."""

from dataclasses import dataclass
from typing import TypedDict, final

from clearhead.serve.budget import JSON_NUMBER, Cost
from clearhead.serve.costs import rows_cost
from clearhead.serve.python_lines import head_code
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.traced import HeadChoice, Traced, check_below, mean_of, name_heads


class Column(TypedDict):
    weight: list[float]


@final
@dataclass(frozen=True, kw_only=True)
class AskColumn(TraceQuestion[Column]):
    """The weights of one key, query by query."""

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
