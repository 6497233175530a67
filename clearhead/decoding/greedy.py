"""Greedy decoding of whole batches in recorded steps: tokens are chosen on the GPU, and read from it many at a time."""

from collections.abc import Iterator
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.recorded import RecordedStep
from clearhead.decoding.rules import Rules
from clearhead.decoding.session import Session
from clearhead.decoding.topk import best

__all__ = ["choose_likeliest", "greedy_search"]

AT_ONCE = 16
"""Steps that are taken before anyone looks whether rows have ended: looking waits for the GPU."""


def greedy_search(session: Session, step: RecordedStep, count: int, rules: Rules) -> list[Hypothesis]:
    """Return the likeliest token after the likeliest, of every row, until each has ended.

    For rules that ask for nothing but the length and the end. Rows that have ended are computed on until half of them
    have: what they say then is not read.
    """
    session.recorded = step
    rows = Rows(count, rules.end, session.device)
    steps: list[tuple[Tensor, Tensor]] = []
    for n_new, chosen in enumerate(choose_tokens(session, step, rows), 1):
        steps.append(chosen)
        if len(steps) == AT_ONCE or n_new == rules.max_new:
            rows.add(*(torch.stack(part, 1) for part in zip(*steps, strict=True)))
            steps = []
        if n_new == rules.max_new or not rows.live:
            break
    return rows.hypotheses()


def choose_likeliest(
    log_probs: Float[Tensor, "row vocabulary"], tokens: Int[Tensor, "row 1"]
) -> tuple[Float[Tensor, "row"], Int[Tensor, "row"]]:
    """Return the likeliest token of every row and its log-probability, and let the next step read it."""
    value, token = log_probs.max(-1)
    tokens.copy_(token.unsqueeze(1))
    return value, token


def choose_tokens(
    session: Session, step: RecordedStep, rows: "Rows"
) -> Iterator[tuple[Float[Tensor, "row"], Int[Tensor, "row"]]]:
    """Yield the likeliest token of every row and its log-probability, one position after the other."""
    found = best(session.kept.of(session.logits))
    recorded: object = None
    while True:
        yield found[0].clone(), found[1].clone()
        if 2 * rows.live <= len(rows.sequences):
            stays = torch.tensor(rows.compact(), device=session.device)
            session.select(stays, stays)
            found = found[0][stays], found[1][stays]
        if not step.prepare(len(found[1])):
            session.caches.clock.advance(1)
            found = best(session.kept.of(step.compute(found[1].unsqueeze(1))))
            continue
        if step.replay is not recorded:
            step.tokens.copy_(found[1].unsqueeze(1))
            recorded = step.replay
        step.advance()
        assert step.found is not None
        found = step.found


@final
class Rows:
    """What the rows have written so far; `sequences` says which sequence each row is, -1 for one that has ended."""

    def __init__(self, count: int, end: tuple[int, ...], device: torch.device) -> None:
        self.end = frozenset(end)
        self.ends = torch.tensor(end, dtype=torch.long, device=device)
        self.sequences = list(range(count))
        self.live = count
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self.log_probs: list[list[float]] = [[] for _ in range(count)]

    def add(self, log_probs: Float[Tensor, "row n"], tokens: Int[Tensor, "row n"]) -> None:
        """Add the next tokens of every row, up to the first that ends it."""
        ends = torch.isin(tokens, self.ends)
        lengths = torch.where(ends.any(1), ends.int().argmax(1) + 1, tokens.shape[1])
        for row, (length, values, ids) in enumerate(
            zip(lengths.tolist(), log_probs.tolist(), tokens.tolist(), strict=True)
        ):
            sequence = self.sequences[row]
            if sequence < 0:
                continue
            self.tokens[sequence] += ids[:length]
            self.log_probs[sequence] += values[:length]
            if ids[length - 1] in self.end:
                self.sequences[row] = -1
                self.live -= 1

    def compact(self) -> list[int]:
        """Return the rows that have not ended, and hold no others from now on."""
        stays = [row for row, sequence in enumerate(self.sequences) if sequence >= 0]
        self.sequences = [self.sequences[row] for row in stays]
        return stays

    def hypotheses(self) -> list[Hypothesis]:
        return [
            Hypothesis(tokens=tuple(ids), log_probs=tuple(values), score=sum(values, 0.0), ended=ids[-1] in self.end)
            for ids, values in zip(self.tokens, self.log_probs, strict=True)
        ]
