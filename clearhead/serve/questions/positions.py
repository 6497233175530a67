"""Positions as vectors: the table of each kind of encoding, and the similarity of two places by their distance."""

from dataclasses import dataclass
from typing import TypedDict

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.layer import Attention
from clearhead.attention.positions import ALiBi, Learned, NoPosition, Rotary, Sinusoidal
from clearhead.attention.positions.biases import LearnedT5Bias
from clearhead.attention.positions.embedded import LearnedTable
from clearhead.attention.score_index import ScoreIndex
from clearhead.serve.budget import FLOAT, JSON_NUMBER, Cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import bounded
from clearhead.serve.program import load_program
from clearhead.serve.python_lines import load_lines
from clearhead.serve.questions.question import Question
from clearhead.tracing.names import sides_of
from clearhead.training.run import Run

Table = Float[Tensor, "n d"]


class PositionKind(TypedDict):
    name: str
    title: str
    sentence: str
    """What the kind is."""
    note: str
    """What this run has of it."""
    used: bool
    """Whether this run has it."""
    trained: bool
    table: list[list[float]] | None
    similarity: list[float]


class PositionsMessage(TypedDict):
    used: str
    kinds: list[PositionKind]
    bias: list[list[float]] | None
    """What the position adds to the scores of each head of the first layer, from the furthest key before it on."""


@dataclass(frozen=True, kw_only=True)
class AskPositions(Question[PositionsMessage]):
    """The first `n` positions of each kind."""

    n: int = bounded(64, least=2, below=1025)
    step: int | None = None

    def answer(self, explorer: "Explorer") -> PositionsMessage:
        n, width = self.n, max(part.spec.d_model for part in explorer.costs.sides.values())
        cost = Cost(memory=3 * n * (width * JSON_NUMBER + n * FLOAT))
        explorer.budget.check(cost, f"{n} positions", "ask for fewer")
        return positions(explorer.at(self.step), n)

    def python(self, explorer: "Explorer") -> list[str]:
        run = explorer.at(self.step)
        width = next(iter(sides_of(run.model).values()))[1].spec.d_model
        return [*load_lines(run), f"ch.positions.Sinusoidal().embed({max(2, width - width % 2)}).double()({self.n})"]


def positions(run: Run, n: int) -> PositionsMessage:
    """Return the three kinds side by side, with the run's own numbers for what it has."""
    part = next(iter(sides_of(run.model).values()))[1]
    added, inside = part.spec.embedding.position, part.stack.blocks[0].attention
    turning = inside.position if isinstance(inside.position, Rotary) else None
    table = part.embedding.position if isinstance(added, Learned) else None
    kinds = [
        sinusoidal(added if isinstance(added, Sinusoidal) else None, part.spec.d_model, n),
        compiled(table, n, run.step) if table is not None and load_program(run) else learned(table, n),
        rotary(turning, inside.shape.d_head, n),
    ]
    used = [kind["name"] for kind in kinds if kind["used"]]
    if not inside.position.turns and not isinstance(inside.position, NoPosition):
        used.append(inside.position.called)
    return {"used": " and ".join(used) or "none", "kinds": kinds, "bias": bias_by_distance(inside, n)}


def bias_by_distance(layer: Attention, n: int) -> list[list[float]] | None:
    """Return what ALiBi or T5 adds to the scores of each head, for keys from n - 1 tokens before the query on.

    Where the mask is causal the query itself is the last key, else there are as many keys after it.
    """
    if not isinstance(layer.position, ALiBi | LearnedT5Bias):
        return None
    device = next(layer.parameters()).device
    keys = torch.arange(n if "causal" in layer.mask.kinds else 2 * n - 1, device=device)[None]
    query = torch.full((1, 1), n - 1, device=device)
    cells = ScoreIndex(
        batch=torch.zeros_like(query),
        head=torch.arange(layer.shape.n_heads, device=device)[:, None],
        query_index=query,
        key_index=keys,
        query=query,
        key=keys,
        n_heads=layer.shape.n_heads,
    )
    with torch.no_grad():
        bias = layer.position.bias(cells, torch.float32)
    return bias.expand(layer.shape.n_heads, keys.shape[1]).double().tolist()


