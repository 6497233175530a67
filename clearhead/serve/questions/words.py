"""Words as vectors: the nearest tokens by embedding, and one word in several texts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clearhead.circuits.nodes import layer_ends
from clearhead.errors import OptionError
from clearhead.model.outputs import ToVocabulary
from clearhead.serve import costs, python_lines
from clearhead.serve.budget import JSON_NUMBER, AnswerBudget, Cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import Params, bounded
from clearhead.serve.questions.question import Question
from clearhead.serve.questions.trace import AskTrace
from clearhead.serve.traced import check_below
from clearhead.text.tokenizer import LOST, Tokenizer
from clearhead.tracing.names import names_of, sides_of
from clearhead.tracing.recording import check_stopped
from clearhead.tracing.trace import Trace
from clearhead.training.run import Run
from clearhead.training.tasks.answering import token_names

MOST_NEIGHBOURS = 50
DOUBLE = 8
OUTPUT = "output"
"""The unembedding, where it is not the same table as an embedding."""


class Neighbour(TypedDict):
    id: int
    text: str
    cosine: float
    vector: list[float]


class TableNeighbours(TypedDict):
    table: str
    length: float
    """The length of the token's own vector."""
    near: list[Neighbour]


class Neighbours(TypedDict):
    """The tokens whose vectors point most nearly the same way, in every table of the same vocabulary."""

    token: int
    text: str
    tables: list[TableNeighbours]


@dataclass(frozen=True, kw_only=True)
class AskNeighbours(Question[Neighbours]):
    """The nearest tokens by the cosine of their vectors, in this and in other tables of the same tokens."""

    table: str
    token: int
    count: int = bounded(10, least=1, below=MOST_NEIGHBOURS + 1)
    step: int | None = None

    def answer(self, explorer: "Explorer") -> Neighbours:
        run = explorer.at(self.step)
        tables = tables_of(run)
        name = Params({"table": self.table}).one_of("table", tuple(tables))
        token, tokenizer = check_below("token", self.token, len(tables[name])), tokenizer_of(run, name)
        comparable = [
            other
            for other in tables
            if tokenizer_of(run, other) is tokenizer and len(tables[other]) == len(tables[name])
        ]
        numel = max(tables[other].numel() for other in comparable)
        explorer.budget.check(Cost(memory=2 * numel * DOUBLE), "comparing this token with all", "use a smaller model")
        return {
            "token": token,
            "text": token_names(tokenizer, [token])[0],
            "tables": [
                {
                    "table": other,
                    "length": tables[other][token].double().norm().item(),
                    "near": nearest(tables[other], token, self.count, tokenizer),
                }
                for other in sorted(comparable, key=lambda other: other != name)
            ],
        }

    def python(self, explorer: "Explorer") -> list[str]:
        run = explorer.at(self.step)
        return [
            *python_lines.load_lines(run),
            "import torch",
            f"table = {table_code(run, self.table)}.detach().double()",
            f"torch.cosine_similarity(table, table[{self.token}], dim=-1).topk({self.count + 1})",
        ]


def tables_of(run: Run) -> dict[str, Tensor]:
    """Return the tables with a vector for every token, each once: one that is shared has the name of the first."""
    sides = sides_of(run.model)
    tables: dict[str, Tensor] = {}
    for side, (_, part) in sides.items():
        if not any(part.embedding.table is table for table in tables.values()):
            tables[f"{side}.embedding"] = part.embedding.table
    output = list(sides.values())[-1][1].output
    if isinstance(output, ToVocabulary) and not any(output.table is table for table in tables.values()):
        tables[OUTPUT] = output.table
    return tables


def table_code(run: Run, name: str) -> str:
    """Return a table of the run as an expression."""
    stack = -1 if name == OUTPUT else list(sides_of(run.model)).index(name.partition(".")[0])
    return f"run.model.stacks[{stack}].{name.rpartition('.')[2]}.table"


def tokenizer_of(run: Run, table: str) -> Tokenizer:
    tokenizers = [*run.task.tokenizers.values()]
    return tokenizers[0] if table == "encoder.embedding" else tokenizers[-1]


