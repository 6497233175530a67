"""The logit lens: what each layer would answer at each token."""

from dataclasses import dataclass
from typing import TypedDict, cast, final

from clearhead.serve.budget import JSON_NUMBER, JSON_OBJECT, Cost
from clearhead.serve.costs import LOGITS
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.questions.run import SideName
from clearhead.serve.questions.trace import CandidateMessage, as_candidates
from clearhead.serve.traced import TEXT, Traced
from clearhead.tracing.head_metrics import lens
from clearhead.tracing.trace import ROWS

LENS = 5
"""The number of candidates of each layer and token."""


class LensLayer(TypedDict):
    name: str
    rows: list[list[CandidateMessage]]


class LensMessage(TypedDict):
    side: SideName
    layers: list[LensLayer]


@final
@dataclass(frozen=True, kw_only=True)
class AskLens(TraceQuestion[LensMessage]):
    """What each layer would answer at each token."""

    def answer_of(self, traced: Traced) -> LensMessage:
        trace, costs = traced.trace, traced.costs
        n, layers = traced.lengths[trace.answer_side], trace.sides[trace.answer_side].n_layers + 2
        memory = n * layers * LENS * JSON_OBJECT + ROWS * costs.logits * JSON_NUMBER
        cost = Cost(cells=n * layers * costs.logits // LOGITS, memory=memory)
        traced.budget.check(cost, "what each layer would answer at each token", TEXT)
        return traced.once("lens", lambda: self.make(traced))

    def python_of(self, traced: Traced) -> list[str]:
        return [f"ch.tracing.lens(trace, run.model, shown={LENS})"]

    def make(self, traced: Traced) -> LensMessage:
        found = lens(traced.trace, traced.model, shown=LENS)
        layers: list[LensLayer] = [
            {"name": layer.name, "rows": [as_candidates(traced.with_names(row)) for row in layer.rows]}
            for layer in found
        ]
        return {"side": cast(SideName, traced.trace.answer_side), "layers": layers}
