"""The residual stream: its vectors, what each layer would answer there, and how unlikely each token was."""

from dataclasses import dataclass
from typing import Literal, TypedDict, cast

from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.serve.budget import FLOAT, JSON_NUMBER, JSON_OBJECT, Cost
from clearhead.serve.costs import LOGITS
from clearhead.serve.questions.question import Matrix, TraceQuestion
from clearhead.serve.questions.run import SideName
from clearhead.serve.questions.trace import CandidateMessage, as_candidates
from clearhead.serve.traced import TEXT, Traced, name_heads
from clearhead.tracing.head_metrics import lens
from clearhead.tracing.trace import ROWS


class StreamRow(TypedDict):
    name: str
    norm: list[float]
    cosine: list[float]


class Stream(TypedDict):
    """How long each position's vector is along the stream, and its cosine with the embedding."""

    rows: list[StreamRow]


@dataclass(frozen=True, kw_only=True)
class AskStream(TraceQuestion[Stream]):
    """The residual stream of a side, value by value."""

    side: SideName

    def answer_of(self, traced: Traced) -> Stream:
        side, trace = self.side, traced.trace
        if side not in trace.sides:
            raise OptionError(f"side is {side!r}, and must be one of {', '.join(trace.sides)}")
        names = [name for name in trace.stream if name.startswith(f"{side}.")]
        numbers = 2 * JSON_NUMBER + trace.sides[side].d_model * FLOAT
        traced.budget.check(Cost(memory=len(names) * traced.lengths[side] * numbers), f"the stream of the {side}", TEXT)
        embedding = trace.value(f"{side}.embedding.token").float()
        values = [(name, trace.value(name).float()) for name in names]
        return {
            "rows": [
                {
                    "name": name,
                    "norm": value.norm(dim=-1).tolist(),
                    "cosine": F.cosine_similarity(value, embedding, dim=-1).tolist(),
                }
                for name, value in values
            ]
        }

    def python_of(self, traced: Traced) -> list[str]:
        names = f"for name in trace.stream if name.startswith('{self.side}.')"
        return [f"{{name: trace.value(name).norm(dim=-1) {names}}}"]


VectorRole = Literal["query", "key", "value", "context"]


@dataclass(frozen=True, kw_only=True)
class AskVectors(TraceQuestion[Matrix]):
    """A row for each token: of a head (`site`, `head`, `role`), or of the stream (`name`)."""

    site: str | None = None
    head: int | None = None
    role: VectorRole | None = None
    name: str | None = None

    def answer_of(self, traced: Traced) -> Matrix:
        return self.of_head(traced) if self.name is None else self.of_stream(traced, self.name)

    def python_of(self, traced: Traced) -> list[str]:
        if self.name is not None:
            return [f"trace.value({self.name!r})"]
        return [f"trace[{self.site!r}].head[{self.head}].{self.role}"]

    def of_stream(self, traced: Traced, name: str) -> Matrix:
        if name not in traced.trace.stream:
            names = ", ".join(traced.trace.stream)
            raise OptionError(f"there is no {name[:80]!r} in this trace's stream; there are {names}")
        vectors = traced.trace.stream[name]
        traced.budget.check(Cost(memory=3 * vectors.numel() * FLOAT), f"all vectors of {name}", TEXT)
        return vectors

    def of_head(self, traced: Traced) -> Matrix:
        if self.site is None or self.head is None or self.role is None:
            missing = [name for name in ("site", "head", "role") if getattr(self, name) is None]
            raise OptionError(f"{missing[0]} is missing: ask for site, head and role, or for the name of a stream")
        head = traced.head(self.site, self.head)
        site = head.site
        numbers = max(site.n_query, site.n_key) * max(site.d_head, site.d_value) + site.recorded_context.numel()
        traced.budget.check(Cost(memory=3 * numbers * FLOAT), f"all vectors of {name_heads([head])}", TEXT)
        return getattr(head, self.role)


LENS = 5
"""The number of candidates of each layer and token."""


class LensLayer(TypedDict):
    name: str
    rows: list[list[CandidateMessage]]


class LensMessage(TypedDict):
    side: SideName
    layers: list[LensLayer]


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


class Surprise(TypedDict):
    """−log p of each token, in nats; null for a token that nothing predicts."""

    side: SideName
    surprise: list[float | None]


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
