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

from clearhead.code_repr import CodeRepr
from clearhead.errors import OptionError
from clearhead.taps import Tapped

ORDERS = {"token": 1, "pair": 2, "triple": 3, "letters": 1}
"""What is counted, and how many neighbouring tokens it is made of. Letters are groups of letters within a token."""


@final
@dataclass(frozen=True)
class NgramLogits(CodeRepr):
    """Spec of a wide part. Pairs and triples of tokens are hashed to `buckets` rows each.

    The Transformer's logits are multiplied by `transformer_scale` before the two are added: below 1 on little text,
    where a Transformer from scratch is surer than it should be. The tables of the wide part are fitted before training
    and not changed by it. In training the Transformer is alone: texts that the linear part knows by heart would teach
    it nothing.
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
    row: the sum is divided by the root of the summed squares. So tf-idf vectors of length 1, one for each kind, are
    multiplied by weights. What occurs c times in a text counts as 1 + log c. A token's letters are always the same, so
    its row has the sum of their weights.
    """

    def __init__(self, spec: NgramLogits, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.buckets, self.transformer_scale = spec.buckets, spec.transformer_scale
        for name, order in ORDERS.items():  # buffers: no optimiser, average or frozen layer is to know of them
            rows = spec.buckets if order > 1 else vocabulary
            self.register_buffer(f"table_{name}", torch.zeros(rows, classes))
            self.register_buffer(f"square_{name}", torch.zeros(rows))
        self.register_buffer("bias", torch.zeros(classes))

    def extra_repr(self) -> str:
        classes = len(self.get_buffer("bias"))
        return f"classes={classes}, buckets={self.buckets}, transformer_scale={self.transformer_scale:g}"

    def forward(self, tokens: Int[Tensor, "batch n"], lengths: Tensor | None) -> Float[Tensor, "batch classes"]:
        """Return the logits of each row; only the first `lengths[b]` tokens of row b count."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        inside = torch.ones_like(tokens, dtype=torch.bool) if lengths is None else positions < lengths.unsqueeze(1)
        logits = self.get_buffer("bias")
        for name, order in ORDERS.items():
            keys = tokens if order == 1 else hash_ngrams(tokens, order, self.buckets)
            logits = logits + self.tap(name, self.score(name, keys, inside & (positions >= order - 1)))
        return self.tap("logits", logits)

    def score(self, name: str, keys: Int[Tensor, "batch n"], inside: Bool[Tensor, "batch n"]) -> Tensor:
        """Return what one kind of n-gram adds to the logits; zeros for a text that has none."""
        table, square = self.get_buffer(f"table_{name}"), self.get_buffer(f"square_{name}")
        count = ((keys.unsqueeze(2) == keys.unsqueeze(1)) & inside.unsqueeze(1)).sum(2).clamp(min=1).to(table.dtype)
        once = ((1 + count.log()) / count).masked_fill(~inside, 0)
        summed = (F.embedding(keys, table) * once.unsqueeze(-1)).sum(1)
        squared = (square[keys] * once * (1 + count.log())).sum(1)
        return summed * squared.clamp(min=1e-12).rsqrt().unsqueeze(-1)


def hash_ngrams(tokens: Int[Tensor, "batch n"], order: int, buckets: int) -> Int[Tensor, "batch n"]:
    """Return for each token the row of the n-gram that ends with it; the first `order - 1` of a text have none.

    Ids below 2³¹ cannot overflow 64 bits here.
    """
    key = torch.zeros_like(tokens)
    for back in range(order - 1, -1, -1):
        before = F.pad(tokens, (back, 0))[:, : tokens.shape[1]]
        key = (key * 1_000_003 + before + 1) % 2_147_483_647
    return key % buckets
