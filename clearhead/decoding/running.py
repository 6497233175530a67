"""Jobs in the slots of a running batch: each chooses its next token by its own method and rules.

`TokenChoice` does for all of them together what can be done together: log-probabilities, the likeliest token of every
row, what each job's rules forbid, and the draws of samples with equal settings.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor

from clearhead.decoding.beam import Search
from clearhead.decoding.beam_state import Beam, BeamState
from clearhead.decoding.generating import Token, collect
from clearhead.decoding.history import History
from clearhead.decoding.hypotheses import Candidates
from clearhead.decoding.rules import FORBIDDEN, Rules, followers
from clearhead.decoding.sampling import Chooser, Greedy, Sample
from clearhead.decoding.scheduler import Chosen, Event, Finished, Job
from clearhead.decoding.slots import SlotSession
from clearhead.decoding.topk import LogProbs, best, top_candidates

__all__ = ["Chooses", "Outcome", "Searches", "TokenChoice"]


@final
class Chooses:
    """A job of one row. `position` is that of the token which is computed next."""

    def __init__(self, ticket: int, job: Job, prompt: Sequence[int], slot: int) -> None:
        assert isinstance(job.method, Chooser)
        self.ticket, self.job, self.slots, self.rules = ticket, job, [slot], job.rules
        self.position, self.written = len(prompt) - 1, list[Token]()
        self.so_far = list(prompt) if job.rules.look_back else []
        self.draws = job.method.draws(1)
        self.is_plain = isinstance(job.method, Greedy) and job.rules.forbids_nothing and not job.candidates
        # Samples with equal settings are drawn together; of a method nobody here knows, each by itself.
        self.group: Hashable = replace(job.method, seeds=0) if isinstance(job.method, Sample) else ticket

    def forbidden(self) -> list[int]:
        """Return the tokens that may not come next."""
        rules, found = self.rules, list(self.rules.never)
        if len(self.written) + 1 < rules.min_new:
            found += rules.end
        return found + list(followers(self.so_far, rules.no_repeat)) if rules.no_repeat else found

    def take(self, token: int, log_prob: float, candidates: Candidates) -> "Outcome":
        """Take the token that was chosen; nothing was allowed where its log-probability is that of no token."""
        if log_prob == FORBIDDEN:
            return Outcome(self, (self.finish(),), done=True)
        ended = token in self.rules.end
        self.written.append(Token(0, token, log_prob, ended, candidates))
        self.position += 1
        if self.rules.look_back:
            self.so_far.append(token)
        chosen = Chosen(self.ticket, token, log_prob, candidates)
        if ended or len(self.written) == self.rules.max_new:
            return Outcome(self, (chosen, self.finish()), done=True)
        return Outcome(self, (chosen,), done=False)

    def finish(self) -> Finished:
        return Finished(self.ticket, collect(iter(self.written), 1)[0])


@final
class Searches:
    """A beam search in a group of slots, as many as its width; its live beams are in the first of them."""

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

    def advance(self, log_probs: Tensor) -> "Outcome":
        """Let every beam go on, given the log-probabilities of all rows of the batch."""
        self.logits, self.moves = log_probs[self.slots[: self.n_live]], []
        self.n_new, self.position = self.n_new + 1, self.position + 1
        step = self.search.advance(self.n_new)
        [n_live] = self.state.count_live()
        if n_live:
            self.search.go_on(step, [0], n_live)
            return Outcome(self, (), done=False)
        self.history.hold(self.state)
        assert isinstance(self.job.method, Beam)
        found = self.history.hypotheses(self.job.method.n_best, self.job.rules.end)[0]
        return Outcome(self, (Finished(self.ticket, found),), done=True)

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


Running = Chooses | Searches


class Outcome(NamedTuple):
    """What a step brought a job."""

    job: Running
    events: tuple[Event, ...]
    done: bool


@final
class TokenChoice:
    """Chooses the next token of every job in a batch."""

    def __init__(self, session: SlotSession) -> None:
        self.session = session
        self.forbidding: tuple[list[tuple[int, list[int]]], Tensor] = [], torch.empty(0)

    def step(self, jobs: Iterable[Running]) -> list[Outcome]:
        """Return what comes of the logits of all rows, and set every row's next token."""
        rowwise = [job for job in jobs if isinstance(job, Chooses)]
        beams = [job for job in jobs if isinstance(job, Searches)]
        special = [job for job in rowwise if not job.is_plain]
        self.penalise(special)
        log_probs = self.session.kept.of(self.session.logits)
        shown = self.candidates(log_probs, special)
        self.forbid(log_probs, special)
        outcomes = self.choose(log_probs, rowwise, special, shown) if rowwise else []
        if beams:
            outcomes += [job.advance(log_probs) for job in beams]
            self.move(beams)
        return outcomes

    def penalise(self, jobs: list[Chooses]) -> None:
        logits = self.session.logits
        for job in jobs:
            if job.rules.repetition_penalty != 1:
                row = logits[job.slots[0]].unsqueeze(0)
                row.copy_(job.rules.penalise(row, [job.so_far]))

    def candidates(self, log_probs: Tensor, jobs: list[Chooses]) -> dict[int, Candidates]:
        """Return the likeliest tokens of each job that asked for them, by its ticket."""
        found: dict[int, Candidates] = {}
        for count, group in group_by((job.job.candidates, job) for job in jobs if job.job.candidates).items():
            rows = log_probs[[job.slots[0] for job in group]]
            found |= zip((job.ticket for job in group), top_candidates(rows, count), strict=True)
        return found

    def forbid(self, log_probs: Tensor, jobs: list[Chooses]) -> None:
        """Write -inf where the rules of a row forbid a token; the places are sent to the device when they change."""
        wanted = [(job.slots[0], job.forbidden()) for job in jobs if not job.rules.forbids_nothing]
        if not any(ids for _, ids in wanted):
            return
        if wanted != self.forbidding[0]:
            width = log_probs.shape[1]
            places = [slot * width + token for slot, ids in wanted for token in ids]
            self.forbidding = wanted, torch.tensor(places, device=log_probs.device)
        log_probs.view(-1).index_fill_(0, self.forbidding[1], FORBIDDEN)

    def choose(
        self, log_probs: Tensor, jobs: list[Chooses], special: list[Chooses], shown: dict[int, Candidates]
    ) -> list[Outcome]:
        values, chosen = best(log_probs)
        drawn = group_by((job.group, job) for job in special if not isinstance(job.job.method, Greedy))
        for group in drawn.values():
            method = group[0].job.method
            assert isinstance(method, Chooser)
            rows = torch.tensor([job.slots[0] for job in group], device=log_probs.device)
            draws = [draw for job in group for draw in job.draws]
            chosen.index_copy_(0, rows, method.choose(log_probs[rows], draws))
        if drawn:
            values = log_probs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        self.session.tokens[: len(chosen)] = chosen
        tokens, own = chosen.tolist(), values.tolist()
        return [job.take(tokens[slot], own[slot], shown.get(job.ticket, ())) for job in jobs for slot in job.slots]

    def move(self, beams: list[Searches]) -> None:
        """Copy beams that are continued more than once, and set the next tokens of all."""
        moves = [move for job in beams for move in job.moves]
        self.session.copy_written([origin for origin, _ in moves], [slot for _, slot in moves])
        live = [job for job in beams if len(job.tokens)]
        if live:
            slots = torch.tensor([slot for job in live for slot in job.slots[: job.n_live]], device=self.session.device)
            self.session.tokens.index_copy_(0, slots, torch.cat([job.tokens for job in live]))


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def group_by(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    groups: dict[Key, list[Value]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups
