"""Jobs in the slots of a running batch: each chooses its next token by its own method and rules.

`TokenChoice` does for all of them together what can be done together: log-probabilities, the likeliest token of every
row, what each job's rules forbid, the draws of samples with equal settings. Beams: `clearhead.decoding.slot_beams`.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor

from clearhead.decoding.hypotheses import Candidates, Hypothesis
from clearhead.decoding.rules import FORBIDDEN, followers
from clearhead.decoding.sampling import Chooser, Greedy, Sample
from clearhead.decoding.scheduler import Chosen, Event, Finished, Job
from clearhead.decoding.slot_beams import SlotBeam, advance_beams
from clearhead.decoding.slots import SlotSession
from clearhead.decoding.topk import best, top_candidates


@final
class RowJob:
    """A job of one row, by greedy decoding or sampling. `position` is that of the token which is computed next."""

    def __init__(self, ticket: int, job: Job, prompt: Sequence[int], slot: int) -> None:
        assert isinstance(job.method, Chooser)
        self.ticket, self.job, self.slots, self.rules = ticket, job, [slot], job.rules
        self.position, self.max_new, self.end = len(prompt) - 1, job.rules.max_new, job.rules.end
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.candidates: list[Candidates] = []
        self.look_back = job.rules.look_back
        self.so_far = list(prompt) if self.look_back else []
        self.draws = job.method.draws(1)
        self.is_greedy = isinstance(job.method, Greedy)
        self.always_forbidden = list(job.rules.never)
        # Samples with equal settings are drawn together; by a method that is not ours, each by itself.
        self.group: Hashable = replace(job.method, seeds=0) if isinstance(job.method, Sample) else ticket

    @property
    def forbidden(self) -> list[int]:
        """Return the tokens that may not come next."""
        rules, tokens = self.rules, self.always_forbidden
        if len(self.tokens) + 1 < rules.min_new:
            tokens = tokens + list(rules.end)
        return tokens + list(followers(self.so_far, rules.no_repeat)) if rules.no_repeat else tokens

    def take(self, token: int, log_prob: float, candidates: Candidates) -> bool:
        """Take the token that was chosen, and return whether there is one: not where nothing was allowed."""
        if log_prob == FORBIDDEN:
            return False
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        self.position += 1
        if candidates:
            self.candidates.append(candidates)
        if self.look_back:
            self.so_far.append(token)
        return True

    @property
    def done(self) -> bool:
        return len(self.tokens) == self.max_new or self.tokens[-1] in self.end

    def finish(self) -> Finished:
        ended = bool(self.tokens) and self.tokens[-1] in self.end
        hypothesis = Hypothesis(
            tokens=tuple(self.tokens),
            log_probs=tuple(self.log_probs),
            score=sum(self.log_probs, 0.0),
            ended=ended,
            candidates=tuple(self.candidates),
        )
        return Finished(self.ticket, [hypothesis])


Running = RowJob | SlotBeam


class Outcome(NamedTuple):
    """What a step brought: the events, and the jobs that are done."""

    events: list[Event]
    done: list[Running]


@final
@dataclass
class JobGroups:
    """The jobs of a batch by what must be done for them, made anew when one joins or leaves.

    `shown` are those that report candidates, by how many; `sampled` those that draw, by equal settings.
    """

    rowwise: list[RowJob] = field(default_factory=list)
    penalised: list[RowJob] = field(default_factory=list)
    shown: dict[int, list[RowJob]] = field(default_factory=dict)
    forbidding: list[RowJob] = field(default_factory=list)
    sampled: dict[Hashable, list[RowJob]] = field(default_factory=dict)
    beams: list[SlotBeam] = field(default_factory=list)


def group_jobs(jobs: Iterable[Running]) -> JobGroups:
    every = list(jobs)
    rowwise = [job for job in every if isinstance(job, RowJob)]
    return JobGroups(
        rowwise=rowwise,
        penalised=[job for job in rowwise if job.rules.repetition_penalty != 1],
        shown=group_by((job.job.candidates, job) for job in rowwise if job.job.candidates),
        forbidding=[job for job in rowwise if not job.rules.forbids_nothing],
        sampled=group_by((job.group, job) for job in rowwise if not job.is_greedy),
        beams=[job for job in every if isinstance(job, SlotBeam)],
    )


@final
class TokenChoice:
    """Chooses the next token of every job in a batch."""

    def __init__(self, session: SlotSession) -> None:
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
        self.penalise(groups.penalised)
        log_probs = self.session.log_softmax.of(self.session.logits)
        likeliest = self.candidates(log_probs, groups.shown)
        self.forbid(log_probs, groups.forbidding)
        if groups.rowwise:
            self.choose(log_probs, groups, likeliest, outcome)
        if groups.beams:
            advance_beams(groups.beams, log_probs, self.session)
            done = [job for job in groups.beams if job.done]
            outcome.events.extend(Finished(job.ticket, job.hypotheses()) for job in done)
            outcome.done.extend(done)
        return outcome

    def penalise(self, jobs: list[RowJob]) -> None:
        logits = self.session.logits
        for job in jobs:
            row = logits[job.slots[0]].unsqueeze(0)
            row.copy_(job.rules.penalise(row, [job.so_far]))

    def candidates(self, log_probs: Tensor, by_count: dict[int, list[RowJob]]) -> dict[int, Candidates]:
        """Return the likeliest tokens of each job that asked for them, by its ticket."""
        candidates: dict[int, Candidates] = {}
        for count, group in by_count.items():
            rows = log_probs[[job.slots[0] for job in group]]
            candidates |= zip((job.ticket for job in group), top_candidates(rows, count), strict=True)
        return candidates

    def forbid(self, log_probs: Tensor, jobs: list[RowJob]) -> None:
        """Write -inf where the rules of a row forbid a token; the places are sent to the device when they change."""
        if not jobs:
            return
        forbidden = [(job.slots[0], job.forbidden) for job in jobs]
        if forbidden != self.forbidding[0]:
            width = log_probs.shape[1]
            indices = [slot * width + token for slot, ids in forbidden for token in ids]
            self.forbidding = forbidden, torch.tensor(indices, dtype=torch.long, device=log_probs.device)
        log_probs.view(-1).index_fill_(0, self.forbidding[1], FORBIDDEN)

    def choose(self, log_probs: Tensor, groups: JobGroups, candidates: dict[int, Candidates], outcome: Outcome) -> None:
        values, chosen = best(log_probs)
        for group in groups.sampled.values():
            method = group[0].job.method
            assert isinstance(method, Chooser)
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
            likeliest = candidates.get(job.ticket, ())
            if job.take(token, value, likeliest):
                outcome.events.append(Chosen(job.ticket, token, value, likeliest))
                if not job.done:
                    continue
            outcome.events.append(job.finish())
            outcome.done.append(job)


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
