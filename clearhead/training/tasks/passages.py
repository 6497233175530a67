"""Passages: a text as the jobs that decode its output, the same for a run in Python, a command and the server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from clearhead.decoding.rules import Rules
from clearhead.decoding.scheduler import Job
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks.framing import Framing


@final
@dataclass(frozen=True, kw_only=True)
class WritingOptions:
    """What is asked of an output. `rules` None: the task's own; otherwise it adds what ends its texts and what is
    never in them. `framing` None: the usual one of the task's texts.
    """

    rules: Rules | None = None
    candidates: int = 0
    framing: Framing | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Passage:
    """A text to decode. `before`: ids of the text that the output continues.

    An output longer than the model's context is several jobs, one after another: `following` is asked with the tokens
    so far for the next one, and returns None where there is none.
    """

    first: Job
    following: Callable[[Sequence[int]], Job | None]
    tokenizer: Tokenizer
    before: Sequence[int]
    unread: int = 0
    """Tokens that the model does not read, since there are too many."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.first.inputs)

    def row(self, tokens: Sequence[int]) -> list[int]:
        """Return the decoder's ids with an output's tokens, without the token that ends it."""
        begun = self.first.inputs if self.first.prefix is None else self.first.prefix
        return [*begun, *(token for token in tokens if token not in self.first.rules.end)]
