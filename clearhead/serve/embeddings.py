"""The embedding map: every token's vector in a plane (PCA), and the nearest neighbours of one."""

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.lru_cache import LRUCache
from clearhead.model.outputs import ToVocabulary
from clearhead.serve.budget import JSON_NUMBER, Budget, Cost
from clearhead.serve.params import Params
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.names import sides_of
from clearhead.training.answers import token_names
from clearhead.training.run import Run

DOUBLE = 8
KEPT = 4
"""The number of maps in the cache."""
MOST_NEIGHBOURS = 50
OUTPUT = "output"


@final
class Tables:
    """The tables of a run's tokens, by name; maps of them are kept once they are made."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.maps = LRUCache[tuple[int, str], dict[str, Any]](most=KEPT)

    def map(self, run: Run, params: Params) -> dict[str, Any]:
        tables = tables_of(run)
        name = params.one_of("table", tuple(tables)) if params.values.get("table") is not None else next(iter(tables))
        return self.maps.get_or_make((run.step, name), lambda: self.make_map(run, name, tables))

    def make_map(self, run: Run, name: str, tables: dict[str, Tensor]) -> dict[str, Any]:
        table = tables[name]
        n, d = table.shape
        memory = 2 * n * d * DOUBLE + 3 * d * d * DOUBLE + 4 * n * JSON_NUMBER
        self.budget.check(Cost(memory=memory), f"a map of {n:,} tokens", "look at a run with a smaller vocabulary")
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
            "points": [[round(x, 6), round(y, 6)] for x, y in points.tolist()],
            "tokens": token_names(tokenizer_of(run, name), range(n)),
        }

    def neighbours(self, run: Run, params: Params) -> dict[str, Any]:
        """Return the nearest tokens by the cosine of their vectors, in this and in other tables of the same tokens."""
        tables = tables_of(run)
        name = params.one_of("table", tuple(tables))
        token = params.integer("token", below=len(tables[name]))
        count = params.integer("count", least=1, below=MOST_NEIGHBOURS + 1, default=10)
        tokenizer = tokenizer_of(run, name)
        comparable = [
            other
            for other in tables
            if tokenizer_of(run, other) is tokenizer and len(tables[other]) == len(tables[name])
        ]
        numel = max(tables[other].numel() for other in comparable)
        self.budget.check(Cost(memory=2 * numel * DOUBLE), "comparing this token with all", "use a smaller model")
        return {
            "token": token,
            "text": token_names(tokenizer, [token])[0],
            "tables": [
                {
                    "table": other,
                    "length": tables[other][token].double().norm().item(),
                    "near": nearest(tables[other], token, count, tokenizer),
                }
                for other in sorted(comparable, key=lambda other: other != name)
            ],
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


@torch.no_grad()
def nearest(table: Float[Tensor, "n d"], token: int, count: int, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the tokens with the largest cosines, without the token itself."""
    vectors = F.normalize(table.detach().double(), dim=-1)
    cosine = vectors @ vectors[token]
    cosine[token] = -2.0
    values, ids = cosine.topk(min(count, len(cosine) - 1))
    names = token_names(tokenizer, ids.tolist())
    return [
        {"id": token_id, "text": name, "cosine": value}
        for token_id, name, value in zip(ids.tolist(), names, values.tolist(), strict=True)
    ]
