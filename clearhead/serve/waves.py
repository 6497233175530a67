"""Positions as vectors: the table of each kind of encoding, and how alike two places are by their distance."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.positions import EmbeddedPosition, Learned, NoPosition, Rotary, Sinusoidal
from clearhead.serve.facts import part_name
from clearhead.tracing.names import sides_of

__all__ = ["positions"]

Table = Float[Tensor, "n d"]


def positions(model: nn.Module, n: int) -> dict[str, Any]:
    """The three kinds side by side, with the run's own numbers for what it has."""
    part = next(iter(sides_of(model).values()))[1]
    added, inside = part.spec.embedding.position, part.stack.blocks[0].attention
    turning = inside.position if isinstance(inside.position, Rotary) else None
    return {
        "used": used(added, inside.position),
        "kinds": [
            sinusoidal(added if isinstance(added, Sinusoidal) else None, part.spec.d_model, n),
            learned(part.embedding.position if isinstance(added, Learned) else None, n),
            rotary(turning, inside.shape.d_head, n),
        ],
    }


def used(added: EmbeddedPosition | None, inside: object) -> str:
    names = [part_name(one).lower() for one in (added, inside) if one is not None and not isinstance(one, NoPosition)]
    return " and ".join(names) or "none"


def sinusoidal(own: Sinusoidal | None, d_model: int, n: int) -> dict[str, Any]:
    width = d_model - d_model % 2
    table = (own or Sinusoidal()).embed(width).double()(n)
    note = "Computed, not learned. " + ("This run adds it to its embeddings." if own else "This run does without it.")
    return kind("sinusoidal", table, by_distance(table), note, used=own is not None)


def learned(own: nn.Module | None, n: int) -> dict[str, Any]:
    if own is None:
        note = "This run has learned no positions, so there is no table to show: train one whose embedding has Learned."
        return kind("learned", None, [], note)
    whole = own.table
    assert isinstance(whole, Tensor)
    table = whole[:n].detach().double().cpu()
    note = "The vectors this run has learned, one for each position."
    cut = f" It has {len(whole)} of them." if len(whole) < n else ""
    return kind("learned", table, by_distance(table), note + cut, used=True, trained=True)


def rotary(own: Rotary | None, d_head: int, n: int) -> dict[str, Any]:
    """What a query and a key of ones come to, turned: the mean cosine of the angles between the two places."""
    part = own or Rotary()
    width = d_head - d_head % 2 if part.width is None else part.width
    cos, sin = (one[0] for one in part.angles(torch.arange(n), width))
    table = torch.stack([cos, sin], -1).flatten(1)
    alike = cos.mean(-1)
    says = "This run turns its queries and keys by it." if own else "This run does without it."
    note = f"Nothing is added: pairs of numbers are turned, each by its own angle. {says}"
    return kind("rotary", table, alike.tolist(), note, used=own is not None)


def by_distance(table: Table) -> list[float]:
    """The mean cosine of two places so far apart."""
    unit = F.normalize(table, dim=-1)
    cosine = unit @ unit.T
    return [cosine.diagonal(distance).mean().item() for distance in range(len(table))]


def kind(
    name: str, table: Table | None, similarity: list[float], note: str, *, used: bool = False, trained: bool = False
) -> dict[str, Any]:
    return {
        "name": name,
        "trained": trained,
        "used": used,
        "table": None if table is None else table.tolist(),
        "similarity": similarity,
        "note": note,
    }
