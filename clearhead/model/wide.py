"""The wide part of a classifier: logits that are linear in the n-grams of its tokens, beside the Transformer's.

A model with a deep and a wide part has the logits of both, added (Cheng et al. 2016, "Wide & Deep Learning"). On a few
thousand texts, and with many labels on more, a linear model is better than any Transformer from scratch, and both
together are better than each.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.code_repr import CodeRepr
from clearhead.errors import OptionError
from clearhead.taps import Tapped

SHARES = "shares"
"""The buffer with how much the Transformer and the wide part count."""
ORDERS = {"token": 1, "pair": 2, "triple": 3, "letters": 1}
"""What is counted, and how many neighbouring tokens it is made of. Letters are groups of letters within a token."""


@final
@dataclass(frozen=True)
class NgramLogits(CodeRepr):
    """Spec of a wide part: how many different `pairs` and `triples` of tokens it has weights for.

    N-grams are hashed to one of `buckets` numbers, each of which leads to a row of weights or to none. These sizes are
    found when the linear model is fitted to the text, before training; steps do not change it. In training the
    Transformer is alone: texts that the linear part knows by heart would teach it nothing.
    """

    pairs: int = 0
    triples: int = 0
    buckets: int = 1

    def __post_init__(self) -> None:
        for name, least in (("pairs", 0), ("triples", 0), ("buckets", 1)):
            if getattr(self, name) < least:
                raise OptionError(f"NgramLogits: {name} must be {least} or more; came {getattr(self, name)}")

    def build(self, vocabulary: int, classes: int) -> "ToNgramLogits":
        return ToNgramLogits(self, vocabulary, classes)


@final
class ToNgramLogits(Tapped):
    """The built wide part; all zero until it is fitted.

    For each kind of n-gram there is a table `(rows, classes)`, whose rows are summed over a text, and a square for each
    row: the sum is divided by the root of the summed squares. So tf-idf vectors of length 1, one for each kind, are
    multiplied by weights. What occurs c times in a text counts as 1 + log c. A token's letters are always the same, so
    its row has the sum of their weights. Of pairs and triples `slots` says which row a bucket has; row 0 is that of
    n-grams without weights, which count in the length alone.

    `shares` is what the logits of the Transformer and those of the n-grams are multiplied by before they are added.
    """

    def __init__(self, spec: NgramLogits, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.buckets = spec.buckets
        rows = {"token": vocabulary, "pair": spec.pairs + 1, "triple": spec.triples + 1, "letters": vocabulary}
        for name, order in ORDERS.items():  # buffers: no optimiser, average or frozen layer is to know of them
            if order > 1:
                self.register_buffer(f"slots_{name}", torch.zeros(spec.buckets, dtype=torch.int32))
            self.register_buffer(f"table_{name}", torch.zeros(rows[name], classes))
            self.register_buffer(f"square_{name}", torch.zeros(rows[name]))
        self.register_buffer("bias", torch.zeros(classes))
        self.register_buffer("shares", torch.ones(2))

    def weights(self) -> dict[str, Tensor]:
        """Return the tensors that count as parameters, by name, though they are fitted and not trained."""
        return {name: buffer for name, buffer in self.named_buffers() if buffer.is_floating_point()}

    def extra_repr(self) -> str:
        pairs, triples = (len(self.get_buffer(f"table_{name}")) - 1 for name in ("pair", "triple"))
        return f"classes={len(self.get_buffer('bias'))}, pairs={pairs}, triples={triples}, buckets={self.buckets}"

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
        rows = keys if ORDERS[name] == 1 else self.get_buffer(f"slots_{name}")[keys].long()
        summed = (F.embedding(rows, table) * once.unsqueeze(-1)).sum(1)
        squared = (square[rows] * once * (1 + count.log())).sum(1)
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
