"""What a method of decoding says about itself, so that nobody has to ask which one it is.

A method is `Greedy`, `Sample`, `Beam` or your own. It says how many rows of a batch one sequence takes, how many
outputs it gives, whether its tokens are final once they are chosen, and what chooses them while a job runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from clearhead.calls import CodeRepr
from clearhead.decoding.grammar import Matcher
from clearhead.decoding.hypotheses import Considered, Hypothesis
from clearhead.decoding.on_device import OnDevice
from clearhead.decoding.request import Request
from clearhead.decoding.rules import Rules
from clearhead.errors import OptionError

Watcher = Callable[[Considered], None]
"""Called with every step of a beam search; it changes nothing."""


class Start(NamedTuple):
    """What a job begins with: the tokens to go on from, the slots it has, and what it must keep to."""

    ticket: int
    prompt: Sequence[int]
    slots: list[int]
    rules: Rules
    candidates: int = 0
    n_source: int = 0
    draws: Sequence[torch.Generator] = ()
    watcher: Watcher | None = None
    begun: Sequence[int] = ()
    matcher: Matcher | None = None


class Running(ABC):
    """A job in its slots. `position` is that of the token which is computed next."""

    def __init__(self, start: Start) -> None:
        self.ticket, self.slots, self.rules, self.n_source = start.ticket, start.slots, start.rules, start.n_source
        self.candidates_wanted, self.position = start.candidates, len(start.prompt) - 1
        self.prompt, self.begun, self.matcher = start.prompt, start.begun, start.matcher

    @property
    def rows(self) -> list[int]:
        """Return the slots whose tokens are computed."""
        return self.slots

    @abstractmethod
    def outputs(self) -> list[list[int]]:
        """Return the new tokens of each row."""

    @property
    def n_new(self) -> int:
        return self.position + 1 - len(self.prompt)

    def change(self, logits: Tensor) -> Tensor:
        """Return the logits of its rows after penalties and bias."""
        outputs = self.outputs()
        so_far, written = ([[*before, *new] for new in outputs] for before in (self.prompt, self.begun))
        return self.rules.change(logits, so_far, written)

    def forbidden(self) -> list[list[int]]:
        """Return the tokens that may not come next, for each row."""
        if not self.rules.no_repeat:
            return [self.rules.forbidden(self.n_new, ())] * len(self.rows)
        return [self.rules.forbidden(self.n_new, [*self.prompt, *new]) for new in self.outputs()]

    @property
    @abstractmethod
    def done(self) -> bool:
        """Return whether its outputs are decided."""

    @abstractmethod
    def hypotheses(self) -> list[Hypothesis]:
        """Return its outputs, the best first."""


Own = TypeVar("Own", bound="DecodingMethod")
"""The method's own class."""


class DecodingMethod(CodeRepr, ABC):
    """A way to choose tokens. A method of your own in which every row chooses by itself derives from `Chooser`."""

    streams = True
    """Whether a token is final once it is chosen."""
    n_best: int = 1
    """Hypotheses that it gives at most."""

    @property
    def rows(self) -> int:
        """Return how many rows of a batch a sequence takes."""
        return 1

    def check(self, rules: Rules) -> None:
        """Raise OptionError for rules that it cannot keep to."""

    def draws(self, count: int) -> list[torch.Generator]:
        """Return a random number generator for each sequence; an empty list for a method that draws nothing."""
        return []

    def for_sequences(self: Own, indices: Sequence[int], offset: int = 0) -> Own:
        """Return the method for these of its sequences alone. `offset` is added to their seeds, if there are any."""
        return self

    def decode_one(self, request: Request, rules: Rules) -> Hypothesis | None:
        """Return the output of one input by a way of its own, which gives the same; None: by the steps of a batch."""
        return None

    @abstractmethod
    def start(self, start: Start) -> Running:
        """Return a job that chooses by this method."""

    def search(self, rules: Rules, count: int, vocabulary: int, like: Tensor) -> OnDevice | None:
        """Return what chooses on a GPU for this many sentences, with numbers like these; None: the host must choose.

        It is asked only for rules that do not look back.
        """
        return None


def check_method(method: object) -> None:
    if not isinstance(method, DecodingMethod):
        raise OptionError(f"method: expected Greedy(), Sample() or Beam(), made and not the class; came {method!r}")
