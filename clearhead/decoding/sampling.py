"""Greedy and sampling: each row chooses its next token by itself."""

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.calls import public
from clearhead.decoding.greedy import Likeliest
from clearhead.decoding.hypotheses import Candidates, Hypothesis
from clearhead.decoding.lookup import greedy_by_lookup
from clearhead.decoding.method import DecodingMethod, Running, Start
from clearhead.decoding.request import Request
from clearhead.decoding.rules import FORBIDDEN, Rules
from clearhead.decoding.topk import best
from clearhead.errors import OptionError

Logits = Float[Tensor, "row vocabulary"]
MOST_DRAFT = 64
"""Proposals in one pass, at most."""


class Chooser(DecodingMethod):
    """A method in which every row chooses by itself."""

    likeliest = False
    """Whether it takes the likeliest token, which is found for all rows of a batch at once."""

    @property
    def group(self) -> Hashable:
        """Return what jobs must have in common for their rows to be given to `choose` together."""
        return id(self)

    def start(self, start: Start) -> "RowJob":
        return RowJob(self, start)

    @abstractmethod
    def choose(self, logits: Logits, draws: Sequence[torch.Generator]) -> Int[Tensor, "row"]:
        """Return the next token of every row; log-probabilities are logits too."""


@final
@public
@dataclass(frozen=True)
class Greedy(Chooser):
    """Greedy decoding: take the most likely token each time.

    Args:
        lookup: Speculative decoding by n-gram look-up. `generate` of one input proposes up to this many tokens at once,
            the ones that followed the last two tokens before, and keeps those that greedy decoding would choose. The
            output is the same; it takes fewer passes if the text repeats itself.

    Raises:
        OptionError: If `lookup` is negative.

    >>> import clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build()
    >>> len(ch.generate(model, [5, 6], ch.Greedy(), rules=ch.Rules(max_new=4))[0].tokens)
    4
    """

    likeliest = True
    lookup: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.lookup <= MOST_DRAFT:
            raise OptionError(f"Greedy: lookup is a number of tokens, 0 to {MOST_DRAFT}; came {self.lookup}")

    def decode_one(self, request: Request, rules: Rules) -> Hypothesis | None:
        return greedy_by_lookup(request, rules, self.lookup) if self.lookup else None

    def search(self, rules: Rules, count: int, vocabulary: int, like: Tensor) -> Likeliest:
        return Likeliest(rules, count, like)

    def choose(self, logits: Logits, draws: Sequence[torch.Generator]) -> Int[Tensor, "row"]:
        return best(logits)[1]


