"""Beam searches in the slots of a running batch. Those with equal settings are one search: a job is a sentence of it.

A search of its own for every job would cost some 25 small operations a job and step, as many as a whole group takes.
Sentences join and leave a group at any step, so each has a length of its own.
"""

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from clearhead.decoding.beam_state import ROOT_NODE, Beam, BeamState, Step
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.rules import FORBIDDEN
from clearhead.decoding.scheduler import Job
from clearhead.decoding.slots import SlotSession

__all__ = ["BeamGroup", "GroupedBeam", "can_be_grouped"]

Moves = list[tuple[int, int]]
"""Slots that are copied, and where to."""


def can_be_grouped(job: Job) -> bool:
    """Check for a beam that needs nothing but tensors in a step: no token it has written is looked at again."""
    return isinstance(job.method, Beam) and not job.rules.look_back and not job.candidates


@final
class GroupedBeam:
    """A beam search in slots, as many as its width: beam b is in `slots[b]`. `group`: with which others it is one."""

    def __init__(self, ticket: int, job: Job, prompt: Sequence[int], slots: list[int]) -> None:
        assert isinstance(job.method, Beam)
        self.ticket, self.job, self.slots, self.position = ticket, job, slots, len(prompt) - 1
        self.method, rules = job.method, job.rules
        self.group: Hashable = "group", job.method, rules.end, rules.never, rules.min_new
        self.steps: list[tuple[list[float], list[float], list[float]]] = []
        """Log-probability, token and parent of every node, step by step."""

    def place_beams(self, origins: Sequence[int]) -> Moves:
        """Give the beams their slots: each stays where the beam that it continues was, if nobody else did before."""
        free = [slot for beam, slot in enumerate(self.slots) if beam not in origins]
        taken, slots, moves = set[int](), list[int](), list[tuple[int, int]]()
        for beam in origins:
            slot = self.slots[beam]
            if beam in taken:
                moves.append((slot, free.pop()))
                slot = moves[-1][1]
            taken.add(beam)
            slots.append(slot)
        self.slots = slots + free
        return moves

    def hypothesis(self, node: int, score: float) -> Hypothesis:
        """Return the output that ends with a node: node 1 + n * keep + r is that of rank r in step n."""
        tokens, totals, keep = list[int](), list[float](), len(self.steps[0][0])
        while node != ROOT_NODE:
            step, rank = divmod(node - 1, keep)
            values, ids, parents = self.steps[step]
            totals.append(values[rank])
            tokens.append(int(ids[rank]))
            node = int(parents[rank])
        totals.append(0.0)
        return Hypothesis(
            tokens=tuple(tokens[::-1]),
            log_probs=tuple(total - before for total, before in pairwise(totals))[::-1],
            score=score,
            ended=bool(tokens) and tokens[0] in self.job.rules.end,
        )


@final
class BeamGroup:
    """The searches of jobs with equal settings, in one `BeamState`."""

    def __init__(self, job: GroupedBeam, session: SlotSession) -> None:
        self.session, self.device, self.rules = session, session.device, job.job.rules
        self.state = BeamState(0, job.method, self.rules, session.decoder.spec.vocabulary, session.device)
        self.members: list[GroupedBeam] = []
        self.lengths = torch.zeros(0, 1, dtype=torch.long, device=session.device)
        self.never, self.end = (
            torch.tensor(ids, dtype=torch.long, device=session.device) for ids in (self.rules.never, self.rules.end)
        )

    def hold(self, jobs: list[GroupedBeam]) -> None:
        """Let sentences leave whose jobs are not here any more, and new ones in."""
        if len(jobs) == len(self.members) and all(map(lambda one, other: one is other, jobs, self.members)):
            return
        places = {job.ticket: place for place, job in enumerate(self.members)}
        stays = [places[job.ticket] for job in jobs if job.ticket in places]
        self.members = [self.members[place] for place in stays] + [job for job in jobs if job.ticket not in places]
        if len(stays) < len(places):
            kept = torch.tensor(stays, dtype=torch.long, device=self.device)
            self.state.select(kept)
            self.lengths = self.lengths[kept]
        new = len(self.members) - len(stays)
        self.state.add(new)
        self.lengths = torch.cat([self.lengths, self.lengths.new_zeros(new, 1)])
        limits = [job.job.rules.max_new for job in self.members]
        self.state.limit = torch.tensor(limits, device=self.device).unsqueeze(1)
        if self.members and max(limits) >= len(self.state.norms):
            norms = self.state.method.norms(max(limits))
            self.state.norms = torch.tensor(norms, dtype=self.state.norms.dtype, device=self.device)

    def advance(self, log_probs: Tensor) -> tuple[dict[int, list[Hypothesis]], Moves]:
        """Let every beam go on, given the log-probabilities of all rows of the batch.

        Return the outputs of the jobs that are done, by ticket, and the slots that must be copied.
        """
        found = self.forbid(log_probs[self.rows()])
        self.lengths += 1
        step = self.state.advance(found, self.lengths)
        done, moves, keep = list[int](), list[tuple[int, int]](), self.state.keep
        for place, (job, told) in enumerate(zip(self.members, self.read(step), strict=True)):
            job.steps.append((told[:keep], told[keep : 2 * keep], told[2 * keep : 3 * keep]))
            job.position += 1
            if told[-1]:
                moves += job.place_beams([int(beam) for beam in told[3 * keep : -1]])
            else:
                done.append(place)
        self.session.tokens.index_copy_(0, self.rows(), step.chosen.flatten())
        return self.outputs(done), moves

    def rows(self) -> Tensor:
        return torch.tensor([slot for job in self.members for slot in job.slots], device=self.device)

    def forbid(self, log_probs: Tensor) -> Tensor:
        """Write -inf at tokens that may not come next, and return the log-probabilities."""
        if len(self.never):
            log_probs.index_fill_(1, self.never, FORBIDDEN)
        if len(self.end) and any(len(job.steps) + 1 < self.rules.min_new for job in self.members):
            early = (self.lengths + 1 < self.rules.min_new).repeat_interleave(self.state.method.width, 0)
            log_probs[:, self.end] = log_probs[:, self.end].masked_fill(early, FORBIDDEN)
        return log_probs

    def read(self, step: Step) -> list[list[float]]:
        """Return all that Python must know of a step, in one answer of the device: a list for each sentence.

        It has the totals, tokens and parents of what was found, the beams that go on, and how many of those live.
        """
        live = (self.state.totals != FORBIDDEN).sum(1, keepdim=True)
        parts = step.totals, step.tokens, step.parents, step.origins, live
        return torch.cat([part.to(self.state.wide) for part in parts], 1).tolist()

    def outputs(self, done: list[int]) -> dict[int, list[Hypothesis]]:
        """Return the best outputs of these sentences, the best first, by ticket."""
        if not done:
            return {}
        places, n_best = torch.tensor(done, device=self.device), self.state.method.n_best
        scores, nodes = (one[places, :n_best].tolist() for one in (self.state.scores, self.state.finished))
        return {
            self.members[place].ticket: [
                self.members[place].hypothesis(node, score)
                for node, score in zip(nodes[i], scores[i], strict=True)
                if score != FORBIDDEN
            ]
            for i, place in enumerate(done)
        }
