"""Outputs: from a model's last vectors to logits, for the next token, for blanks, or for classes; and the wide part of
a classifier, whose logits are linear in the n-grams of its tokens.

A model with a deep and a wide part has the logits of both, added (Cheng et al. 2016, "Wide & Deep Learning"). On a few
thousand texts, and with many labels on more, a linear model is better than any Transformer from scratch, and both
together are better than each.
"""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.cpu_matmul import few_rows, find_matrix, is_large, multiply
from clearhead.attention.heads import linear
from clearhead.calls import CodeRepr
from clearhead.errors import OptionError
from clearhead.model.fast_step import Explained, ModuleStep
from clearhead.model.int8_matmul import Int8Matrix, can_multiply, round_to_int8
from clearhead.model.norms import LayerNorm
from clearhead.registry import kind, register
from clearhead.taps import Tapped

SHARES = "shares"
"""The buffer with how much the Transformer and the wide part count."""
ORDERS = {"token": 1, "pair": 2, "triple": 3, "letters": 1}
"""What is counted, and how many neighbouring tokens it is made of. Letters are groups of letters within a token."""


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


Vectors = Float[Tensor, "batch n d_model"]
Pool = Literal["first", "last", "mean"]


@kind("output")
class Output(CodeRepr, ABC):
    """Base class of outputs: from a model's last vectors to logits."""

    causal: ClassVar[bool] = False
    """True if it belongs to a model that never sees the next token."""
    by_position: ClassVar[bool] = False
    """True if the logits of a position follow from its own vector alone."""

    @property
    def reads_tokens(self) -> bool:
        """True if its module is called with the tokens too, as `tokens`."""
        return False

    @abstractmethod
    def build(self, d_model: int, table: nn.Parameter) -> nn.Module:
        """Return the output of a model whose embedding has this table; it is called with vectors and their lengths."""


@final
@register
@dataclass(frozen=True)
class NextToken(Output):
    """Logits of the next token at every position.

    Args:
        tied: Use the embedding's table; else the output has a table.
        bias: Add a bias to the logits.
        scaled: Divide the vectors by √d_model first, as T5 does with a tied table.
        cap: Keep the size of logits below it by cap · tanh(logit / cap), as Gemma 2 does.

    Raises:
        OptionError: If the cap is not positive.

    >>> import clearhead as ch
    >>> output = ch.model.NextToken(tied=False, cap=30.0)
    """

    causal: ClassVar[bool] = True
    by_position: ClassVar[bool] = True
    tied: bool = True
    bias: bool = False
    scaled: bool = False
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.cap is not None and not 0 < self.cap < math.inf:
            raise OptionError(f"NextToken: cap must be above 0 and finite; came {self.cap}")

    def build(self, d_model: int, table: nn.Parameter) -> "ToVocabulary":
        output = ToVocabulary(d_model, table, tied=self.tied, bias=self.bias)
        output.factor = d_model**-0.5 if self.scaled else 1.0
        output.cap = self.cap
        return output


@final
@register
@dataclass(frozen=True)
class Blanks(Output):
    """Logits of the token that belongs at every position, for masked language models.

    Args:
        tied: Use the embedding's table.
        bias: Add a bias to the logits.
        transform: Apply a map, GELU and LayerNorm first, as BERT does.
        epsilon: Epsilon of that LayerNorm.

    >>> import clearhead as ch
    >>> spec = ch.presets.bert("tiny", vocabulary=50, output=ch.model.Blanks(transform=False))
    """

    by_position: ClassVar[bool] = True
    tied: bool = True
    bias: bool = True
    transform: bool = True
    epsilon: float = 1e-12

    def build(self, d_model: int, table: nn.Parameter) -> "ToVocabulary":
        output = ToVocabulary(d_model, table, tied=self.tied, bias=self.bias)
        if self.transform:
            norm = LayerNorm(self.epsilon).build(d_model)
            output.transform = nn.Sequential(linear(d_model, d_model, bias=True), nn.GELU(), norm)
        return output


