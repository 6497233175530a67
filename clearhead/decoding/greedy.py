"""Greedy decoding of whole batches in recorded steps: tokens are chosen on the GPU, and read from it many at a time."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decoding import greedy_gpu
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.recorded import Notes, OnDevice
from clearhead.decoding.rules import FORBIDDEN, FixedRules, Rules
from clearhead.decoding.session import Session

__all__ = ["Likeliest", "greedy_search"]


def greedy_search(session: Session, rules: Rules) -> list[list[Hypothesis]]:
    """Return the likeliest token after the likeliest, of every row, until each has ended.

    For a session that can be recorded, and rules that do not look back. Rows that have ended are computed on until half
    of them have: what they say then is not read.
    """
    log_probs = session.log_softmax.of(session.logits)
    search = Likeliest(log_probs, rules)
    _, first = search.choose(log_probs)
    session.record_search(search, first).run(rules.max_new - 1)
    return search.hypotheses()


@final
class Likeliest(OnDevice):
    """The likeliest token of every row. `sequences` says which sequence a row is; -1 if it has ended."""

    beams = 1

    def __init__(self, log_probs: Float[Tensor, "row vocabulary"], rules: Rules) -> None:
        count, device = len(log_probs), log_probs.device
        self.kind, self.end, self.rules = repr(rules), frozenset(rules.end), FixedRules(rules, device)
        self.by_kernel = greedy_gpu.serves(rules, device)
        self.length = torch.ones(1, dtype=torch.long, device=device)
        self.notes = Notes(log_probs[:, 0], torch.zeros(count, dtype=torch.long, device=device))
        self.sequences = list(range(count))
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self.log_probs: list[list[float]] = [[] for _ in range(count)]

    def restart(self) -> None:
        self.length.fill_(1)
        self.notes.at.zero_()

    def forget(self) -> None:
        count = len(self.tokens)
        self.sequences = list(range(count))
        self.tokens, self.log_probs = [[] for _ in range(count)], [[] for _ in range(count)]

    def choose(self, log_probs: Float[Tensor, "row vocabulary"]) -> tuple[None, Int[Tensor, "row 1"]]:
        return None, self.note(*self.rules.forbid(log_probs, self.length).max(-1))

    def choose_by_logits(self, logits: Float[Tensor, "row vocabulary"]) -> tuple[Tensor | None, Tensor]:
        if self.by_kernel:
            return None, self.note(*greedy_gpu.likeliest(logits))
        return super().choose_by_logits(logits)

    def note(self, value: Float[Tensor, "row"], token: Int[Tensor, "row"]) -> Int[Tensor, "row 1"]:
        self.notes.write(value, token)
        self.length += 1
        return token.unsqueeze(1)

    def read(self) -> list[int]:
        """Take over the tokens of every row up to the first that ends it; return the rows that go on."""
        log_probs, tokens = (part.T.cpu() for part in self.notes.read())
        stops = torch.isin(tokens, torch.tensor(list(self.end), dtype=torch.long)) | (log_probs == FORBIDDEN)
        lengths = torch.where(stops.any(1), stops.int().argmax(1), tokens.shape[1])
        columns = (column.tolist() for column in (lengths, log_probs, tokens))
        for row, (length, values, ids) in enumerate(zip(*columns, strict=True)):
            sequence = self.sequences[row]
            if sequence < 0:
                continue
            n_kept = length
            if length < len(ids):
                self.sequences[row] = -1
                n_kept += values[length] != FORBIDDEN  # where nothing was allowed, it ends before it
            self.tokens[sequence] += ids[:n_kept]
            self.log_probs[sequence] += values[:n_kept]
        return [row for row, sequence in enumerate(self.sequences) if sequence >= 0]

    def select(self, sentences: Int[Tensor, "stays"]) -> None:
        self.notes.select(sentences)
        self.sequences = [self.sequences[row] for row in sentences.tolist()]

    def hypotheses(self) -> list[list[Hypothesis]]:
        return [
            [
                Hypothesis(
                    tokens=tuple(ids),
                    log_probs=tuple(values),
                    score=sum(values, 0.0),
                    ended=bool(ids) and ids[-1] in self.end,
                )
            ]
            for ids, values in zip(self.tokens, self.log_probs, strict=True)
        ]