@torch.no_grad()
def nearest(table: Float[Tensor, "n d"], token: int, count: int, tokenizer: Tokenizer) -> list[Neighbour]:
    """Return the tokens with the largest cosines, without the token itself."""
    vectors = F.normalize(table.detach().double(), dim=-1)
    cosine = vectors @ vectors[token]
    cosine[token] = -2.0
    ids = cosine.sort(descending=True, stable=True).indices[: min(count, len(cosine) - 1)]  # ties by their number
    values = cosine[ids]
    names = token_names(tokenizer, ids.tolist())
    return [
        {"id": token_id, "text": name, "cosine": value, "vector": table[token_id].tolist()}
        for token_id, name, value in zip(ids.tolist(), names, values.tolist(), strict=True)
    ]


RESPONSIBLE = 5
MOST_TEXTS, LONGEST_WORD = 20, 100
SLOWER = 6
"""How many attention weights are rebuilt in the time in which a token is decoded or read in Python."""


class ContextPlace(TypedDict):
    text: str
    tokens: list[str]
    places: list[int]


class Attended(TypedDict):
    index: int
    text: str
    weight: float


class ContextAnswer(TypedDict):
    word: str
    places: list[ContextPlace]
    layers: list[str]
    cosine: list[list[list[float]]]
    path: list[list[tuple[float, float]]]
    responsible: list[list[list[Attended]]]


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """An occurrence of the word: the text, and which of its tokens it is."""

    text: str
    trace: Trace
    side: str
    places: list[int]

    def path(self) -> Float[Tensor, "layer d_model"]:
        """Return its vectors: the embedding without a position, then after each layer; of several tokens the mean."""
        names = [f"{self.side}.embedding.token", *self.layer_names()]
        return torch.stack([self.trace.value(name)[self.places].cpu().double().mean(0) for name in names])

    def layer_names(self) -> list[str]:
        """Return the name of the last value of the residual stream in each layer."""
        names = self.trace.stream
        layers = range(self.trace.sides[self.side].n_layers)
        return [[name for name in names if name.startswith(f"{self.side}.{layer}.")][-1] for layer in layers]

    def responsible(self, layer: int) -> list[Attended]:
        """Return the tokens it attends to most in a layer, in the mean of the heads."""
        site = self.trace[f"{self.side}.{layer}.attention"]
        rows = [head.rows(position, position + 1).weight[0] for head in site.head for position in self.places]
        weight = torch.stack(rows).cpu().double().mean(0)
        values, indices = weight.topk(min(RESPONSIBLE, len(weight)))
        tokens = self.trace.sides[self.side].tokens
        pairs = zip(indices.tolist(), values.tolist(), strict=True)
        return [{"index": index, "text": tokens[index], "weight": value} for index, value in pairs]

    def facts(self) -> ContextPlace:
        return {"text": self.text, "tokens": self.trace.sides[self.side].tokens, "places": self.places}


@dataclass(frozen=True, kw_only=True)
class AskContext(Question[ContextAnswer]):
    """The vectors of one word in several texts."""

    sent: ClassVar = True
    texts: list[str] = bounded(most=MOST_TEXTS, longest=100_000)
    word: str = bounded(longest=LONGEST_WORD)
    step: int | None = None

    def answer(self, explorer: "Explorer") -> ContextAnswer:
        word, run, budget = self.word.strip(), explorer.at(self.step), explorer.budget
        if not word:
            raise OptionError("there is no word to follow: write one that stands in every text")
        found, cost = [], Cost()
        target = [] if run.task.target == "writes" else None  # the text is only read: nothing is translated
        for text in self.texts:
            traced = AskTrace(source=text, target=target, step=run.step).traced(explorer)
            cost += explorer.costs.trace(traced.lengths)  # all of them are held at once
            budget.check(Cost(memory=cost.memory), "traces of these texts together", "send fewer or shorter ones")
            side = next(iter(traced.lengths))
            found += occurrences(run.tokenizer, word, text, traced.trace, side, budget=budget)
        return context_view(word, found, budget=budget)

    def python(self, explorer: "Explorer") -> list[str]:
        run = explorer.at(self.step)
        target = ", []" if run.task.target == "writes" else ""
        last = layer_ends(names_of(run.model), next(iter(explorer.costs.sides)))[-1]
        places = [(self.texts.index(place["text"]), place["places"]) for place in self.answer(explorer)["places"]]
        return [
            *python_lines.load_lines(run),
            "import torch",
            f"traces = [ch.trace(run, text{target}) for text in {self.texts!r}]",
            f"vectors = [traces[text].value({last!r})[places].mean(0) for text, places in {places}]",
            "[[torch.cosine_similarity(one, other, dim=0) for one in vectors] for other in vectors]",
        ]


