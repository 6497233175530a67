"""Schedulers: jobs come and go while others are decoded, a token at a time. What a server runs.

A scheduler is driven by one thread: `add` jobs, call `step` while `busy`, and read the events it returns.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from clearhead.decoding.hypotheses import Candidates, Hypothesis
from clearhead.decoding.method import DecodingMethod
from clearhead.decoding.rules import Rules
from clearhead.decoding.sampling import Greedy


@dataclass(frozen=True, kw_only=True)
class Job:
    """One sequence to decode: `inputs` of the encoder, or a decoder's prompt. A beam is one job of several rows.

    `begun` are the tokens of an output that earlier jobs have begun, and this one goes on with. `adapter` is the number
    of a model's shared adapter (`clearhead.model.lora`), 0 for none.
    """

    inputs: tuple[int, ...]
    rules: Rules
    method: DecodingMethod = Greedy()
    prefix: tuple[int, ...] | None = None
    candidates: int = 0
    begun: tuple[int, ...] = ()
    adapter: int = 0

    @property
    def rows(self) -> int:
        """Return how many sequences of a batch it takes: those of a beam, else one."""
        return self.method.rows


class Chosen(NamedTuple):
    """A token that a job has chosen. Beams have none: they may change their mind until the end."""

    ticket: int
    token: int
    log_prob: float
    candidates: Candidates = ()


class Finished(NamedTuple):
    """The hypotheses of a job, the best first, as `generate` would return them; the last event of its ticket."""

    ticket: int
    hypotheses: list[Hypothesis]


Event = Chosen | Finished


class Scheduler(ABC):
    """Decodes jobs that come and go."""

    @abstractmethod
    def add(self, job: Job) -> int:
        """Take a job and return its ticket. Raise OptionError for a job that cannot be done."""

    @abstractmethod
    def cancel(self, ticket: int) -> None:
        """Drop a job, wherever it is; no event of it comes any more. A ticket that is done is ignored."""

    @abstractmethod
    def step(self) -> list[Event]:
        """Compute the next token of every running job, and return the events."""

    @property
    @abstractmethod
    def running(self) -> int:
        """Return how many jobs are being decoded."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Return how many jobs wait for a place."""

    @property
    def busy(self) -> bool:
        return self.running + self.waiting > 0
