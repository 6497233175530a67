"""Beam search on a GPU: beams are chosen there, and read from it many steps at a time."""

import functools
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.decoding import beam_gpu
from clearhead.decoding.beam_state import BeamState
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.on_device import Notes, OnDevice
from clearhead.decoding.rules import FORBIDDEN, FixedRules


class History:
    """Every node of a search, with its parent, and the outputs of sentences that have left it.

    `sentences` are those that the search still holds, None for all.
    """

    def __init__(self, state: BeamState) -> None:
        self.keep = state.keep
        self.sentences: Int[Tensor, "sentence"] | None = None
        self.parts: list[tuple[Int[Tensor, "sentence"] | None, tuple[Tensor, ...]]] = []
        self.scores, self.finished = state.scores.clone(), state.finished.clone()

    def add(self, *part: Float[Tensor, "step sentence keep"] | Int[Tensor, "step sentence keep"]) -> None:
        """Add what some steps found: log-probability, token and parent of every node."""
        self.parts.append((self.sentences, part))

    def hold(self, state: BeamState) -> None:
        """Take over the finished outputs of the sentences in the search, before some leave it or it ends."""
        sentences = slice(None) if self.sentences is None else self.sentences
        self.scores[sentences], self.finished[sentences] = state.scores, state.finished

    def leave(self, stays: Int[Tensor, "stays"]) -> None:
        """Keep these sentences in the search; the others have left it."""
        self.sentences = stays if self.sentences is None else self.sentences[stays]

    def hypotheses(self, n_best: int, end: Sequence[int]) -> list[list[Hypothesis]]:
        """Return the best finished outputs of every sentence, the best first."""
        totals, tokens, parents = (self.join(index) for index in range(3))
        last = self.finished[:, :n_best].cpu()
        lengths = (last + (self.keep - 1)) // self.keep
        path = [last]
        for _ in range(int(lengths.max())):
            path.append(parents.gather(1, path[-1]))
        nodes = torch.stack(path, 2)  # (sentence, output, step), from the last token back to the root
        ids = tokens.gather(1, nodes.flatten(1)).view_as(nodes)
        sums = totals.gather(1, nodes.flatten(1)).view_as(nodes)
        log_probs = sums[..., :-1] - sums[..., 1:]
        columns = (column.tolist() for column in (ids, log_probs, lengths, self.scores[:, :n_best]))
        return [
            [
                Hypothesis(
                    tokens=tuple(row_ids[:length][::-1]),
                    log_probs=tuple(values[:length][::-1]),
                    score=score,
                    ended=bool(length) and row_ids[0] in end,
                )
                for row_ids, values, length, score in zip(*rows, strict=True)
                if score != FORBIDDEN
            ]
            for rows in zip(*columns, strict=True)
        ]

    def join(self, index: int) -> Tensor:
        """Return one of the parts for every node, `(sentence, node)`; 0 for the root and after a sentence has left."""
        count = len(self.scores)
        every = []
        for sentences, part in self.parts:
            values = part[index]
            if sentences is not None:
                values = values.new_zeros(len(values), count, self.keep).index_copy_(1, sentences, values)
            every.append(values)
        return F.pad(torch.cat(every).transpose(0, 1).flatten(1), (1, 0)).cpu()


class BeamOnDevice(OnDevice):
    """Beams that are chosen on the device. Sentences that are done stay, as dead beams, until half of all are done."""

    def __init__(self, state: BeamState) -> None:
        self.state, self.history, device = state, History(state), state.totals.device
        self.beams, self.kind = state.method.width, repr((state.method, state.rules))
        self.rules, self.by_triton = FixedRules(state.rules, device), beam_gpu.serves(state)
        self.length = torch.ones(1, dtype=torch.long, device=device)
        note = state.totals.new_zeros(len(state.totals), state.keep)
        self.notes = Notes(note, note.long(), note.long())

    def restart(self) -> None:
        self.state.restart()
        self.length.fill_(1)
        self.notes.at.zero_()

    def forget(self) -> None:
        self.history = History(self.state)

    def hypotheses(self) -> list[list[Hypothesis]]:
        self.history.hold(self.state)
        return self.history.hypotheses(self.state.method.n_best, self.state.rules.end)

    def choose(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        advance = functools.partial(beam_gpu.advance, self.state) if self.by_triton else self.state.advance
        step = advance(self.rules.forbid(log_probs, self.length), self.length)
        self.notes.write(step.totals, step.tokens, step.parents)
        self.length += 1
        return step.origins, step.chosen

    def read(self) -> list[int]:
        self.history.add(*self.notes.read())
        return (self.state.totals != FORBIDDEN).any(1).nonzero().flatten().tolist()

    def select(self, sentences: Int[Tensor, "stays"]) -> None:
        self.history.hold(self.state)
        self.history.leave(sentences)
        self.state.select(sentences)
        self.notes.select(sentences)
