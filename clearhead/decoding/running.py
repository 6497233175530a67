"""Jobs in the slots of a running batch: each chooses its next token by its own method and rules.

`TokenChoice` does for all of them together what can be done together: log-probabilities, the likeliest token of every
row, what each job's rules forbid, the draws of samples with equal settings, and beams of equal settings
(`clearhead.decoding.slot_beams`).
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor

from clearhead.decoding.beam import Search
from clearhead.decoding.beam_state import Beam, BeamState
from clearhead.decoding.history import History
from clearhead.decoding.hypotheses import Candidates, Hypothesis
from clearhead.decoding.rules import FORBIDDEN, Rules, followers
from clearhead.decoding.sampling import Chooser, Greedy, Sample
from clearhead.decoding.scheduler import Chosen, Event, Finished, Job
from clearhead.decoding.slot_beams import BeamGroup, GroupedBeam, Moves
from clearhead.decoding.slots import SlotSession
from clearhead.decoding.topk import LogProbs, best, top_candidates

__all__ = ["Chooses", "Outcome", "Running", "Searches", "TokenChoice"]


@final
class Chooses:
    """A job of one row. `position` is that of the token which is computed next."""

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
        # Samples with equal settings are drawn together; of a method nobody here knows, each by itself.
        self.group: Hashable = replace(job.method, seeds=0) if isinstance(job.method, Sample) else ticket

    @property
    def forbidden(self) -> list[int]:
        """Return the tokens that may not come next."""
        rules, found = self.rules, self.always_forbidden
        if len(self.tokens) + 1 < rules.min_new:
            found = found + list(rules.end)
        return found + list(followers(self.so_far, rules.no_repeat)) if rules.no_repeat else found

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
        one = Hypothesis(
            tokens=tuple(self.tokens),
            log_probs=tuple(self.log_probs),
            score=sum(self.log_probs, 0.0),
            ended=ended,
            candidates=tuple(self.candidates),
        )
        return Finished(self.ticket, [one])


@final
class Searches:
    """A beam search by itself, whose rules look back or whose candidates are wanted, in as many slots as its width.

    Its live beams are in the first of them.
    """

    def __init__(self, ticket: int, job: Job, prompt: Sequence[int], slots: list[int], session: SlotSession) -> None:
        assert isinstance(job.method, Beam)
        self.ticket, self.job, self.slots, self.session = ticket, job, slots, session
        self.device, self.position, self.n_new, self.n_live = session.device, len(prompt) - 1, 0, 1
        vocabulary = session.decoder.spec.vocabulary
        self.state = BeamState(1, job.method, job.rules, vocabulary, session.device)
        self.history = History(self.state)
        self.logits = self.tokens = torch.empty(0)
        self.search = Search(self, self.state, self.history, [prompt], candidates=job.candidates, watcher=None)
        self.moves: list[tuple[int, int]] = []

    def advance(self, log_probs: Tensor) -> list[Hypothesis] | None:
        """Let every beam go on, given the log-probabilities of all rows of the batch; return the outputs when done."""
        self.logits, self.moves = log_probs[self.slots[: self.n_live]], []
        self.n_new, self.position = self.n_new + 1, self.position + 1
        step = self.search.advance(self.n_new)
        [n_live] = self.state.count_live()
        if n_live:
            self.search.go_on(step, [0], n_live)
            return None
        self.history.hold(self.state)
        assert isinstance(self.job.method, Beam)
        return self.history.hypotheses(self.job.method.n_best, self.job.rules.end)[0]

    def log_probs(self, rules: Rules, so_far: Sequence[Sequence[int]]) -> Tensor:
        if rules.repetition_penalty == 1:
            return self.logits
        return LogProbs().of(rules.penalise(self.session.logits[self.slots[: self.n_live]], so_far))

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Give the beams their slots: each stays where the beam that it continues was, if nobody else did before."""
        origins = [self.slots[beam] for beam in rows.tolist()]
        free, taken, slots = [slot for slot in self.slots if slot not in origins], set[int](), list[int]()
        for origin in origins:
            slot = origin
            if origin in taken:
                slot = free.pop()
                self.moves.append((origin, slot))
            taken.add(slot)
            slots.append(slot)
        self.slots, self.n_live = slots + free, len(slots)

    def extend(self, tokens: Tensor) -> Tensor:
        """Note the next tokens of the beams: they are computed with the rest of the batch."""
        self.tokens = tokens
        return tokens


Running = Chooses | Searches | GroupedBeam


class Outcome(NamedTuple):
    """What a step brought: the events, and the jobs that are done."""

    events: list[Event]
    done: list[Running]


@final
@dataclass
class Kinds:
    """The jobs of a batch by what must be done for them: found out again when one comes or leaves."""

    rowwise: list[Chooses] = field(default_factory=list)
    penalised: list[Chooses] = field(default_factory=list)
    shown: dict[int, list[Chooses]] = field(default_factory=dict)
    forbidding: list[Chooses] = field(default_factory=list)
    drawn: dict[Hashable, list[Chooses]] = field(default_factory=dict)
    grouped: dict[Hashable, list[GroupedBeam]] = field(default_factory=dict)
    searches: list[Searches] = field(default_factory=list)


