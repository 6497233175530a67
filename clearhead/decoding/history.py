"""What a beam search has found, step by step, and outputs read back from it."""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.decoding.beam_state import BeamState
from clearhead.decoding.hypotheses import Candidates, Hypothesis

Part = tuple[Tensor, Tensor, Tensor]
"""Of some steps: log-probability, token and parent of every node, each `(step, sentence, keep)`."""


@final
class History:
    """Every node of a search, with its parent, and the outputs of sentences that have left it.

    `sentences` are those that the search still holds, None for all. `shown` has the likeliest tokens after a node, by
    sentence and node, if the caller asked for them.
    """

    def __init__(self, state: BeamState) -> None:
        self.keep = state.keep
        self.sentences: Int[Tensor, "sentence"] | None = None
        self.parts: list[tuple[Int[Tensor, "sentence"] | None, Part]] = []
        self.scores, self.finished = state.scores.clone(), state.finished.clone()
        self.shown: dict[tuple[int, int], Candidates] = {}

    def add(self, *part: Float[Tensor, "step sentence keep"] | Int[Tensor, "step sentence keep"]) -> None:
        """Add what some steps found: log-probabilities, tokens and parents."""
        totals, tokens, parents = part
        self.parts.append((self.sentences, (totals, tokens, parents)))

    def hold(self, state: BeamState) -> None:
        """Take over the finished outputs of the sentences in the search, before some leave it or it ends."""
        sentences = slice(None) if self.sentences is None else self.sentences
        self.scores[sentences], self.finished[sentences] = state.scores, state.finished

    def leave(self, stays: Int[Tensor, "stays"]) -> None:
        """Keep these sentences in the search; the others have left it."""
        self.sentences = stays if self.sentences is None else self.sentences[stays]

    def show(self, nodes: Int[Tensor, "sentence beam"], candidates: Sequence[Candidates]) -> None:
        """Note the likeliest tokens after each beam's node."""
        sentences = range(len(nodes)) if self.sentences is None else self.sentences.tolist()
        keys = [(sentence, node) for sentence, row in zip(sentences, nodes.tolist(), strict=True) for node in row]
        self.shown.update(zip(keys, candidates, strict=True))

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
        columns = ids, log_probs, nodes, lengths, self.scores[:, :n_best]
        hypotheses: list[list[Hypothesis]] = []
        for sentence, rows in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            hypotheses.append([])
            for row_ids, values, row_nodes, length, score in zip(*rows, strict=True):
                if score == float("-inf"):
                    continue
                before = row_nodes[length:0:-1]  # the nodes that were continued, from the root on
                likeliest = (self.shown.get((sentence, node), ()) for node in before) if self.shown else ()
                hypotheses[-1].append(
                    Hypothesis(
                        tokens=tuple(row_ids[:length][::-1]),
                        log_probs=tuple(values[:length][::-1]),
                        score=score,
                        ended=bool(length) and row_ids[0] in end,
                        candidates=tuple(candidates for candidates in likeliest if candidates),
                    )
                )
        return hypotheses

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