def occurrences(
    tokenizer: Tokenizer, word: str, text: str, trace: Trace, side: str, *, budget: AnswerBudget
) -> list[Occurrence]:
    """Return every occurrence of the word in the text, as a word of its own; else as whole tokens of longer words."""
    n = len(trace.sides[side].ids)
    budget.check(Cost(cells=SLOWER * n * n), f"finding a word among {n:,} tokens", "send shorter texts")
    spans = token_spans(tokenizer, trace.sides[side].ids)
    decoded = tokenizer.decode(trace.sides[side].ids)
    pattern = tokenizer.decode(tokenizer.encode(word)).strip()  # as it comes back: lower-case, without accents
    if not pattern or LOST in pattern:
        raise OptionError(
            f"this run's tokenizer has no token for {word[:60]!r}, so it cannot be followed; take another"
        )
    matches = [match.span() for match in re.finditer(rf"(?<!\w){re.escape(pattern)}(?!\w)", decoded)]
    if not matches:
        starts, stops = ({span[end] for span in spans} for end in (0, 1))
        within = (match.span() for match in re.finditer(re.escape(pattern), decoded))
        matches = [(start, stop) for start, stop in within if start in starts and stop in stops]
    if not matches:
        raise OptionError(f"the word {word[:60]!r} does not stand in {text[:60]!r}; write it in every text")
    action = f"following {word[:60]!r}, which stands {len(matches):,} times in one text"
    budget.check(Cost(cells=SLOWER * n * len(matches)), action, "take a rarer word, or send a shorter text")
    every = [[i for i, (a, b) in enumerate(spans) if a < stop and start < b] for start, stop in matches]
    return [Occurrence(text=text, trace=trace, side=side, places=places) for places in every]


def token_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return where each token is in the text of them all; a special token has no length."""
    ends = []
    for i in range(len(ids) + 1):
        check_stopped()
        ends.append(len(tokenizer.decode(ids[:i])))
    return [(min(ends[i], ends[i + 1]), ends[i + 1]) for i in range(len(ids))]


def context_view(word: str, occurrences: Sequence[Occurrence], *, budget: AnswerBudget) -> ContextAnswer:
    budget.check(
        view_cost(occurrences), f"comparing {word[:60]!r} in {len(occurrences):,} places", "take fewer or shorter texts"
    )
    paths = torch.stack([occurrence.path() for occurrence in occurrences])
    unit = F.normalize(paths, dim=-1).transpose(0, 1)
    n_layers = paths.shape[1] - 1
    return {
        "word": word,
        "places": [occurrence.facts() for occurrence in occurrences],
        "layers": ["embedding", *map(str, range(n_layers))],
        "cosine": (unit @ unit.mT).tolist(),
        "path": cast(list[list[tuple[float, float]]], in_the_plane(paths).tolist()),
        "responsible": [
            [[], *(occurrence.responsible(layer) for layer in range(n_layers))] for occurrence in occurrences
        ],
    }


def view_cost(occurrences: Sequence[Occurrence]) -> Cost:
    """Return the cost of comparing every place with every other, and of a row of every head for each token."""
    cells = sum(
        costs.cells_of(occurrence.trace[name], heads=occurrence.trace[name].n_heads, rows=len(occurrence.places))
        for occurrence in occurrences
        for name in (
            f"{occurrence.side}.{layer}.attention" for layer in range(occurrence.trace.sides[occurrence.side].n_layers)
        )
    )
    layers = occurrences[0].trace.sides[occurrences[0].side].n_layers + 1
    numbers = layers * len(occurrences) * (len(occurrences) + occurrences[0].trace.sides[occurrences[0].side].d_model)
    return Cost(cells=cells, memory=numbers * JSON_NUMBER)


def in_the_plane(paths: Float[Tensor, "place layer d_model"]) -> Float[Tensor, "place layer 2"]:
    """Return the points along the two directions in which they differ most (PCA), with a fixed sign."""
    points = paths.flatten(0, 1)
    centred = points - points.mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    plane = centred @ (directions * largest.sign()).T
    return F.pad(plane, (0, 2 - plane.shape[1])).unflatten(0, paths.shape[:2])
