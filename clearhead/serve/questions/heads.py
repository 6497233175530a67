"""What a head does: its metrics, its effect on answers, what it copies and looks for, and which tokens it likens."""

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, TypedDict, cast

from clearhead.circuits.vocabulary import BLOCK, SAMPLE, HeadVocabulary, TokenScore
from clearhead.errors import OptionError
from clearhead.serve import params, python_lines
from clearhead.serve.budget import FLOAT, JSON_OBJECT, Cost
from clearhead.serve.costs import LOGITS, rows_cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.questions.question import Question, TraceQuestion
from clearhead.serve.traced import TEXT, Traced
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing import compare_spaces, effects, readings
from clearhead.tracing.site import Site
from clearhead.training.tasks.answering import token_names

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


@dataclass(frozen=True, kw_only=True)
class AskReadings(TraceQuestion[dict[str, ReadingsMessage]]):
    """Of one site, or of all; of a long text, from no more than `rows` queries."""

    turn: ClassVar = "weights"
    site: str | None = None
    rows: int | None = params.bounded(None, least=LEAST_ROWS)

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


class HeadEffect(TypedDict):
    head: int
    change: float
    kl: float


class Effects(TypedDict):
    effects: list[HeadEffect]


@dataclass(frozen=True, kw_only=True)
class AskEffects(TraceQuestion[Effects]):
    """What the answers lose without each head of a site."""

    site: str

    def answer_of(self, traced: Traced) -> Effects:
        site, changes = traced.trace[self.site], traced.trace.changes
        forward = traced.costs.forward(traced.lengths, changes)
        cost = Cost(cells=forward.cells * (1 + site.n_heads), memory=2 * forward.memory)
        traced.budget.check(cost, f"running the model without each head of {site.name}", TEXT)
        found = traced.once(
            f"effects {site.name}",
            lambda: effects(traced.model, traced.logits, site.name, site.n_heads, changes),
        )
        return {
            "effects": [{"head": effect.head, "change": effect.change, "kl": effect.divergence} for effect in found]
        }

    def python_of(self, traced: Traced) -> list[str]:
        n_heads = traced.trace[self.site].n_heads
        return [
            "import torch",
            "tokens = [torch.tensor([side.ids]) for side in trace.sides.values()]",
            "def forward(edits):",
            "    with ch.tracing.recording(run.model, edits):",
            "        return run.model(*tokens)",
            f"ch.tracing.effects(run.model, forward, {self.site!r}, {n_heads}, trace.changes)",
        ]


MOST_TOKENS = 50


class ScoredToken(TypedDict):
    id: int
    text: str
    score: float


class HeadTokens(TypedDict):
    """What a head does with a token, by the direct path from the embedding, without positions."""

    token: int
    text: str
    copies: list[ScoredToken]
    """The tokens whose logits it raises most where it attends to this one."""
    suppresses: list[ScoredToken]
    """Those that it lowers most."""
    seeks: list[ScoredToken]
    """The tokens whose keys fit the query of this one best."""
    copying: float | None
    """The share of tokens that are themselves among the five it raises most; null where it writes other tokens than it
    reads."""
    chance: float


@dataclass(frozen=True, kw_only=True)
class AskVocabulary(Question[HeadTokens]):
    """What a head copies from a token, and what it looks for from there."""

    site: str
    head: int
    token: int
    most: int = params.bounded(10, least=1, below=MOST_TOKENS + 1)
    step: int | None = None

    def answer(self, explorer: "Explorer") -> HeadTokens:
        run = explorer.at(self.step)
        head = HeadVocabulary(run.model, self.site, self.head)
        vocabulary = head.answering.spec.vocabulary
        cost = Cost(cells=(SAMPLE + 2) * vocabulary // LOGITS, memory=3 * BLOCK * FLOAT + 3 * self.most * JSON_OBJECT)
        explorer.budget.check(cost, "comparing a head with the vocabulary", "use a run with a smaller vocabulary")
        tokenizers = [*run.task.tokenizers.values()]
        reads = tokenizers[0] if head.key_part is not head.answering else tokenizers[-1]
        writes, n = tokenizers[-1], head.key_part.spec.vocabulary
        if self.token >= n:
            raise OptionError(f"token is {self.token:,}, and must be 0 to {n - 1:,}")
        asks = head.part.spec.vocabulary > self.token
        return {
            "token": self.token,
            "text": token_names(reads, [self.token])[0],
            "copies": named(writes, head.copies(self.token, self.most)),
            "suppresses": named(writes, head.copies(self.token, self.most, largest=False)),
            "seeks": named(reads, head.seeks(self.token, self.most)) if asks else [],
            "copying": head.copying() if n == vocabulary else None,
            "chance": min(1.0, 5 / vocabulary),
        }

    def python(self, explorer: "Explorer") -> list[str]:
        head = f"head = ch.circuits.HeadVocabulary(run.model, {self.site!r}, {self.head})"
        asked = f"head.copies({self.token}, {self.most}), head.seeks({self.token}, {self.most}), head.copying()"
        return [*python_lines.load_lines(explorer.at(self.step)), head, f"({asked})"]


def named(tokenizer: Tokenizer, found: Sequence[TokenScore]) -> list[ScoredToken]:
    """Return tokens with their words."""
    names = token_names(tokenizer, [one.id for one in found])
    return [{"id": one.id, "text": name, "score": one.score} for one, name in zip(found, names, strict=True)]


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


@dataclass(frozen=True, kw_only=True)
class AskSpaces(TraceQuestion[SpacesMessage]):
    """How alike some tokens are as embeddings, as queries and keys, and as values."""

    site: str
    head: int
    places: list[int] = params.bounded(most=MOST_COMPARED)

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
