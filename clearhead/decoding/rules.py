"""Rules: how long an output may be, what ends it, and which tokens may not come next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.calls import CodeRepr, public
from clearhead.decoding.grammar import Grammar
from clearhead.errors import OptionError

Logits = Float[Tensor, "row vocabulary"]
FORBIDDEN = float("-inf")
"""The log-probability of what may not come next; a token is chosen with it only where nothing may."""
USUAL_NEW = 64
"""How many tokens are written where nobody says how many."""


@final
@public
@dataclass(frozen=True, kw_only=True)
class Rules(CodeRepr):
    """Constraints on an output, whichever method chooses its tokens.

    The two penalties and `logit_bias` are defined as in OpenAI's API.

    Args:
        max_new: Most new tokens, the end token included.
        min_new: Fewest new tokens, the end token included.
        end: Tokens that end the output.
        no_repeat: n forbids that any n tokens in a row occur twice, prompt included; 0 turns it off.
        repetition_penalty: Above 1 makes tokens that occurred before less likely: a positive logit is divided by it, a
            negative one multiplied.
        never: Tokens that may not occur.
        presence_penalty: Subtracted from the logit of every token that the output already has.
        frequency_penalty: Subtracted from a token's logit once for each time the output has it.
        logit_bias: Pairs of a token and a number to add to its logit.
        grammar: What the text must be. The output ends when nothing can follow, or with an end token.

    Raises:
        OptionError: If a value is out of range.

    >>> import clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build()
    >>> [best] = ch.generate(model, [5, 6], rules=ch.Rules(max_new=4, never=(7,)))
    >>> 7 in best.tokens
    False
    """

    max_new: int
    min_new: int = 0
    end: tuple[int, ...] = ()
    no_repeat: int = 0
    repetition_penalty: float = 1.0
    never: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if self.max_new < 1:
            raise OptionError(f"max_new: at least one token must be asked for; came {self.max_new}")
        if not 0 <= self.min_new <= self.max_new:
            raise OptionError(f"min_new must lie between 0 and max_new = {self.max_new}; came {self.min_new}")
        if not isinstance(self.end, tuple | list) or not all(map(is_id, self.end)):
            raise OptionError(f"end: expected the token ids that end an output, such as (2,); came {self.end!r}")
        if not isinstance(self.never, tuple | list) or not all(map(is_id, self.never)):
            raise OptionError(f"never: expected the token ids that may not come, such as (0,); came {self.never!r}")
        if self.no_repeat < 0:
            raise OptionError(f"no_repeat is a number of tokens in a row, 0 for no such rule; came {self.no_repeat}")
        if not self.repetition_penalty > 0:
            raise OptionError(f"repetition_penalty must be above 0, 1 changes nothing; came {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(getattr(self, name)) < float("inf"):
                raise OptionError(f"{name} must be a number, 0 changes nothing; came {getattr(self, name)}")
        if not isinstance(self.logit_bias, tuple | list) or not all(map(is_bias, self.logit_bias)):
            raise OptionError(
                "logit_bias: expected pairs of a token id and a number to add to its logit, such as ((7, -5.0),); "
                f"came {self.logit_bias!r:.80}"
            )

    @property
    def look_back(self) -> bool:
        """True if the rules depend on the tokens so far."""
        return self.no_repeat > 0 or self.repetition_penalty != 1 or self.counts_tokens

    @property
    def counts_tokens(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def changes_logits(self) -> bool:
        """True if `change` changes anything, so that log-probabilities are not the model's own."""
        return self.repetition_penalty != 1 or self.counts_tokens or bool(self.logit_bias)

    @property
    def need_host(self) -> bool:
        """True if a search that stays on a GPU cannot keep to them."""
        return self.look_back or self.changes_logits or self.grammar is not None

    @property
    def forbids_nothing(self) -> bool:
        """True if any token may come at any time, so that logits are used as they are."""
        return not (self.need_host or self.min_new > 1 or self.never)

    def change(self, logits: Logits, so_far: Sequence[Sequence[int]], written: Sequence[Sequence[int]]) -> Logits:
        """Return the logits after penalties and bias: `so_far` has the tokens of each row, `written` its output's."""
        if not self.changes_logits:
            return logits
        logits = logits.clone()
        if self.repetition_penalty != 1:
            for row, tokens in enumerate(so_far):
                token_ids = torch.tensor(sorted(set(tokens)), device=logits.device)
                values = logits[row, token_ids]
                logits[row, token_ids] = torch.where(
                    values > 0, values / self.repetition_penalty, values * self.repetition_penalty
                )
        for row, tokens in enumerate(written if self.counts_tokens else ()):
            new = torch.tensor(tokens, dtype=torch.long, device=logits.device)
            token_ids, counts = new.unique(return_counts=True)
            logits[row, token_ids] -= self.presence_penalty + self.frequency_penalty * counts.to(logits.dtype)
        if self.logit_bias:
            token_ids = torch.tensor([token for token, _ in self.logit_bias], device=logits.device)
            added = torch.tensor([number for _, number in self.logit_bias], dtype=logits.dtype, device=logits.device)
            logits.index_add_(1, token_ids, added.expand(len(logits), -1))
        return logits

    def forbidden(self, n_new: int, so_far: Sequence[int]) -> list[int]:
        """Return the tokens that may not come next, after `so_far`, of which `n_new` are new."""
        early = self.end if n_new + 1 < self.min_new else ()
        again = followers(so_far, self.no_repeat) if self.no_repeat else ()
        return [*self.never, *early, *again]


class FixedRules:
    """Rules that do not look back, with their ids on a device: nothing is sent there when they are asked."""

    def __init__(self, rules: Rules, device: torch.device) -> None:
        assert not rules.need_host
        self.never = torch.tensor(rules.never, dtype=torch.long, device=device) if rules.never else None
        self.end = torch.tensor(rules.end, dtype=torch.long, device=device) if rules.end else None
        early = [FORBIDDEN if length < rules.min_new else 0.0 for length in range(rules.min_new + 1)]
        self.too_short = torch.tensor(early, device=device) if rules.min_new > 1 else None

    def forbid(self, log_probs: Logits, length: Int[Tensor, "1"]) -> Logits:
        """Write -inf at tokens that may not be number `length` of an output, and return the log-probabilities."""
        if self.end is not None and self.too_short is not None:
            added = self.too_short[length.clamp(max=len(self.too_short) - 1)].to(log_probs.dtype)
            log_probs.index_add_(1, self.end, added.expand(len(log_probs), len(self.end)))
        return log_probs if self.never is None else log_probs.index_fill_(1, self.never, FORBIDDEN)


def is_bias(pair: object) -> bool:
    """Check for a token id and a finite number."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return False
    token, added = pair
    return is_id(token) and isinstance(added, int | float) and abs(added) < float("inf")


def is_id(token: object) -> bool:
    """Check for a whole number."""
    return isinstance(token, int) and not isinstance(token, bool)


def followers(tokens: Sequence[int], n: int) -> set[int]:
    """Return the tokens that would repeat an n-gram."""
    start = tuple(tokens[len(tokens) - n + 1 :])
    runs = range(len(tokens) - n + 1)
    return {tokens[first + n - 1] for first in runs if tuple(tokens[first : first + n - 1]) == start}