def sinusoidal(run_position: Sinusoidal | None, d_model: int, n: int) -> PositionKind:
    width = max(2, d_model - d_model % 2)
    table = (run_position or Sinusoidal()).embed(width).double()(n)
    sentence = (
        "Every position has its own pattern of sines and cosines, added to the embedding. Fast waves tell neighbours "
        "apart, slow ones near from far."
    )
    note = "Computed, not learned. " + (
        "This run adds it to its embeddings." if run_position else "This run does without it."
    )
    return kind("sinusoidal", table, by_distance(table), sentence=sentence, note=note, used=run_position is not None)


def learned(run_table: nn.Module | None, n: int) -> PositionKind:
    sentence = (
        "Every position has a vector of its own, learned like a word’s. Past the longest text of training there is "
        "none."
    )
    if run_table is None:
        note = "This run has learned no positions, so there is no table to show: train one whose embedding has Learned."
        return kind("learned", None, [], sentence=sentence, note=note)
    table, cut = table_of(run_table, n)
    note = f"The vectors this run has learned, one for each position.{cut}"
    return kind("learned", table, by_distance(table), sentence=sentence, note=note, used=True, trained=True)


def compiled(run_table: nn.Module, n: int, steps: int) -> PositionKind:
    """Return the table that the compiler of a program wrote."""
    table, cut = table_of(run_table, n)
    sentence = (
        "Every position has a vector that the compiler wrote: a direction of the residual stream stands for each "
        "position, and nothing was learned. Past the longest text the program was compiled for there is none."
    )
    after = f"Written by the compiler, then trained for {steps:,} steps." if steps else "Written by the compiler."
    note = f"{after}{cut}"
    return kind("compiled", table, by_distance(table), sentence=sentence, note=note, used=True, trained=steps > 0)


def table_of(module: nn.Module, n: int) -> tuple[Table, str]:
    """Return the first n vectors of a table of positions, and a sentence where it has fewer."""
    table = module.table
    assert isinstance(table, Tensor)
    table = table[module.first :] if isinstance(module, LearnedTable) else table
    return table[:n].detach().cpu().double(), f" It has {len(table)} positions." if len(table) < n else ""


def rotary(run_position: Rotary | None, d_head: int, n: int) -> PositionKind:
    """Return rotary positions: the similarity is the mean cosine of the angles between two places."""
    part = run_position or Rotary()
    width = max(2, d_head - d_head % 2) if part.width is None else part.width
    cos, sin = (wave[0] for wave in part.angles(torch.arange(n), width))
    first, second = zip(*part.pairs(width), strict=True)
    table = cos.new_empty(n, width)
    table[:, first], table[:, second] = cos, sin
    alike = cos.mean(-1)
    sentence = (
        "Nothing is added: query and key are turned, pair by pair, the further the later they stand. Their dot product "
        "then knows only how far apart they are."
    )
    note = "This run turns its queries and keys by it." if run_position else "This run does without it."
    return kind("rotary", table, alike.tolist(), sentence=sentence, note=note, used=run_position is not None)


def by_distance(table: Table) -> list[float]:
    """Return the mean cosine of two places, for each distance.

    A vector of zeros has no direction, so its pairs are left out: a compiled table has none for its first position.
    """
    unit = F.normalize(table, dim=-1)
    there = (table != 0).any(-1)
    cosine, counted = unit @ unit.T, (there[:, None] & there[None]).double()
    pairs = [counted.diagonal(distance).sum().item() for distance in range(len(table))]
    return [cosine.diagonal(distance).sum().item() / max(1, count) for distance, count in enumerate(pairs)]


def kind(
    name: str,
    table: Table | None,
    similarity: list[float],
    *,
    sentence: str,
    note: str,
    used: bool = False,
    trained: bool = False,
) -> PositionKind:
    return {
        "name": name,
        "title": name.capitalize(),
        "sentence": sentence,
        "note": note,
        "trained": trained,
        "used": used,
        "table": None if table is None else table.tolist(),
        "similarity": similarity,
    }
