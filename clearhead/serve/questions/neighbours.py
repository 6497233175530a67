"""The tokens whose vectors point most nearly the same way as a token's."""

from dataclasses import dataclass
from typing import TypedDict, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clearhead.model.outputs import ToVocabulary
from clearhead.serve.budget import Cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import Params
from clearhead.serve.python_lines import load_lines
from clearhead.serve.questions.question import Question, bounded
from clearhead.serve.traced import check_below
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.names import sides_of
from clearhead.training.answers import token_names
from clearhead.training.run import Run

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


@final
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
            *load_lines(run),
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
