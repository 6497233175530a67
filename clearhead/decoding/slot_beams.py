"""Beam searches in the slots of a running batch, whatever their settings, and wherever each of them stands.

Only the best few continuations of every beam leave the device, in one answer for all jobs; what goes on and what has
finished is then decided in Python. `BeamState` decides the same in tensors, for all sentences of a batch in step with
each other: here a few sentences begin and end at any time, and its 25 small operations would take longer than the rest
of a step of a small model (docs/decisions/0019-continuous-batching.md has the figures).
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from clearhead.decoding.beam_state import Beam
from clearhead.decoding.hypotheses import ROOT, Candidates, Hypothesis, Node
from clearhead.decoding.rules import FORBIDDEN
from clearhead.decoding.scheduler import Job
from clearhead.decoding.slots import SlotSession
from clearhead.decoding.topk import LogSoftmax, top, top_candidates

Moves = list[tuple[int, int]]
"""Slots that are copied, and where to."""


@final
class SlotBeam:
    """A beam search in as many slots as its width: beam b, of those that live, is in `slots[b]`."""

    def __init__(self, ticket: int, job: Job, prompt: Sequence[int], slots: list[int]) -> None:
        assert isinstance(job.method, Beam)
        self.ticket, self.job, self.slots, self.method = ticket, job, slots, job.method
        self.prompt, self.position, self.length = list(prompt), len(prompt) - 1, 0
        self.keep = max(2, 1 + len(job.rules.end)) * self.method.width
        self.norms = self.method.norms(job.rules.max_new)
        self.forbids_always_the_same = not (job.rules.look_back or job.rules.min_new > 1 or job.candidates)
        self.beams: list[Node] = [ROOT]
        self.finished: list[tuple[float, Node]] = []
        """The best outputs that have ended, the best first, each with its score."""
        self.done = False

    @property
    def rows(self) -> list[int]:
        return self.slots[: len(self.beams)]

    def so_far(self) -> list[list[int]]:
        return [[*self.prompt, *(node.token for node in beam.path())] for beam in self.beams]

    def advance(self, values: list[list[float]], tokens: list[list[int]], likeliest: Sequence[Candidates]) -> Moves:
        """Go on, given the best continuations of every beam; return the slots that must be copied.

        Only the `width` best continuations may finish; the others are there in case all of those do.
        """
        width, end, before = self.method.width, self.job.rules.end, self.beams
        self.length, self.position = self.length + 1, self.position + 1
        last = self.length == self.job.rules.max_new
        continuations = [
            (beam.total + value, -index, token)
            for index, beam in enumerate(before)
            for value, token in zip(values[index], tokens[index], strict=True)
            if value != FORBIDDEN
        ]
        continuations.sort(reverse=True)  # of equally good ones the earlier beam comes first
        going: list[tuple[int, Node]] = []
        ending: list[Node] = []
        for rank, (total, index, token) in enumerate(continuations[: self.keep]):
            ends = token in end
            if (ends or last) and rank < width:
                ending.append(Node(before[-index], token, total, likeliest[-index]))
            if not ends and len(going) < width:
                going.append((-index, Node(before[-index], token, total, likeliest[-index])))
        self.finish(ending, self.length)
        if not continuations and not self.finished:  # the rules allow nothing: it ends as it is
            self.finish(before, self.length - 1)
        self.done = last or self.is_decided(going[0][1].total if going else FORBIDDEN)
        if self.done:
            return []
        self.beams = [node for _, node in going]
        return self.place_beams([index for index, _ in going])

    def finish(self, nodes: Sequence[Node], length: int) -> None:
        """Add outputs of this length, and keep the best; of equally good ones the earlier comes first."""
        self.finished += [(node.total / self.norms[length], node) for node in nodes]
        self.finished.sort(key=lambda pair: -pair[0])
        del self.finished[self.method.width :]

    def is_decided(self, best: float) -> bool:
        """Check whether no live beam can change the outputs; `best` is the best beam's total."""
        enough = len(self.finished) == self.method.width
        if best == FORBIDDEN or not enough or self.method.stop == "early":
            return best == FORBIDDEN or enough
        exact = self.method.stop == "exact" and self.method.length_penalty > 0
        return best / self.norms[self.job.rules.max_new if exact else self.length] <= self.finished[-1][0]

    def place_beams(self, origins: Sequence[int]) -> Moves:
        """Assign slots to the beams: a beam keeps the slot of the beam it continues, unless an earlier beam took it."""
        free = [slot for beam, slot in enumerate(self.slots) if beam not in origins]
        continued, slots, moves = set[int](), list[int](), list[tuple[int, int]]()
        for beam in origins:
            slot = self.slots[beam]
            if beam in continued:
                moves.append((slot, free.pop()))
                slot = moves[-1][1]
            continued.add(beam)
            slots.append(slot)
        self.slots = slots + free
        return moves

    def hypotheses(self) -> list[Hypothesis]:
        """Return the best outputs, the best first."""
        return [
            node.hypothesis(score, ended=node is not ROOT and node.token in self.job.rules.end)
            for score, node in self.finished[: self.method.n_best]
        ]


def advance_beams(jobs: Sequence[SlotBeam], log_probs: Tensor, session: SlotSession) -> None:
    """Let the beams of all jobs go on, copy those that are continued more than once, and set their next tokens.

    `log_probs` are those of all rows of the batch.
    """
    device = session.device
    rows = torch.tensor([slot for job in jobs for slot in job.rows], device=device)
    log_probs_left, likeliest = forbid(jobs, log_probs.index_select(0, rows), session)
    values, tokens = (part.tolist() for part in top(log_probs_left, max(job.keep for job in jobs)))
    moves: Moves = []
    first = 0
    for job in jobs:
        rows_of_job = slice(first, first + len(job.beams))
        first = rows_of_job.stop
        moves += job.advance(values[rows_of_job], tokens[rows_of_job], likeliest[rows_of_job])
    session.copy_written([origin for origin, _ in moves], [slot for _, slot in moves])
    pairs = [(slot, node.token) for job in jobs if not job.done for slot, node in zip(job.rows, job.beams, strict=True)]
    if pairs:
        slots, chosen = torch.tensor(pairs, device=device).T
        session.tokens.index_copy_(0, slots, chosen)


def forbid(jobs: Sequence[SlotBeam], log_probs: Tensor, session: SlotSession) -> tuple[Tensor, list[Candidates]]:
    """Return the log-probabilities of all beams' rows by their rules, and each row's likeliest tokens if wanted."""
    first, likeliest, usual = 0, list[Candidates](), jobs[0].job.rules
    if all(job.forbids_always_the_same and job.job.rules.never == usual.never for job in jobs):
        if usual.never:
            log_probs.index_fill_(1, session.ids(usual.never), FORBIDDEN)
        return log_probs, [()] * len(log_probs)
    for job in jobs:
        rules, rows = job.job.rules, slice(first, first + len(job.beams))
        first = rows.stop
        so_far = job.so_far() if rules.look_back else []
        if rules.repetition_penalty != 1:
            log_probs[rows] = LogSoftmax().of(rules.penalise(session.logits[job.rows], so_far))
        likeliest += top_candidates(log_probs[rows], job.job.candidates)
        if not rules.forbids_nothing:
            rules.forbid(log_probs[rows], job.length, so_far)
    return log_probs, likeliest
