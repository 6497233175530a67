"""Spaces: the same tokens compared as embeddings, as queries with keys, and as values of one head.

An embedding knows everything about a word. A head maps it twice: into queries and keys, where words are near each other
if one should look at the other, and into values, where they are near if they say the same to the next layer.

>>> import torch
>>> from clearhead.model import presets
>>> from clearhead.tracing import trace_model
>>> trace = trace_model(presets.gpt2("tiny", vocabulary=50).build(), torch.tensor([[7, 7, 3]]))
>>> compare_spaces(trace, "decoder.0.attention", head=0).embedding.shape
torch.Size([3, 3])
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clearhead.calls import public
from clearhead.errors import OptionError
from clearhead.tracing.site import check_place
from clearhead.tracing.trace import Trace

Table = Float[Tensor, "token token"]


@final
@dataclass(frozen=True, kw_only=True)
class Spaces:
    """Tables of the tokens at `places` against each other: cosines from -1 to 1, and the head's scores.

    Attributes:
        places: Places of the tokens.
        tokens: The tokens.
        embedding: Cosines of the token embeddings, without positions.
        query_key: Cosines of the row's query and the column's key, as they meet in the head (after rotary positions).
        score: The head's scores of the same.
        value: Cosines of the values.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> trace = ch.tracing.trace_model(model, torch.tensor([[3, 1, 4]]))
    >>> ch.tracing.compare_spaces(trace, "decoder.0.attention", 0).value.shape
    torch.Size([3, 3])
    """

    places: tuple[int, ...]
    tokens: tuple[str, ...]
    embedding: Table
    query_key: Table
    score: Table
    value: Table


@torch.no_grad()
@public
def compare_spaces(trace: Trace, site: str, head: int, places: Sequence[int] | None = None) -> Spaces:
    """Return how similar tokens are in the three spaces of a head of self-attention.

    Args:
        trace: A trace with its model.
        site: Name of the attention.
        head: Number of the head.
        places: Places of the tokens to compare; all if None.

    Returns:
        The tables.

    Raises:
        OptionError: If it is not self-attention, or there is no such place.
    """
    attention = trace[site]
    if attention.slot != "attention":
        raise OptionError(
            f"{site} attends from one text to another, so its tokens have queries or values, not both; choose a "
            "self-attention"
        )
    check_place(site, "head", head, attention.n_heads)
    indices = tuple(range(attention.n_query) if places is None else places)
    if not indices or not all(isinstance(index, int) and 0 <= index < attention.n_query for index in indices):
        actual = ", ".join(map(str, indices)) or "none"
        raise OptionError(f"places: expected one or more from 0 to {attention.n_query - 1}; came {actual}")
    rows, head_values = list(indices), attention.head[head]
    embedding, value = trace.value(f"{attention.side}.embedding.token")[rows], head_values.value[rows]
    return Spaces(
        places=indices,
        tokens=tuple(trace.sides[attention.side].tokens[index] for index in rows),
        embedding=cosines(embedding, embedding),
        query_key=cosines(head_values.query[rows], head_values.key[rows]),
        score=torch.cat([head_values.rows(index, index + 1).score[:, rows] for index in rows]),
        value=cosines(value, value),
    )


def cosines(rows: Float[Tensor, "row d"], columns: Float[Tensor, "column d"]) -> Float[Tensor, "row column"]:
    return F.normalize(rows.float(), dim=-1) @ F.normalize(columns.float(), dim=-1).T
