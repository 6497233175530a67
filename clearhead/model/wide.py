"""The wide part of a classifier: logits that are linear in the n-grams of its tokens, beside the Transformer's.

A model with a deep and a wide part has the logits of both, added (Cheng et al. 2016, "Wide & Deep Learning"). On a few
hundred texts a linear model is better than any Transformer from scratch, and both together are better than each.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.taps import Tapped

__all__ = ["NgramLogits", "ToNgramLogits", "hash_pairs"]

KINDS = ("token", "pair", "letters")
"""What is counted: tokens, pairs of neighbouring tokens, groups of letters within tokens."""


@final
@dataclass(frozen=True)
class NgramLogits:
    """Spec of a wide part. Pairs of tokens are hashed to `buckets` rows.

    The Transformer's logits are multiplied by `transformer_scale` before the two are added: below 1 on little text,
    where a Transformer from scratch is surer than it should be. The tables of the wide part are fitted before training and not changed by it. In training the Transformer is alone: texts that the
    linear part knows by heart would teach it nothing.
    """

    buckets: int = 1 << 16
    transformer_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.buckets < 1:
            raise OptionError(f"NgramLogits: buckets must be 1 or more; came {self.buckets}")
        if not (self.transformer_scale >= 0 and math.isfinite(self.transformer_scale)):
            raise OptionError(f"NgramLogits: transformer_scale must be 0 or more; came {self.transformer_scale}")

    def build(self, vocabulary: int, classes: int) -> "ToNgramLogits":
        return ToNgramLogits(self, vocabulary, classes)


@final
class ToNgramLogits(Tapped):
    """The built wide part; all zero until it is fitted.

    For each kind of n-gram there is a table `(rows, classes)`, whose rows are summed over a text, and a square for each
    row: the sum is divided by the root of the summed squares. So tf-idf vectors of length 1, one for each kind, are multiplied by
    weights. A token's letters are always the same, so their weights are summed in its row.
    """

    def __init__(self, spec: NgramLogits, vocabulary: int, classes: int) -> None:
        super().__init__()
        rows = {"token": vocabulary, "pair": spec.buckets, "letters": vocabulary}
        self.buckets, self.transformer_scale = spec.buckets, spec.transformer_scale
        for name in KINDS:  # buffers: no optimiser, average or frozen layer is to know of them
            self.register_buffer(f"table_{name}", torch.zeros(rows[name], classes))
            self.register_buffer(f"square_{name}", torch.zeros(rows[name]))
        self.register_buffer("bias", torch.zeros(classes))

    def forward(self, tokens: Int[Tensor, "batch n"], lengths: Tensor | None) -> Float[Tensor, "batch classes"]:
        """Return the logits of each row; of row b the first `lengths[b]` tokens count."""
        inside = torch.ones_like(tokens, dtype=torch.bool)
        if lengths is not None:
            inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1)
        pairs = hash_pairs(tokens[:, :-1], tokens[:, 1:], self.buckets)
        logits = (
            self.get_buffer("bias")
            + self.tap("token", self.score("token", tokens, inside))
            + self.tap("pair", self.score("pair", pairs, inside[:, 1:]))
            + self.tap("letters", self.score("letters", tokens, inside))
        )
        return self.tap("logits", logits)

    def score(self, name: str, ids: Int[Tensor, "batch n"], inside: Bool[Tensor, "batch n"]) -> Tensor:
        """Return what one kind of n-gram adds to the logits; zeros for a text that has none."""
        summed = F.embedding(ids, self.get_buffer(f"table_{name}")).masked_fill(~inside.unsqueeze(-1), 0).sum(1)
        squared = self.get_buffer(f"square_{name}")[ids].masked_fill(~inside, 0).sum(1)
        return summed * squared.clamp(min=1e-12).rsqrt().unsqueeze(-1)


def hash_pairs(first: Tensor, second: Tensor, buckets: int) -> Tensor:
    """Return the row of each pair of tokens. Ids below 2³¹ cannot overflow 64 bits here."""
    return (first * 1_000_003 + second * 7_919) % 2_147_483_647 % buckets
