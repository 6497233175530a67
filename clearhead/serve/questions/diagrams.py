"""Sequence diagrams: of an attention step, and of the notes' sentence, whose head was set by hand."""

from dataclasses import dataclass
from typing import TypedDict, final

from clearhead.serve.costs import row_cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import bounded
from clearhead.serve.questions.question import Question, TraceQuestion
from clearhead.serve.traced import TEXT, Traced, check_below, name_heads
from clearhead.tracing.sentence import TOKENS, creature_exchange
from clearhead.tracing.sequence_diagram import MOST_QUERIES, draw_sequence, exchange_of

MOST_ROOM = 20_000


class SequenceMessage(TypedDict):
    """A sequence diagram of one attention step, as an SVG element."""

    svg: str


@final
@dataclass(frozen=True, kw_only=True)
class AskSequence(TraceQuestion[SequenceMessage]):
    """One attention step as a sequence diagram; of at most `queries`, and `room` pixels wide if it can be."""

    site: str
    head: int
    query: int
    room: int = bounded(MOST_ROOM, below=MOST_ROOM)
    queries: int = bounded(MOST_QUERIES, least=1, below=MOST_QUERIES + 1)

    def answer_of(self, traced: Traced) -> SequenceMessage:
        head = traced.head(self.site, self.head)
        site, trace = head.site, traced.trace
        query, few = check_below("query", self.query, site.n_query), site.n_query <= MOST_QUERIES
        traced.budget.check(row_cost([head], MOST_QUERIES), f"the diagram of {name_heads([head])}", TEXT)
        steps = head.rows() if few else head.rows(query, query + 1)
        key_side = "encoder" if site.slot == "cross" else site.side
        tokens = [trace.sides[side].tokens for side in (site.side, key_side)]
        exchange = exchange_of(
            f"{site.name}, head {head.index}",
            f"Followed: {tokens[0][query]}.",
            (tokens[0] if few else [tokens[0][query]], tokens[1]),
            steps,
            query if few else 0,
            scale=head.scale,
            allowed=head.allowed(0, site.n_query) if few else head.allowed(query, query + 1),
            weighting=site.weighting.called,
            formula=site.similarity.formula,
            room=self.room,
            most_queries=self.queries,
        )
        return {"svg": draw_sequence(exchange, standalone=False)}

    def python_of(self, traced: Traced) -> list[str]:
        return [f"trace[{self.site!r}].head[{self.head}].rows({self.query}, {self.query + 1})"]


class Sentence(TypedDict):
    """The diagram of a token of the sentence, as an SVG element."""

    svg: str
    tokens: list[str]
    token: int


@final
@dataclass(frozen=True, kw_only=True)
class AskSentence(Question[Sentence]):
    """The sequence diagram of the notes' sentence."""

    token: int = bounded(TOKENS.index("creature"), below=len(TOKENS))

    def answer(self, explorer: "Explorer") -> Sentence:
        diagram = draw_sequence(creature_exchange(self.token), standalone=False)
        return {"tokens": list(TOKENS), "token": self.token, "svg": diagram}

    def python(self, explorer: "Explorer") -> list[str]:
        exchange = f"sentence.creature_exchange({self.token})"
        return ["from clearhead.tracing import sentence", "", f"sentence.draw_sequence({exchange}, standalone=False)"]
