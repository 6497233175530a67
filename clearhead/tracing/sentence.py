"""The sentence of `clearhead steps` and its head: embeddings with readable features, and maps set by hand.

Its words have the numbers of the study note, counted from 1: blue is the 3rd, cute the 4th, creature the 5th.

The head attends by content. Keys say what kind of word a token is, so different kinds have orthogonal keys; a query is
large where it should look: a noun asks for adjectives. Tokens of one kind share a key, and are attended together.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from clearhead.attention.heads import Heads
from clearhead.attention.layer import Attention
from clearhead.attention.mask_rules import Everything, Mask
from clearhead.attention.weighting import Softmax, Weighting
from clearhead.tracing.sequence_diagram import Exchange, draw_sequence, exchange_of

__all__ = [
    "FEATURES",
    "KINDS",
    "MEANINGS",
    "TOKENS",
    "creature_exchange",
    "designed_layer",
    "draw_sequence",
    "embeddings",
]

Amounts = Mapping[str, Mapping[str, float]]

KINDS = ("det", "adj", "noun", "verb")
MEANINGS = ("soft", "blue", "cute", "life")
FEATURES = (*KINDS, *MEANINGS)

EMBEDDINGS: Amounts = {
    "a": {"det": 1.0},
    "fluffy": {"adj": 1.0, "soft": 1.0},
    "blue": {"adj": 1.0, "blue": 1.0},
    "cute": {"adj": 1.0, "cute": 1.0},
    "creature": {"noun": 1.0, "life": 1.0},
}
TOKENS = tuple(EMBEDDINGS)

ASKS: Amounts = {
    "det": {"noun": 4.0},
    "adj": {"noun": 6.0},
    "noun": {"adj": 6.0, "det": 2.0, "verb": 1.0},
    "verb": {"noun": 6.0, "adj": 2.0},
}
IS: Amounts = {kind: {kind: 1.0} for kind in KINDS}
GIVES: Amounts = {meaning: {meaning: 1.0} for meaning in MEANINGS}


def embeddings() -> Tensor:
    """Return the embeddings, one row a token: `(n, d_model)`."""
    return table(EMBEDDINGS, TOKENS, FEATURES)


def designed_layer(weighting: Weighting, mask: Mask) -> Attention:
    """Return a `clearhead.Attention` of one head whose W_Q, W_K and W_V are `ASKS`, `IS` and `GIVES`, without W_O."""
    heads = Heads(1, d_head=len(KINDS), d_value=len(MEANINGS), output=False)
    layer = Attention(len(FEATURES), heads=heads, weighting=weighting, mask=mask)
    maps = {
        "query.linear.weight": table(ASKS, FEATURES, KINDS).T,
        "key.linear.weight": table(IS, FEATURES, KINDS).T,
        "value.linear.weight": table(GIVES, FEATURES, MEANINGS).T,
    }
    layer.load_state_dict(layer.state_dict() | maps)
    return layer.eval()


@torch.no_grad()
def creature_exchange(row: int, weighting: Weighting = Softmax(), mask: Mask = Everything()) -> Exchange:
    """Return what the sequence diagram of the sentence shows, following the token of one row."""
    layer = designed_layer(weighting, mask)
    return exchange_of(
        f"Attention as a sequence: {' '.join(TOKENS)}",
        f"One head set by hand: nouns ask for adjectives. Followed: {TOKENS[row]}.",
        (TOKENS, TOKENS),
        layer.explain(embeddings()).without_batch(),
        row,
        scale=float(layer.similarity.scale(len(KINDS))),
        weighting=type(weighting).__name__.lower(),
        names=(KINDS, MEANINGS),
    )


def table(amounts: Amounts, rows: Sequence[str], columns: Sequence[str]) -> Tensor:
    """Return the amounts as a matrix; what is not listed is 0."""
    return torch.tensor([[amounts.get(row, {}).get(column, 0.0) for column in columns] for row in rows])
