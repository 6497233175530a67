"""Jobs in the slots of a running batch: each chooses its next token by its own method and rules.

`TokenChoice` does for all of them together what can be done together: log-probabilities, the likeliest token of every
row, what each job's rules forbid, the draws of samples with equal settings. It also asks
for the best continuations of all beams at once; what becomes of them is decided in `clearhead.decoding.beam`.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from clearhead.decoding.beam import BeamJob, Moves
from clearhead.decoding.hypotheses import Candidates
from clearhead.decoding.method import Running
from clearhead.decoding.rules import FORBIDDEN
from clearhead.decoding.sampling import RowJob
from clearhead.decoding.scheduler import Chosen, Event, Finished
from clearhead.decoding.session import Session
from clearhead.decoding.topk import best, top, top_candidates


class Outcome(NamedTuple):
    """What a step brought: the events, and the jobs that are done."""

    events: list[Event]
    done: list[Running]


@dataclass
class JobGroups:
    """The jobs of a batch by what must be done for them, made anew when one joins or leaves.

    `shown` are those that report candidates, by how many; `sampled` those that draw, by equal settings.
    """

    rowwise: list[RowJob] = field(default_factory=list)
    changed: list[Running] = field(default_factory=list)
    shown: dict[int, list[Running]] = field(default_factory=dict)
    forbidding: list[Running] = field(default_factory=list)
    sampled: dict[Hashable, list[RowJob]] = field(default_factory=dict)
    beams: list[BeamJob] = field(default_factory=list)


def group_jobs(jobs: Iterable[Running]) -> JobGroups:
    every = list(jobs)
    rowwise = [job for job in every if isinstance(job, RowJob)]
    return JobGroups(
        rowwise=rowwise,
        changed=[job for job in every if job.rules.changes_logits],
        shown=group_by((job.candidates_wanted, job) for job in every if job.candidates_wanted),
        forbidding=[job for job in every if not job.rules.forbids_nothing],
        sampled=group_by((job.group, job) for job in rowwise if not job.method.likeliest),
        beams=[job for job in every if isinstance(job, BeamJob)],
    )


class TokenChoice:
    """Chooses the next token of every job in a batch."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.forbidding: tuple[list[tuple[int, list[int]]], Tensor] = [], torch.empty(0)
        self.groups: JobGroups | None = None

    def forget(self) -> None:
        """Make the groups anew at the next step: a job has joined or left."""
        self.groups = None

    def step(self, jobs: Iterable[Running]) -> Outcome:
        """Choose every row's next token from the logits; return the events, and the jobs that are done."""
        if self.groups is None:
            self.groups = group_jobs(jobs)
        groups, outcome = self.groups, Outcome([], [])
        self.change_logits(groups.changed)
        log_probs = self.session.log_softmax.of(self.session.logits)
        likeliest = self.candidates(log_probs, groups.shown)
        self.forbid(log_probs, groups.forbidding)
        if groups.rowwise:
            self.choose(log_probs, groups, likeliest, outcome)
        if groups.beams:
            advance_beams(groups.beams, log_probs, likeliest, self.session)
            done = [job for job in groups.beams if job.done]
            outcome.events.extend(Finished(job.ticket, job.hypotheses()) for job in done)
            outcome.done.extend(done)
        return outcome

    def change_logits(self, jobs: list[Running]) -> None:
        logits = self.session.logits
        for job in jobs:
            logits[job.rows] = job.change(logits[job.rows])

    def candidates(self, log_probs: Tensor, by_count: dict[int, list[Running]]) -> dict[int, list[Candidates]]:
        """Return the likeliest tokens of each row of the jobs that asked for them, by ticket."""
        candidates: dict[int, list[Candidates]] = {}
        for count, group in by_count.items():
            found = iter(top_candidates(log_probs[[row for job in group for row in job.rows]], count))
            candidates |= {job.ticket: [next(found) for _ in job.rows] for job in group}
        return candidates

    def forbid(self, log_probs: Tensor, jobs: list[Running]) -> None:
        """Write -inf where the rules of a row forbid a token; the places are sent to the device when they change."""
        if not jobs:
            return
        forbidden = [pair for job in jobs for pair in zip(job.rows, job.forbidden(), strict=True)]
        if forbidden != self.forbidding[0]:
            width = log_probs.shape[1]
            indices = [slot * width + token for slot, ids in forbidden for token in ids]
            self.forbidding = forbidden, torch.tensor(indices, dtype=torch.long, device=log_probs.device)
        log_probs.view(-1).index_fill_(0, self.forbidding[1], FORBIDDEN)
        for job in jobs:
            if job.matcher is not None:
                allowed = job.matcher.allowed(job.rules.end, log_probs.shape[1]).to(log_probs.device)
                log_probs[job.slots[0]].masked_fill_(~allowed, FORBIDDEN)

    def choose(
        self, log_probs: Tensor, groups: JobGroups, candidates: dict[int, list[Candidates]], outcome: Outcome
    ) -> None:
        values, chosen = best(log_probs)
        for group in groups.sampled.values():
            method = group[0].method
            rows = torch.tensor([job.slots[0] for job in group], device=log_probs.device)
            draws = [draw for job in group for draw in job.draws]
            chosen.index_copy_(0, rows, method.choose(log_probs[rows], draws))
        if groups.sampled:
            values = log_probs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        self.session.tokens[: len(chosen)] = chosen
        tokens, log_prob_of_slot = read_pairs(chosen, values)
        for job in groups.rowwise:
            slot = job.slots[0]
            token, value = tokens[slot], log_prob_of_slot[slot]
            [likeliest] = candidates.get(job.ticket, [()])
            if job.take(token, value, likeliest):
                outcome.events.append(Chosen(job.ticket, token, value, likeliest))
                if not job.done:
                    continue
            outcome.events.append(Finished(job.ticket, job.hypotheses()))
            outcome.done.append(job)


def advance_beams(
    jobs: Sequence[BeamJob], log_probs: Tensor, likeliest: dict[int, list[Candidates]], session: Session
) -> None:
    """Let the beams of all jobs go on, copy those that are continued more than once, and set their next tokens.

    `log_probs` are those of all rows of the batch.
    """
    rows = [row for job in jobs for row in job.rows]
    values, tokens = (iter(part.tolist()) for part in top(log_probs[rows], max([job.keep for job in jobs])))
    moves: Moves = []
    slots, chosen = list[int](), list[int]()
    for job in jobs:
        own_values, own_tokens = ([next(part) for _ in job.rows] for part in (values, tokens))
        moves += job.advance(own_values, own_tokens, likeliest.get(job.ticket, ()))
        if not job.decided:
            slots += job.rows
            chosen += [node.token for node in job.beams]
    session.copy_written([origin for origin, _ in moves], [slot for _, slot in moves])
    if slots:
        session.tokens.index_copy_(0, *torch.tensor([slots, chosen], device=session.device))


def read_pairs(tokens: Tensor, values: Tensor) -> tuple[list[int], list[float]]:
    """Return tokens and their log-probabilities; a GPU is asked once for both."""
    if tokens.device.type == "cpu":
        return tokens.tolist(), values.tolist()
    ids, numbers = torch.stack([tokens.to(values.dtype), values]).tolist()  # an id is exact in 24 bits
    return list(map(int, ids)), numbers


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def group_by(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    groups: dict[Key, list[Value]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups
