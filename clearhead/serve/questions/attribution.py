"""What each head, feed-forward and embedding adds to an answer's logit: direct logit attribution."""

from dataclasses import dataclass
from typing import Literal, TypedDict, cast, final

from clearhead.circuits.attribution import Attribution
from clearhead.serve.budget import FLOAT, JSON_OBJECT, Cost
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.questions.run import SideName
from clearhead.serve.traced import TEXT, Traced
from clearhead.training.attribution import attribute_trace, first_place

PartKind = Literal["embedding", "head", "feed_forward", "constant", "output", "edits"]


class NamedAnswer(TypedDict):
    id: int
    text: str


class LogitPart(TypedDict):
    """What one part adds to the logit, or to the difference of two."""

    name: str
    kind: PartKind
    site: str | None
    """Of a head, its attention."""
    layer: int | None
    head: int | None
    value: float


class LogitParts(TypedDict):
    """The parts sum to the total: the logit of the answer, less that of the other one."""

    side: SideName
    place: int
    answer: NamedAnswer
    other: NamedAnswer | None
    total: float
    parts: list[LogitPart]


@final
@dataclass(frozen=True, kw_only=True)
class AskAttribution(TraceQuestion[LogitParts]):
    """What each part adds to the logit of `token`, less that of `other`; without one, of the likeliest answer."""

    place: int | None = None
    """A token of the side that answers; without it, the one the page looks at first."""
    token: int | None = None
    """The number of an answer: a token, or a label."""
    other: int | None = None

    def answer_of(self, traced: Traced) -> LogitParts:
        place = first_place(traced.run, traced.trace) if self.place is None else self.place
        rows = 1 if traced.costs.logits else max(traced.lengths.values())
        heads = sum(site.n_heads for site in traced.trace.sites.values())
        memory = rows * heads * 4 * traced.costs.hidden * FLOAT + traced.costs.logits * FLOAT + heads * JSON_OBJECT
        traced.budget.check(traced.costs.box(rows) + Cost(memory=memory), "attributing a logit", TEXT)
        found = attribute_trace(
            traced.run, traced.trace, answer=self.token, other=self.other, place=place, graph=traced.graph
        )
        return {
            "side": cast(SideName, traced.trace.answer_side),
            "place": found.place,
            "answer": {"id": found.answer, "text": found.names[0]},
            "other": None if found.other is None else {"id": found.other, "text": found.names[1]},
            "total": found.total,
            "parts": parts_of(found),
        }

    def python_of(self, traced: Traced) -> list[str]:
        given = {"answer": self.token, "other": self.other, "place": self.place}
        named = "".join(f", {name}={value}" for name, value in given.items() if value is not None)
        return [f"ch.attribute(run, {traced.arguments}{named})"]


def parts_of(found: Attribution) -> list[LogitPart]:
    """Return the parts, each with what it is a part of."""
    parts: list[LogitPart] = []
    for name, value in found.parts.items():
        at, is_head, number = name.rpartition(".head.")
        layer = name.split(".")[1:2]
        kind = "head" if is_head else "embedding" if ".embedding." in name else name.rpartition(".")[2]
        parts.append(
            {
                "name": name,
                "kind": cast(PartKind, kind),
                "site": at if is_head else None,
                "layer": int(layer[0]) if layer and layer[0].isdigit() else None,
                "head": int(number) if is_head else None,
                "value": value,
            }
        )
    return parts