@final
@register
@dataclass(frozen=True)
class Classes(Output):
    """Logits of classes, one row per sequence.

    Args:
        count: Number of classes.
        pool: Read the `first` or the `last` vector, or the `mean` of all.
        hidden: Put a map and an activation between.
        activation: `tanh` as in BERT, or `relu` as in DistilBERT.
        ngrams: Adds the logits of a linear model on the n-grams of the tokens.

    Raises:
        OptionError: If a value is not allowed.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.bert("tiny", vocabulary=50, output=ch.model.Classes(3)).build()
    >>> model(torch.randint(50, (2, 7))).shape
    torch.Size([2, 3])
    """

    count: int
    pool: Pool = "first"
    hidden: bool = False
    activation: Literal["tanh", "relu"] = "tanh"
    ngrams: NgramLogits | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise OptionError(f"Classes: count must be 1 or more; came {self.count}")
        if self.pool not in get_args(Pool):
            raise OptionError(f"Classes: pool must be one of {', '.join(get_args(Pool))}; came {self.pool!r}")
        if self.activation not in ("tanh", "relu"):
            raise OptionError(f"Classes: activation must be tanh or relu; came {self.activation!r}")

    @property
    def reads_tokens(self) -> bool:
        return self.ngrams is not None

    def build(self, d_model: int, table: nn.Parameter) -> "ToClasses":
        output = ToClasses(self, d_model)
        output.wide = None if self.ngrams is None else self.ngrams.build(len(table), self.count)
        return output


@final
@register
@dataclass(frozen=True)
class Tags(Output):
    """Logits of tags at every position.

    Args:
        count: Number of tags.

    Raises:
        OptionError: If it is not positive.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.bert("tiny", vocabulary=50, output=ch.model.Tags(5)).build()
    >>> model(torch.randint(50, (2, 7))).shape
    torch.Size([2, 7, 5])
    """

    by_position: ClassVar[bool] = True
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise OptionError(f"Tags: count must be 1 or more; came {self.count}")

    def build(self, d_model: int, table: nn.Parameter) -> "ToTags":
        return ToTags(d_model, self.count)


class ToTags(Explained):
    """A row for every tag: how well the vector of a position fits it."""

    def __init__(self, d_model: int, count: int) -> None:
        super().__init__()
        self.out = linear(d_model, count, bias=True)

    def forward(self, x: Vectors, lengths: Tensor | None = None) -> Float[Tensor, "batch n tags"]:
        return self.tap("logits", self.out(x))

    @property
    def steps(self) -> tuple[ModuleStep, ...]:
        return (ModuleStep("logits", map="out"),)


class ToVocabulary(Explained):
    """A row of the table for every token: how well the vector fits it."""

    def __init__(self, d_model: int, table: nn.Parameter, *, tied: bool, bias: bool) -> None:
        super().__init__()
        self.table = table if tied else nn.Parameter(torch.randn_like(table) * d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(table.shape[0])) if bias else None
        self.transform: nn.Module | None = None
        self.factor = 1.0
        self.cap: float | None = None
        self.int8_digits: int | None = None
        """How the table is multiplied as int8 on a CPU (`clearhead.model.int8`); None if it is not."""
        self.deferred = False
        """True within `deferring`."""

    def extra_repr(self) -> str:
        (vocabulary, d_model), factor = self.table.shape, "" if self.factor == 1 else f", factor={self.factor:g}"
        cap = "" if self.cap is None else f", cap={self.cap:g}"
        return f"vocabulary={vocabulary}, d_model={d_model}, bias={self.bias is not None}{factor}{cap}"

    def forward(self, x: Vectors, lengths: Tensor | None = None) -> Float[Tensor, "batch n vocabulary"]:
        if self.transform is not None:
            x = self.tap("transformed", self.transform(x))
        return x if self.deferred else self.logits(x)

    def logits(self, x: Vectors) -> Float[Tensor, "batch n vocabulary"]:
        """Return the logits of vectors that are transformed already."""
        if self.cap is None:
            return self.tap("logits", self.fit(x))
        return self.tap("logits", self.cap * torch.tanh(self.tap("uncapped", self.fit(x)) / self.cap))

    @property
    def steps(self) -> tuple[ModuleStep, ...]:
        transformed = () if self.transform is None else (ModuleStep("transformed", "LayerNorm(GELU(W · x + b))"),)
        of = "transformed" if transformed else "x"
        if self.cap is None:
            return (*transformed, ModuleStep("logits", map="fit", of=of))
        capped = ModuleStep("logits", f"{self.cap:g} · tanh({{uncapped}} / {self.cap:g})")
        return (*transformed, ModuleStep("uncapped", map="fit", of=of), capped)

    def fit(self, x: Tensor) -> Tensor:
        x = x if self.factor == 1 else x * self.factor
        if self.int8_digits is not None and self.table.dtype is torch.float32 and can_multiply(x, self.table):
            return self.int8_matrix(self.int8_digits)(x.flatten(0, 1), self.bias).unflatten(0, x.shape[:2])
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not is_large(self.table):
            return multiply(x, self.table, self.bias)
        return few_rows(x.flatten(0, 1), self.table, self.bias).unflatten(0, x.shape[:2])

    def int8_matrix(self, digits: int) -> Int8Matrix:
        """Return the table for products in int8."""
        return find_matrix(self, [self.table], digits, lambda: Int8Matrix(*round_to_int8(self.table.detach()), digits))