@final
@public
@dataclass(frozen=True, kw_only=True)
class Sample(Chooser):
    """Sampling: draw each token by its probability, after the cuts below, in this order.

    The most likely token always remains. Each sequence draws from its own seed, so its tokens do not depend on the
    batch.

    Args:
        temperature: Divisor of the logits.
        top_k: Keep only this many of the most likely tokens; all if None.
        top_p: Keep the fewest tokens whose probabilities sum to this.
        min_p: Keep tokens with at least this share of the highest probability.
        seeds: A seed for each sequence; one number s stands for s, s + 1, …

    Raises:
        OptionError: If a value is out of range.

    >>> import clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build()
    >>> drawn = [ch.generate(model, [5, 6], ch.Sample(top_k=5, seeds=3), rules=ch.Rules(max_new=4)) for _ in range(2)]
    >>> drawn[0][0].tokens == drawn[1][0].tokens
    True
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seeds: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise OptionError(
                f"Sample: temperature must be above 0 and finite; came {self.temperature}. "
                "For the likeliest token each time use Greedy()"
            )
        if self.top_k is not None and self.top_k < 1:
            raise OptionError(f"Sample: top_k must be 1 or more, or None to keep all; came {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise OptionError(f"Sample: top_p is a probability above 0 and up to 1; came {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise OptionError(f"Sample: min_p is a share of the likeliest's probability, 0 to 1; came {self.min_p}")

    @property
    def group(self) -> Hashable:
        return replace(self, seeds=0)

    def draws(self, count: int) -> list[torch.Generator]:
        seeds = tuple(range(self.seeds, self.seeds + count)) if isinstance(self.seeds, int) else self.seeds
        if len(seeds) != count:
            raise OptionError(f"Sample: there are {count} sequences and {len(seeds)} seeds; give one for each")
        if not all(-(2**63) <= seed < 2**64 for seed in seeds):
            raise OptionError(f"Sample: a seed has at most 64 bits; came {max(seeds, key=abs)}")
        return [torch.Generator().manual_seed(seed) for seed in seeds]

    def for_sequences(self, indices: Sequence[int], offset: int = 0) -> "Sample":
        first = self.seeds
        seeds = (first + i if isinstance(first, int) else first[i] for i in indices)
        return replace(self, seeds=tuple(seed + offset for seed in seeds))

    def choose(self, logits: Logits, draws: Sequence[torch.Generator]) -> Int[Tensor, "row"]:
        share, tokens = self.shares(logits)
        reached = share.cumsum(-1)
        uniform = torch.tensor([torch.rand((), generator=draw).item() for draw in draws], dtype=share.dtype)
        rank = torch.searchsorted(reached, (uniform.to(share.device) * reached[:, -1]).unsqueeze(-1), right=True)
        last = (share > 0).long().mul(torch.arange(share.shape[1], device=share.device)).amax(-1, keepdim=True)
        return tokens.gather(-1, rank.minimum(last)).squeeze(-1)

    def shares(self, logits: Logits) -> tuple[Float[Tensor, "row left"], Int[Tensor, "row left"]]:
        """Return the probabilities that tokens are drawn with, the likeliest first, and the tokens; 0 where cut.

        With `top_k` there are no more than that many.
        """
        values, tokens = self.remaining(logits / self.temperature)
        return torch.softmax(values.to(torch.promote_types(values.dtype, torch.float32)), -1), tokens

    def remaining(self, logits: Logits) -> tuple[Float[Tensor, "row left"], Int[Tensor, "row left"]]:
        """Return logits and tokens, the likeliest first, -inf where top-k or top-p cut them."""
        if self.top_k is None or self.top_k >= logits.shape[-1]:
            values, tokens = logits.sort(dim=-1, descending=True, stable=True)
        else:
            values, tokens = logits.topk(self.top_k, -1)
        if self.top_p < 1:
            share = torch.softmax(values, -1)
            before = share.cumsum(-1) - share
            values = values.masked_fill(before >= self.top_p, float("-inf"))
        if self.min_p > 0:
            values = values.masked_fill(values < values[:, :1] + torch.tensor(self.min_p).log().item(), float("-inf"))
        return values, tokens


class RowJob(Running):
    """A job of one row, by greedy decoding or sampling."""

    def __init__(self, method: Chooser, start: Start) -> None:
        super().__init__(start)
        self.method, self.draws, self.group = method, start.draws, method.group
        self.tokens, self.log_probs = list[int](), list[float]()
        self.candidates: list[Candidates] = []

    def outputs(self) -> list[list[int]]:
        return [self.tokens]

    def take(self, token: int, log_prob: float, candidates: Candidates) -> bool:
        """Take the token that was chosen, and return whether there is one: not where nothing was allowed."""
        if log_prob == FORBIDDEN:
            return False
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        self.position += 1
        if candidates:
            self.candidates.append(candidates)
        if self.matcher is not None and token not in self.rules.end:
            self.matcher.take(token)
        return True

    @property
    def done(self) -> bool:
        if len(self.tokens) == self.rules.max_new or self.tokens[-1] in self.rules.end:
            return True
        return self.matcher is not None and self.matcher.is_stopped

    def hypotheses(self) -> list[Hypothesis]:
        found = Hypothesis.of(self.tokens, self.log_probs, self.rules.end, self.candidates)
        return [replace(found, ended=True) if self.matcher is not None and self.matcher.is_complete else found]
