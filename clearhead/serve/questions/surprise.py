"""How unlikely each token of a text was to the model."""

from dataclasses import dataclass
from typing import TypedDict, cast, final

from clearhead.serve.budget import FLOAT, JSON_NUMBER, Cost
from clearhead.serve.costs import LOGITS
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.questions.run import SideName
from clearhead.serve.traced import TEXT, Traced
from clearhead.tracing.surprise import ROWS


class Surprise(TypedDict):
    """−log p of each token, in nats; null for a token that nothing predicts."""

    side: SideName
    surprise: list[float | None]


@final
@dataclass(frozen=True, kw_only=True)
class AskSurprise(TraceQuestion[Surprise]):
    """How unlikely each token of the side that answers was to the model."""

    def answer_of(self, traced: Traced) -> Surprise:
        trace, costs = traced.trace, traced.costs
        n = traced.lengths[trace.answer_side]
        memory = 2 * ROWS * costs.logits * FLOAT + n * JSON_NUMBER
        cost = Cost(cells=n * costs.logits // LOGITS, memory=memory)
        traced.budget.check(cost, "how unlikely each token was", TEXT)
        surprise = traced.once("surprise", lambda: trace.surprise)
        return {"side": cast(SideName, trace.answer_side), "surprise": surprise.tolist()}

    def python_of(self, traced: Traced) -> list[str]:
        return ["trace.surprise"]