@contextlib.contextmanager
def deferring(output: ToVocabulary) -> Iterator[None]:
    """Let a model return the vectors that its output would map to logits: `output.logits` maps a few at a time."""
    output.deferred = True
    try:
        yield
    finally:
        output.deferred = False


class ToClasses(Explained):
    """One vector of a sequence, and a row for every class."""

    def __init__(self, spec: Classes, d_model: int) -> None:
        super().__init__()
        self.pool: Pool = spec.pool
        self.activation: Literal["tanh", "relu"] = spec.activation
        self.hidden = linear(d_model, d_model, bias=True) if spec.hidden else None
        self.out = linear(d_model, spec.count, bias=True)
        self.wide: ToNgramLogits | None = None

    def extra_repr(self) -> str:
        activation = "" if self.hidden is None else f", activation={self.activation!r}"
        return f"classes={self.out.out_features}, pool={self.pool!r}{activation}"

    def forward(
        self, x: Vectors, lengths: Tensor | None = None, *, tokens: Tensor | None = None
    ) -> Float[Tensor, "batch classes"]:
        pooled = self.tap("pooled", POOLS[self.pool](x, lengths))
        if self.hidden is not None:
            activate = torch.tanh if self.activation == "tanh" else torch.relu
            pooled = self.tap("hidden", activate(self.hidden(pooled)))
        if self.wide is None or self.training:
            return self.tap("logits", self.out(pooled))
        assert tokens is not None
        deep = self.tap("deep", self.out(pooled))
        wide = self.tap("wide_logits", self.wide(tokens, lengths).to(deep.dtype))
        shares = self.wide.get_buffer("shares").to(deep.dtype)
        return self.tap("logits", deep * shares[0] + wide * shares[1])

    @property
    def steps(self) -> tuple[ModuleStep, ...]:
        pooled = {"first": "of the first token", "last": "of the last token", "mean": "the mean over the tokens"}
        hidden = () if self.hidden is None else (ModuleStep("hidden", f"{self.activation}(W · pooled + b)"),)
        first = (ModuleStep("pooled", pooled[self.pool]), *hidden)
        of = "hidden" if hidden else "pooled"
        if self.wide is None:
            return (*first, ModuleStep("logits", map="out", of=of))
        wide = ModuleStep("wide_logits", "linear in the n-grams of the tokens")
        of_deep, of_wide = self.wide.get_buffer("shares").tolist()
        last = ModuleStep("logits", f"{{deep}} · {of_deep:.4g} + {{wide_logits}} · {of_wide:.4g}")
        return (*first, ModuleStep("deep", map="out", of=of), wide, last)


def last(x: Vectors, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return x[:, -1]
    return x[torch.arange(x.shape[0], device=x.device), lengths - 1]


def mean(x: Vectors, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return x.mean(1)
    inside = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)
    return x.masked_fill(~inside.unsqueeze(-1), 0).sum(1) / lengths.unsqueeze(1)


POOLS = {"first": lambda x, lengths: x[:, 0], "last": last, "mean": mean}
