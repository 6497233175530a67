"""How alike tokens are as embeddings, as queries and keys, and as values."""

from dataclasses import dataclass
from typing import TypedDict, final

from clearhead.serve.costs import rows_cost
from clearhead.serve.questions.question import TraceQuestion, bounded
from clearhead.serve.traced import Traced
from clearhead.tracing.spaces import compare_spaces

MOST_COMPARED = 24
"""The most tokens that are compared with each other in one answer."""


class SpacesMessage(TypedDict):
    """Cosines of some tokens with each other in three spaces, and the head's scores; rows are queries, columns keys."""

    places: list[int]
    tokens: list[str]
    embedding: list[list[float]]
    query_key: list[list[float]]
    score: list[list[float]]
    value: list[list[float]]


@final
@dataclass(frozen=True, kw_only=True)
class AskSpaces(TraceQuestion[SpacesMessage]):
    """How alike some tokens are as embeddings, as queries and keys, and as values."""

    site: str
    head: int
    places: list[int] = bounded(most=MOST_COMPARED)

    def answer_of(self, traced: Traced) -> SpacesMessage:
        head = traced.head(self.site, self.head)
        traced.budget.check(rows_cost([head], len(self.places), kept=4), "comparing these tokens", "compare fewer")
        spaces = compare_spaces(traced.trace, self.site, head.index, self.places)
        return {
            "places": list(spaces.places),
            "tokens": list(spaces.tokens),
            "embedding": spaces.embedding.tolist(),
            "query_key": spaces.query_key.tolist(),
            "score": spaces.score.tolist(),
            "value": spaces.value.tolist(),
        }

    def python_of(self, traced: Traced) -> list[str]:
        return [f"ch.tracing.compare_spaces(trace, {self.site!r}, {self.head}, {self.places})"]
