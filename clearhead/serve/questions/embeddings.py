"""The embedding map: every token's vector in a plane (PCA)."""

from dataclasses import dataclass
from typing import TypedDict, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.model.outputs import ToVocabulary
from clearhead.serve.budget import JSON_NUMBER, AnswerBudget, Cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import Params
from clearhead.serve.questions.question import Question
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.names import sides_of
from clearhead.training.answers import token_names
from clearhead.training.run import Run

DOUBLE = 8
OUTPUT = "output"


class TableFacts(TypedDict):
    """A table with a vector for every token."""

    name: str
    """ "encoder.embedding", "decoder.embedding", or "output": the unembedding, where it is not the same table."""
    tied: bool
    """Whether the output reads the same table."""


class EmbeddingMap(TypedDict):
    """The vectors of all tokens along the two directions in which they differ most (PCA)."""

    table: str
    tables: list[TableFacts]
    d_model: int
    explained: list[float]
    """The shares of the variance along the two directions."""
    points: list[tuple[float, float]]
    tokens: list[str]


@final
@dataclass(frozen=True, kw_only=True)
class AskEmbeddings(Question[EmbeddingMap]):
    """The map of a table; the first one's where none is named."""

    table: str | None = None
    step: int | None = None

    def answer(self, explorer: "Explorer") -> EmbeddingMap:
        run = explorer.at(self.step)
        tables = tables_of(run)
        name = Params({"table": self.table}).one_of("table", tuple(tables), default=next(iter(tables)))
        return explorer.maps.get_or_make((run.step, name), lambda: make_map(run, name, tables, explorer.budget))


def make_map(run: Run, name: str, tables: dict[str, Tensor], budget: AnswerBudget) -> EmbeddingMap:
    table = tables[name]
    n, d = table.shape
    memory = 2 * n * d * DOUBLE + 3 * d * d * DOUBLE + 4 * n * JSON_NUMBER
    budget.check(Cost(memory=memory), f"a map of {n:,} tokens", "look at a run with a smaller vocabulary")
    points, explained = principal_plane(table)
    answering = list(sides_of(run.model).values())[-1][1].output
    return {
        "table": name,
        "tables": [
            {"name": table_name, "tied": table_name != OUTPUT and getattr(answering, "table", None) is value}
            for table_name, value in tables.items()
        ],
        "d_model": d,
        "explained": explained,
        # Six digits are more than a picture has pixels, and half as much to send.
        "points": [(round(x, 6), round(y, 6)) for x, y in points.tolist()],
        "tokens": token_names(tokenizer_of(run, name), range(n)),
    }


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


def tokenizer_of(run: Run, table: str) -> Tokenizer:
    tokenizers = [*run.task.tokenizers.values()]
    return tokenizers[0] if table == "encoder.embedding" else tokenizers[-1]


@torch.no_grad()
def principal_plane(table: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n 2"], list[float]]:
    """Return vectors along the two directions in which they differ most, and the share of the variance along each.

    By the eigenvectors of the covariance, in double precision. A direction's largest number is positive, so that the
    same table gives the same map.
    """
    points = table.detach().cpu().double()
    if not bool(points.isfinite().all()):
        raise OptionError("the table holds numbers that are not finite; the run has diverged. Choose an earlier step")
    centred = points - points.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    directions = vectors.flip(1)[:, :2]
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    plane = centred @ (directions * largest.sign())
    total = values.clamp(min=0).sum().item()
    explained = [max(0.0, value) / total if total else 0.0 for value in values.flip(0)[:2].tolist()]
    missing = 2 - plane.shape[1]
    return F.pad(plane, (0, missing)), [*explained, *[0.0] * missing]