def sort_jobs(jobs: Iterable[Running]) -> Kinds:
    every = list(jobs)
    rowwise = [job for job in every if isinstance(job, Chooses)]
    return Kinds(
        rowwise=rowwise,
        penalised=[job for job in rowwise if job.rules.repetition_penalty != 1],
        shown=group_by((job.job.candidates, job) for job in rowwise if job.job.candidates),
        forbidding=[job for job in rowwise if not job.rules.forbids_nothing],
        drawn=group_by((job.group, job) for job in rowwise if not job.is_greedy),
        grouped=group_by((job.group, job) for job in every if isinstance(job, GroupedBeam)),
        searches=[job for job in every if isinstance(job, Searches)],
    )


@final
class TokenChoice:
    """Chooses the next token of every job in a batch."""

    def __init__(self, session: SlotSession) -> None:
        self.session = session
        self.forbidding: tuple[list[tuple[int, list[int]]], Tensor] = [], torch.empty(0)
        self.kinds: Kinds | None = None
        self.groups: dict[Hashable, BeamGroup] = {}

    def forget(self) -> None:
        """Find out again who is there: a job has come or left."""
        self.kinds = None

    def step(self, jobs: Iterable[Running]) -> Outcome:
        """Return what comes of the logits of all rows, and set every row's next token."""
        if self.kinds is None:
            self.kinds = sort_jobs(jobs)
        kinds, outcome = self.kinds, Outcome([], [])
        self.penalise(kinds.penalised)
        log_probs = self.session.kept.of(self.session.logits)
        shown = self.candidates(log_probs, kinds.shown)
        self.forbid(log_probs, kinds.forbidding)
        if kinds.rowwise:
            self.choose(log_probs, kinds, shown, outcome)
        if kinds.searches or kinds.grouped or self.groups:
            self.search(log_probs, kinds, outcome)
        return outcome

    def penalise(self, jobs: list[Chooses]) -> None:
        logits = self.session.logits
        for job in jobs:
            row = logits[job.slots[0]].unsqueeze(0)
            row.copy_(job.rules.penalise(row, [job.so_far]))

    def candidates(self, log_probs: Tensor, shown: dict[int, list[Chooses]]) -> dict[int, Candidates]:
        """Return the likeliest tokens of each job that asked for them, by its ticket."""
        found: dict[int, Candidates] = {}
        for count, group in shown.items():
            rows = log_probs[[job.slots[0] for job in group]]
            found |= zip((job.ticket for job in group), top_candidates(rows, count), strict=True)
        return found

    def forbid(self, log_probs: Tensor, jobs: list[Chooses]) -> None:
        """Write -inf where the rules of a row forbid a token; the places are sent to the device when they change."""
        if not jobs:
            return
        wanted = [(job.slots[0], job.forbidden) for job in jobs]
        if wanted != self.forbidding[0]:
            width = log_probs.shape[1]
            places = [slot * width + token for slot, ids in wanted for token in ids]
            self.forbidding = wanted, torch.tensor(places, dtype=torch.long, device=log_probs.device)
        log_probs.view(-1).index_fill_(0, self.forbidding[1], FORBIDDEN)

    def choose(self, log_probs: Tensor, kinds: Kinds, shown: dict[int, Candidates], outcome: Outcome) -> None:
        values, chosen = best(log_probs)
        for group in kinds.drawn.values():
            method = group[0].job.method
            assert isinstance(method, Chooser)
            rows = torch.tensor([job.slots[0] for job in group], device=log_probs.device)
            draws = [draw for job in group for draw in job.draws]
            chosen.index_copy_(0, rows, method.choose(log_probs[rows], draws))
        if kinds.drawn:
            values = log_probs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        self.session.tokens[: len(chosen)] = chosen
        tokens, own = read_pairs(chosen, values)
        for job in kinds.rowwise:
            slot = job.slots[0]
            token, value = tokens[slot], own[slot]
            likeliest = shown.get(job.ticket, ())
            if job.take(token, value, likeliest):
                outcome.events.append(Chosen(job.ticket, token, value, likeliest))
                if not job.done:
                    continue
            outcome.events.append(job.finish())
            outcome.done.append(job)

    def search(self, log_probs: Tensor, kinds: Kinds, outcome: Outcome) -> None:
        """Let beams go on, copy those that are continued more than once, and set the next tokens of all."""
        moves: Moves = []
        self.groups = {
            key: self.groups.get(key) or BeamGroup(jobs[0], self.session) for key, jobs in kinds.grouped.items()
        }
        for key, group in self.groups.items():
            group.hold(kinds.grouped[key])
            found, moved = group.advance(log_probs)
            moves += moved
            self.end([job for job in kinds.grouped[key] if job.ticket in found], found, outcome)
        for job in kinds.searches:
            outputs = job.advance(log_probs)
            moves += job.moves
            self.end([job] if outputs is not None else [], {job.ticket: outputs or []}, outcome)
        self.session.copy_written([origin for origin, _ in moves], [slot for _, slot in moves])
        live = [job for job in kinds.searches if len(job.tokens)]
        if live:
            slots = torch.tensor([slot for job in live for slot in job.slots[: job.n_live]], device=self.session.device)
            self.session.tokens.index_copy_(0, slots, torch.cat([job.tokens for job in live]))

    def end(self, jobs: Sequence[GroupedBeam | Searches], found: dict[int, list[Hypothesis]], outcome: Outcome) -> None:
        outcome.events.extend(Finished(job.ticket, found[job.ticket]) for job in jobs)
        outcome.done.extend(jobs)


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
