"""The wide part of a classifier: logits that are linear in the n-grams of its tokens, beside the Transformer's.

A model with a deep and a wide part has the logits of both, added (Cheng et al. 2016, "Wide & Deep Learning"). On a few
hundred texts a linear model is better than any Transformer from scratch, and both together are better than each.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.taps import Tapped

__all__ = ["NgramLogits", "ToNgramLogits", "hash_pairs"]

KINDS = ("token", "pair", "letters")
"""What is counted: tokens, pairs of neighbouring tokens, groups of letters within tokens."""
MOST_WEIGHTS = 1 << 22
"""The most weights that a table of pairs has: with many classes it has fewer rows."""


@final
@dataclass(frozen=True, kw_only=True)
class NgramLogits:
    """Spec of a wide part. Pairs of tokens are hashed to `buckets` rows.

    In training, each text is without the wide logits with probability `dropout`, so that the Transformer learns to
    classify alone too. The tables are fitted before training and are not trained by gradients.
    """

    buckets: int = 1 << 16
    dropout: float = 0.5

    def __post_init__(self) -> None:
        if self.buckets < 1:
            raise OptionError(f"NgramLogits: buckets must be 1 or more; came {self.buckets}")
        if not 0 <= self.dropout <= 1:
            raise OptionError(f"NgramLogits: dropout must be from 0 to 1; came {self.dropout}")

    def build(self, vocabulary: int, classes: int) -> "ToNgramLogits":
        return ToNgramLogits(self, vocabulary, classes)


@final
class ToNgramLogits(Tapped):
    """The built wide part; all zero until it is fitted.

    For each kind of n-gram there is a table `(rows, classes)`, whose rows are summed over a text, and a vector `square`
    of `(rows,)`: the sum is divided by the root of the summed squares. So tf-idf vectors of length 1, one for each
    kind, are multiplied by weights. A token's letters are always the same, so their weights are summed in its row.
    """

    def __init__(self, spec: NgramLogits, vocabulary: int, classes: int) -> None:
        super().__init__()
        buckets = max(1, min(spec.buckets, MOST_WEIGHTS // max(classes, 1)))
        rows = {"token": vocabulary, "pair": buckets, "letters": vocabulary}
        self.dropout = spec.dropout
        self.buckets = buckets
        self.table = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(rows[name], classes), requires_grad=False) for name in KINDS}
        )
        self.square = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(rows[name]), requires_grad=False) for name in KINDS}
        )
        self.bias = nn.Parameter(torch.zeros(classes), requires_grad=False)

    def forward(self, tokens: Int[Tensor, "batch n"], lengths: Tensor | None) -> Float[Tensor, "batch classes"]:
        inside = torch.ones_like(tokens, dtype=torch.bool)
        if lengths is not None:
            inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1)
        pairs = hash_pairs(tokens[:, :-1], tokens[:, 1:], self.buckets)
        logits = (
            self.bias
            + self.tap("token", self.score("token", tokens, inside))
            + self.tap("pair", self.score("pair", pairs, inside[:, 1:]))
            + self.tap("letters", self.score("letters", tokens, inside))
        )
        if self.training and self.dropout:
            kept = torch.rand(len(tokens), 1, device=tokens.device) >= self.dropout
            logits = torch.where(kept, logits, 0)
        return self.tap("logits", logits)

    def score(self, name: str, ids: Int[Tensor, "batch n"], inside: Bool[Tensor, "batch n"]) -> Tensor:
        """Return what one kind of n-gram adds to the logits; zeros for a text that has none."""
        summed = F.embedding(ids, self.table[name]).masked_fill(~inside.unsqueeze(-1), 0).sum(1)
        squared = self.square[name][ids].masked_fill(~inside, 0).sum(1)
        return summed * squared.clamp(min=1e-12).rsqrt().unsqueeze(-1)


def hash_pairs(first: Tensor, second: Tensor, buckets: int) -> Tensor:
    """Return the row of each pair of tokens. Ids below 2³¹ cannot overflow 64 bits here."""
    return (first * 1_000_003 + second * 7_919) % 2_147_483_647 % buckets
