"""Metrics: what of the logits is measured, one number for each text. Higher means: more as in the clean run.

Logits are `(variant, batch, …)`; a metric gives `(variant, batch)`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.calls import public
from clearhead.circuits.forward import Activations

Measured = Float[Tensor, "variant batch"]


class Metric(ABC):
    """Base class: what is measured of logits.

    >>> from clearhead.circuits import LogitDifference, Metric
    >>> issubclass(LogitDifference, Metric)
    True
    """

    @abstractmethod
    def __call__(self, logits: Float[Tensor, "variant batch ..."]) -> Measured:
        """Return one number for each variant and text."""

    def measure(self, run: Activations) -> Measured:
        """Return the same of a pass; a metric that reads few places may ask it for these alone."""
        return self(run.logits)

    @abstractmethod
    def rows(self, rows: slice) -> "Metric":
        """Return the metric of some of the texts."""


@final
@public
@dataclass(frozen=True, eq=False, kw_only=True)
class LogitDifference(Metric):
    """The logit of the clean answer minus the logit of the other answer, at one place of each text.

    Args:
        answer: Number of the clean answer, for each text.
        other: Number of the other answer.
        place: Token whose logits count; None if a text has one row of logits, as in classification.

    >>> import torch
    >>> from clearhead.circuits import LogitDifference
    >>> metric = LogitDifference(answer=torch.tensor([5]), other=torch.tensor([6]), place=torch.tensor([2]))
    """

    answer: Int[Tensor, "batch"]
    other: Int[Tensor, "batch"]
    place: Int[Tensor, "batch"] | None = None

    def __call__(self, logits: Float[Tensor, "variant batch ..."]) -> Measured:
        row = torch.arange(logits.shape[1], device=logits.device)
        return self.difference(logits if self.place is None else logits[:, row, self.place])

    def measure(self, run: Activations) -> Measured:
        return self.difference(run.logits if self.place is None else run.logits_at(self.place))

    def difference(self, at_place: Float[Tensor, "variant batch choice"]) -> Measured:
        row = torch.arange(at_place.shape[1], device=at_place.device)
        return at_place[:, row, self.answer] - at_place[:, row, self.other]

    def rows(self, rows: slice) -> "LogitDifference":
        place = None if self.place is None else self.place[rows]
        return LogitDifference(answer=self.answer[rows], other=self.other[rows], place=place)


@final
@public
@dataclass(frozen=True, eq=False)
class Divergence(Metric):
    """Minus the KL divergence from the clean run's probabilities, summed over places: 0 in the clean run.

    Its gradient in the clean run is 0, so methods that take one gradient there say nothing with it.

    Args:
        clean: Logits of the clean run.

    >>> import torch
    >>> from clearhead.circuits import Divergence
    >>> metric = Divergence(torch.zeros(1, 3, 20))
    """

    clean: Float[Tensor, "batch ..."]

    def __call__(self, logits: Float[Tensor, "variant batch ..."]) -> Measured:
        log_probability = torch.log_softmax(logits, -1)
        target = torch.log_softmax(self.clean, -1)
        return (target.exp() * (log_probability - target)).flatten(2).sum(-1)

    def rows(self, rows: slice) -> "Divergence":
        return Divergence(self.clean[rows])


@final
@public
@dataclass(frozen=True, eq=False, kw_only=True)
class AnswerLogProbability(Metric):
    """The log-probability of the answers that the clean run gives, summed over places; for compiled programs.

    The answers are `columns` of the logits. One more column stands for no answer.

    Attributes:
        columns: Columns of the logits.
        nothing: Logit of no answer.

    >>> import torch
    >>> from clearhead.circuits import AnswerLogProbability
    >>> metric = AnswerLogProbability(columns=torch.tensor([0, 1]), answers=torch.tensor([[1, 0]]))
    """

    columns: Int[Tensor, "answer"]
    answers: Int[Tensor, "batch n"]
    """The number of the answer at each place; as many as there are columns for none."""
    first: int = 0
    """The first place that has an answer."""
    nothing: float = 0.5

    def __call__(self, logits: Float[Tensor, "variant batch n vocabulary"]) -> Measured:
        n = self.answers.shape[1]
        chosen = logits[:, :, self.first : self.first + n][..., self.columns]
        padded = torch.cat([chosen, torch.full_like(chosen[..., :1], self.nothing)], -1)
        answers = self.answers.expand(len(logits), -1, -1).unsqueeze(-1)
        return torch.log_softmax(padded, -1).gather(-1, answers).squeeze(-1).sum(-1)

    def rows(self, rows: slice) -> "AnswerLogProbability":
        return AnswerLogProbability(
            columns=self.columns, answers=self.answers[rows], first=self.first, nothing=self.nothing
        )


@final
@public
@dataclass(frozen=True, eq=False, kw_only=True)
class Number(Metric):
    """The numbers that a compiled program answers with, each times a sign, summed over places.

    Args:
        column: Column of the logits that has the number.
        signs: Signs of the differences between the clean run and the other, so that the metric falls towards the other.
        first: First place that has an answer.

    >>> import torch
    >>> from clearhead.circuits import Number
    >>> metric = Number(column=0, signs=torch.ones(1, 3))
    """

    column: int
    signs: Float[Tensor, "batch n"]
    first: int = 0

    def __call__(self, logits: Float[Tensor, "variant batch n vocabulary"]) -> Measured:
        n = self.signs.shape[1]
        return (logits[:, :, self.first : self.first + n, self.column] * self.signs).sum(-1)

    def rows(self, rows: slice) -> "Number":
        return Number(column=self.column, signs=self.signs[rows], first=self.first)
