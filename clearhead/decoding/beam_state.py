"""The state of a beam search in tensors: which beams live, which outputs have finished, and how each was reached.

A step asks the device for nothing, so that on a GPU it is recorded together with the model's step and replayed
(`clearhead.decoding.recorded`). `clearhead.decoding.beam_gpu` computes the same as one kernel.
"""

from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.decoding.rules import FORBIDDEN, Rules
from clearhead.decoding.topk import top
from clearhead.devices import widest_float

Stop = Literal["exact", "heuristic", "early"]
Length = Int[Tensor, "1"]
"""Tokens of an output: in a tensor, so that a recorded step counts them."""
ROOT_NODE = 0
"""The node that every output begins from."""


@runtime_checkable
class BeamSettings(Protocol):
    """What a search asks of `Beam`, whose docstring says what each of them means."""

    @property
    def width(self) -> int: ...

    @property
    def n_best(self) -> int: ...

    @property
    def length_penalty(self) -> float: ...

    @property
    def stop(self) -> Stop: ...

    def norms(self, longest: int) -> list[float]: ...


class Step(NamedTuple):
    """One step of every sentence: its best continuations, the best first, and what goes on.

    `parents` are the nodes that were continued; `origins` and `chosen` the beam and the token of each that goes on.
    """

    totals: Float[Tensor, "sentence keep"]
    tokens: Int[Tensor, "sentence keep"]
    parents: Int[Tensor, "sentence keep"]
    origins: Int[Tensor, "sentence width"]
    chosen: Int[Tensor, "sentence width"]


class BeamState:
    """Live beams and finished outputs of every sentence.

    Every continuation that is found is a node: the one of rank r at length n has the number 1 + (n - 1) * `keep` + r.
    A live beam has its log-probability so far (`totals`; -inf for a dead beam) and its node. Of finished outputs the
    `width` best are kept, best first, each with its score (-inf if there are fewer) and its node. `done` marks
    sentences whose outputs can no longer change: their beams are dead.
    """

    def __init__(self, count: int, method: BeamSettings, rules: Rules, vocabulary: int, device: torch.device) -> None:
        self.method, self.rules = method, rules
        # Enough continuations that `width` go on, however many end.
        self.keep = max(2, 1 + len(rules.end)) * method.width
        shape, wide = (count, method.width), widest_float(device)
        self.totals = torch.full(shape, FORBIDDEN, dtype=wide, device=device)
        self.totals[:, 0] = 0
        self.nodes = torch.full(shape, ROOT_NODE, device=device)
        self.scores = torch.full_like(self.totals, FORBIDDEN)
        self.finished = self.nodes.clone()
        self.done = torch.zeros(count, dtype=torch.bool, device=device)
        self.norms = torch.tensor(method.norms(rules.max_new), dtype=wide, device=device)
        self.ranks = torch.arange(self.keep, device=device)
        self.is_end = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        if rules.end:
            self.is_end[torch.tensor(rules.end, device=device)] = True

    def tensors(self) -> tuple[Tensor, ...]:
        """Return what a step changes, all of it in place: one row a sentence."""
        return self.totals, self.nodes, self.scores, self.finished, self.done

    def restart(self) -> None:
        """Begin again in the same memory, by work that can be recorded: one beam lives, and nothing has finished."""
        self.totals.fill_(FORBIDDEN)
        self.totals[:, 0].fill_(0)
        self.scores.fill_(FORBIDDEN)
        for node_ids in (self.nodes, self.finished):
            node_ids.fill_(ROOT_NODE)
        self.done.fill_(False)

    def select(self, sentences: Int[Tensor, "stays"]) -> None:
        """Keep these sentences."""
        self.totals, self.nodes, self.scores, self.finished, self.done = (
            tensor[sentences] for tensor in self.tensors()
        )

    def advance(self, log_probs: Float[Tensor, "row vocabulary"], length: Length) -> Step:
        """Add one token to every beam, up to this length: keep the best beams, finish those that end.

        Rows are sentences times beams: one beam each at first, then all of them. Only the `width` best continuations
        may finish; the others are there in case all of those do.
        """
        width = self.method.width
        totals, beams, tokens = self.find_best(log_probs)
        parents = self.nodes.gather(1, beams)
        allowed = totals != FORBIDDEN
        goes = allowed & ~self.is_end.take(tokens) if self.rules.end else allowed
        last = length == self.rules.max_new
        numbers = self.ranks + ((length - 1) * self.keep + 1)
        # Ranks that go on come first, and each part in its own order: no two keys are equal.
        live = (goes * (2 * self.keep) - self.ranks).topk(width, -1).indices
        going = totals.masked_fill(~goes, FORBIDDEN).gather(1, live)
        self.finish(totals[:, :width], numbers[:width], (allowed & (~goes | last))[:, :width], length)
        if not self.rules.forbids_nothing:
            self.stop_short(allowed, length)
        self.done |= self.is_decided(going[:, 0], length) | last
        self.totals.copy_(going.masked_fill(self.done.unsqueeze(1), FORBIDDEN))
        self.nodes.copy_(numbers[live])
        return Step(totals, tokens, parents, beams.gather(1, live), tokens.gather(1, live))

    def find_best(self, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best continuations of every sentence: log-probability, beam and token, `(sentence, keep)`."""
        values, tokens = top(log_probs, self.keep)
        count, per_beam = len(self.totals), values.shape[1]
        before = self.totals[:, : len(values) // count]
        totals = (values.view(count, -1, per_beam) + before.unsqueeze(-1)).flatten(1)
        best, index = totals.topk(min(self.keep, totals.shape[1]), -1)
        chosen = tokens.view(count, -1).gather(1, index)
        missing = self.keep - best.shape[1]
        if missing:  # a vocabulary of a few tokens
            best, index, chosen = (
                F.pad(best, (0, missing), value=FORBIDDEN),
                *(F.pad(tensor, (0, missing)) for tensor in (index, chosen)),
            )
        return best, index // per_beam, chosen

    def finish(
        self,
        totals: Float[Tensor, "sentence width"],
        nodes: Int[Tensor, "#sentence width"] | Int[Tensor, "width"],
        finishing: Tensor,
        length: Length,
    ) -> None:
        """Add finished outputs of this length, and keep the best; of equally good ones the earlier comes first."""
        width = self.method.width
        scores = torch.cat([self.scores, (totals / self.norms[length]).masked_fill(~finishing, FORBIDDEN)], 1)
        every = torch.cat([self.finished, nodes.expand(len(totals), -1)], 1)
        best, order = scores.sort(dim=1, descending=True, stable=True)
        self.scores.copy_(best[:, :width])
        self.finished.copy_(every.gather(1, order[:, :width]))

    def stop_short(self, allowed: Tensor, length: Length) -> None:
        """Finish the beams as they are where the rules allow no token and nothing has finished."""
        stuck = ~allowed.any(1, keepdim=True) & (self.scores[:, :1] == FORBIDDEN)
        self.finish(self.totals, self.nodes, stuck & (self.totals != FORBIDDEN), length - 1)

    def is_decided(self, best: Float[Tensor, "sentence"], length: Length) -> Tensor:
        """Check for each sentence whether no live beam can change its outputs; `best` is the best beam's total.

        While fewer than `width` outputs have finished the worst score is -inf, which only a dead beam does not beat.
        """
        worst = self.scores[:, -1]
        if self.method.stop == "early":
            return (worst != FORBIDDEN) | (best == FORBIDDEN)
        exact = self.method.stop == "exact" and self.method.length_penalty > 0
        return best / self.norms[self.rules.max_new if exact else length] <= worst
