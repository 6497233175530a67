"""Continuous batching: jobs join and leave the running batch at any token, whatever their methods and rules.

A waiting job gets a place as soon as there is one. The rows of the batch are slots (`clearhead.decoding.session`).
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from clearhead.decoding.caches import Guest
from clearhead.decoding.clock import SessionSize
from clearhead.decoding.grammar import TokenBytes
from clearhead.decoding.method import Running, Start, Watcher, check_method
from clearhead.decoding.prefix_cache import PrefixCache, PromptBlock
from clearhead.decoding.request import Model, check_model, check_request
from clearhead.decoding.running import TokenChoice
from clearhead.decoding.scheduler import Event, Job, Scheduler
from clearhead.decoding.session import EVERYTHING, MakeSession, Prefill, Session, check_masks, warn_if_slow
from clearhead.devices import fewer_threads_if_busy
from clearhead.errors import OptionError, ShapeError
from clearhead.model.transformers import Decoder, Encoder

MANY_COLUMNS = 1024
"""Columns of a row where the model has no end of positions."""
FEWEST = 32
"""Rows and columns of the smallest step that is recorded."""
READ_TOGETHER = 16
"""Prompts that are read in one pass, ahead of their turn if need be: a pass for each would take as long as a step."""
BACKLOG = 2
"""Where more jobs wait than there are slots, this many times as many prompts are read at once: running jobs wait longer
for a pass, and there are fewer passes."""
NOBODY = 0, 0, 0, 0
"""What stands in a slot that no job has."""
READING, JOINING = 1.0, 0.1
"""How long it takes, in decoding steps, to read one prompt or several together, and to let jobs join that were read."""


@dataclass(kw_only=True)
class Counts:
    """What a scheduler has done so far, for metrics. `row_steps` counts the rows computed, used by a job or not;
    `shared_tokens` those of prompts that the prefix cache had.
    """

    steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    row_steps: int = 0
    finished: int = 0
    cancelled: int = 0


@dataclass
class Waiting:
    """A job that waits for a place; its prompt may have been read already, as one row of a `Prefill`."""

    job: Job
    prompt: Sequence[int]
    draws: Sequence[torch.Generator] = ()
    watcher: Watcher | None = None
    prefill: Prefill | None = None
    row: int = 0
    found: list[PromptBlock] = field(default_factory=list)
    """The blocks of the prefix cache that the prompt begins with."""

    def start(self, ticket: int, slots: list[int], tokens: TokenBytes | None) -> Running:
        job, grammar = self.job, self.job.rules.grammar
        begin = Start(
            ticket=ticket,
            prompt=self.prompt,
            slots=slots,
            rules=job.rules,
            candidates=job.candidates,
            n_source=len(job.inputs),
            draws=self.draws,
            watcher=self.watcher,
            begun=job.begun,
            matcher=None if grammar is None else grammar.match(tokens, job.begun),
        )
        return job.method.start(begin)

    @property
    def reads(self) -> Hashable:
        """Return what is read for the job: it is read once for all jobs that have the same."""
        return tuple(self.prompt), self.job.inputs, self.job.adapter

    @property
    def n_columns(self) -> int:
        """Return how many columns the keys of the job will take; the last new token is never read."""
        return len(self.prompt) + self.job.rules.max_new - 1


class ContinuousBatch(Scheduler):
    """Decodes jobs in the rows of one batch, of `slots` rows. The model is switched to eval mode, and stays in it.

    A job may have `columns` tokens in all (prompt and output), and an encoder-decoder's input `source_columns`: by
    default as many as the model has positions, else 1,024. Between two steps at most `prompt_tokens` tokens of prompts
    are read, twice as many if more jobs wait than there are slots (None: all that wait, together); a longer prompt of a
    decoder is read in pieces, a longer input of an encoder by itself. Jobs that wait with the same prompt read it once.
    `prefixes` keeps what was read for later prompts that begin alike; it is not used where a layer's cache cannot
    share. `tokens` are for grammars that come without. A step has hardly more rows and columns than it needs, and
    several prompts are read together.

    >>> import torch
    >>> from clearhead.decoding import Rules
    >>> from clearhead.decoding.continuous import ContinuousBatch
    >>> from clearhead.decoding.scheduler import Finished, Job
    >>> from clearhead.model import presets
    >>> _ = torch.manual_seed(0)
    >>> engine = ContinuousBatch(presets.gpt2("tiny", vocabulary=20).build(), slots=4)
    >>> tickets = [engine.add(Job(inputs=(1, 2, 3), rules=Rules(max_new=n))) for n in (2, 5)]
    >>> done = []
    >>> while engine.busy:
    ...     done += [event for event in engine.step() if isinstance(event, Finished)]
    >>> [(event.ticket, len(event.hypotheses[0].tokens)) for event in done]
    [(1, 2), (2, 5)]
    """

    def __init__(
        self,
        model: Model,
        *,
        slots: int = 32,
        columns: int | None = None,
        source_columns: int | None = None,
        prompt_tokens: int | None = 512,
        shared: int = 1,
        prefixes: PrefixCache | None = None,
        tokens: TokenBytes | None = None,
        make_session: MakeSession = Session,
    ) -> None:
        check_model(model)
        for name, value in (("slots", slots), ("prompt_tokens", prompt_tokens)):
            if value is not None and value < 1:
                raise OptionError(f"{name} must be 1 or more; came {value}")
        self.model, self.decoder = model, model.decoder
        self.slots, self.tokens = slots, tokens
        self.prompt_tokens, self.read_together = (
            (EVERYTHING, EVERYTHING) if prompt_tokens is None else (prompt_tokens, READ_TOGETHER)
        )
        self.columns = find_limit("columns", columns, self.decoder)
        self.source_columns = (
            0 if model.encoder is None else find_limit("source_columns", source_columns, model.encoder)
        )
        self.queue: OrderedDict[int, Waiting] = OrderedDict()
        self.jobs: OrderedDict[int, Running] = OrderedDict()
        self.free = list(range(slots - 1, -1, -1))
        self.delay = 0
        """Steps that jobs have waited with a place for them, since the last joined; of all of them together."""
        self.next_ticket, self.counts, self.checked = 0, Counts(), set[int]()
        if model.training:
            model.eval()
        with torch.inference_mode():
            self.session = make_session(model, SessionSize(slots, self.columns, self.source_columns, shared))
        warn_if_slow(self.session)
        self.prefixes = prefixes if all(cache.can_share for cache in self.session.caches) else None
        self.choice, self.fitted = TokenChoice(self.session), (0, 0)
        self.changes: dict[int, tuple[int, int, int, int]] = {}
        """Slots that changed hands since the last step: token, position, 1 if a job has the slot, and its adapter."""

    @property
    def running(self) -> int:
        return len(self.jobs)

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def rows_in_use(self) -> int:
        return self.slots - len(self.free)

    def bytes(self) -> int:
        """Return the bytes that are allocated for all slots."""
        return self.session.caches.bytes()

    def add(self, job: Job) -> int:
        return self.put(self.check(job))

    def put(self, waiting: Waiting) -> int:
        """Let a job wait that was checked, and return its ticket."""
        self.next_ticket += 1
        self.queue[self.next_ticket] = waiting
        return self.next_ticket

    def check(self, job: Job) -> Waiting:
        """Return the job as one that waits; OptionError if it can never be done here."""
        check_method(job.method)
        prefix = None if job.prefix is None else [job.prefix]
        request = check_request(self.model, [job.inputs], prefix, job.rules, job.candidates)
        job.method.check(job.rules)
        waiting = Waiting(job, request.prompts[0], job.method.draws(1))
        if waiting.job.rows > self.slots:
            raise OptionError(
                f"a beam of {waiting.job.rows} rows does not fit into {self.slots} slots; ask for a narrower beam"
            )
        if waiting.n_columns > self.columns:
            raise OptionError(
                f"a prompt of {len(waiting.prompt)} tokens and max_new = {job.rules.max_new} take {waiting.n_columns} "
                f"columns of the cache, and it has {self.columns}; shorten the prompt or ask for fewer tokens"
            )
        if self.source_columns and len(job.inputs) > self.source_columns:
            raise OptionError(
                f"the input has {len(job.inputs)} tokens, and there is memory for {self.source_columns}; shorten it"
            )
        if waiting.n_columns not in self.checked:
            try:
                check_masks(self.decoder, 1, waiting.n_columns)
            except ShapeError as error:
                raise OptionError(str(error)) from None
            self.checked.add(waiting.n_columns)
        return waiting

    def cancel(self, ticket: int) -> None:
        if self.queue.pop(ticket, None) is not None:
            self.counts.cancelled += 1
        elif ticket in self.jobs:
            self.counts.cancelled += 1
            self.leave(ticket)

    def leave(self, ticket: int) -> None:
        """Take a job's slots back."""
        self.choice.forget()
        for slot in self.jobs.pop(ticket).slots:
            self.free.append(slot)
            self.changes[slot] = NOBODY

    def step(self) -> list[Event]:
        if not self.busy:
            return []
        if self.model.training:
            self.model.eval()
        with self.threads(), torch.inference_mode():
            return self.advance()

    def advance(self) -> list[Event]:
        """Compute the next token of every running job, in inference mode."""
        self.admit()
        if not self.jobs:
            return []  # a long prompt is still being read
        self.fit()
        self.write_changes()
        self.session.step_rows()
        return self.choose()

    def threads(self) -> AbstractContextManager[None]:
        """Compute a single job with one thread on a busy machine; several have steps that are large enough for all."""
        return nullcontext() if self.running + self.waiting > 1 else fewer_threads_if_busy(self.session.device)

    def admit(self) -> None:
        """Read prompts, as many tokens as may be between two steps, and give slots to the jobs whose turn it is."""
        if not self.queue or not self.is_worth_it():
            return
        most = budget = self.prompt_tokens * self.patience
        while self.queue:
            first = next(iter(self.queue.values()))
            if first.job.rows > len(self.free):
                return
            while first.prefill is None or not first.prefill.done:
                if budget < most and budget < self.next_piece(first):
                    return  # pieces are not cut to what is left: each other length is planned anew on a GPU
                budget -= self.read_prompts(first, budget)
            self.join()

    def next_piece(self, first: Waiting) -> int:
        """Return how many tokens of prompts are read next, at least."""
        left = self.cost(first) if first.prefill is None else first.prefill.left
        return max(1, min(left, self.prompt_tokens))

    @property
    def patience(self) -> int:
        return BACKLOG if len(self.queue) > self.slots else 1

    def is_worth_it(self) -> bool:
        """Check whether the waiting jobs have lost as many steps as their joining will cost the running jobs.

        One job that joins costs the others a step or two, and several together hardly more.
        """
        first, room, fitting = next(iter(self.queue.values())), len(self.free), 0
        for waiting in self.queue.values():
            room -= waiting.job.rows
            if room < 0:
                break
            fitting += 1
        self.delay += fitting
        if first.prefill is None or first.prefill.done:
            together = first.prefill is not None or len(self.queue) >= self.read_together  # as many as are read at once
            if self.delay < (JOINING if together else READING) * self.rows_in_use:
                return False
        self.delay = 0
        return fitting > 0

    def read_prompts(self, first: Waiting, budget: int) -> int:
        """Read on in the first job's prompt, or begin those of the next jobs; return how many tokens were read."""
        read = 0
        if first.prefill is None:
            group = self.take_group(budget)
            read = self.open_prefill(group)
        assert first.prefill is not None
        if not first.prefill.done:
            read += first.prefill.read_next()
        if first.prefill.done and self.prefixes is not None:
            prefill = first.prefill
            adapters, memory = prefill.adapters.numbers.tolist(), [cache.memory for cache in prefill.caches]
            self.prefixes.keep(prefill.prompts, memory, prefill.begun, adapters)
        self.counts.prompt_tokens += read
        return read

    def take_group(self, budget: int) -> list[list[Waiting]]:
        """Return the jobs whose prompts are read together, within the tokens that are left: the first in the queue.

        Those with the same prompt are one row.
        """
        group: dict[Hashable, list[Waiting]] = {}
        longest, n_found, beginnings = 0, 0, set[Hashable]()
        for waiting in self.queue.values():
            if (alike := group.get(waiting.reads)) is not None:
                alike.append(waiting)
                continue
            beginning = self.find_prefix(waiting)
            cost = max(longest, self.cost(waiting))
            if group and (
                cost > self.prompt_tokens
                or len(group) == self.read_together * self.patience
                or cost * (len(group) + 1) > budget
                or len(waiting.found) != n_found
                or beginning in beginnings  # the next group will find it read
            ):
                break
            group[waiting.reads] = [waiting]
            longest, n_found = cost, len(waiting.found)
            beginnings |= {beginning} - {None}
        return list(group.values())

    def find_prefix(self, waiting: Waiting) -> Hashable:
        """Look up which blocks of the prompt are there, and return the key of the next one."""
        if self.prefixes is None:
            return None
        waiting.found = self.prefixes.find(waiting.prompt, waiting.job.adapter)
        return self.prefixes.next_key(waiting.prompt, waiting.found, waiting.job.adapter)

    def cost(self, waiting: Waiting) -> int:
        """Return how many tokens must be read for a job."""
        found = 0 if self.prefixes is None else len(waiting.found) * self.prefixes.block
        return len(waiting.prompt) - 1 - found + (0 if self.model.encoder is None else len(waiting.job.inputs))

    def open_prefill(self, group: list[list[Waiting]]) -> int:
        """Begin to read the prompts of a group, all but their last tokens; return how many source tokens were read.

        The last token of a prompt is the first that is computed in the running batch.
        """
        firsts = [alike[0] for alike in group]
        prompts, inputs = [waiting.prompt for waiting in firsts], [waiting.job.inputs for waiting in firsts]
        begun = None
        if self.prefixes is not None and firsts[0].found:
            begun = self.prefixes.gather([waiting.found for waiting in firsts])
        adapters = [waiting.job.adapter for waiting in firsts]
        prefill = self.session.open_prefill(prompts, inputs, self.prompt_tokens, begun, adapters)
        self.counts.shared_tokens += prefill.begun * len(prompts)
        for row, alike in enumerate(group):
            for waiting in alike:
                waiting.prefill, waiting.row, waiting.found = prefill, row, []
        return prefill.source_tokens

    def join(self) -> None:
        """Give slots to the first jobs in the queue that were read together, as many as there is room for."""
        prefill, guests = next(iter(self.queue.values())).prefill, []
        assert prefill is not None
        for ticket, waiting in list(self.queue.items()):
            if waiting.prefill is not prefill or waiting.job.rows > len(self.free):
                break
            del self.queue[ticket]
            slots = self.take_slots(waiting.job.rows)
            for slot in slots:
                self.changes[slot] = waiting.prompt[-1], len(waiting.prompt) - 1, 1, waiting.job.adapter
            guests.append(Guest(waiting.row, len(waiting.prompt) - 1, slots))
            self.jobs[ticket] = waiting.start(ticket, slots, self.tokens)
        self.choice.forget()
        self.fit()
        self.session.join(prefill, guests)

    def take_slots(self, count: int) -> list[int]:
        """Return free slots, the lowest: the rows above the last one in use are not computed."""
        self.free.sort(reverse=True)
        return [self.free.pop() for _ in range(count)]

    def fit(self) -> None:
        """Compute as many rows and columns as the jobs need."""
        session, find = self.session, find_bucket if self.session.recordable else round_up
        if self.choice.groups is None:  # someone has joined or left
            self.fit_rows(find)
        positions = {job.position for job in self.jobs.values()}
        longest = max(positions)
        session.clock.common = longest if len(positions) == 1 and not session.recordable else None
        rows, source_columns = self.fitted
        session.fit(rows, min(find(longest + 1), self.columns), source_columns)

    def fit_rows(self, find: Callable[[int], int]) -> None:
        """Find how many rows the jobs need, and how many columns of their sources."""
        session, jobs = self.session, self.jobs.values()
        rows = min(find(self.rows_in_use), self.slots) if session.clock.shared == 1 else self.rows_in_use
        if self.queue:  # the next will take the rows that are free now
            rows = max(rows, session.shape[0])
        if max([slot for job in jobs for slot in job.slots]) >= rows:
            self.pack(rows)
        lengths = {job.n_source for job in jobs} if self.source_columns else {0}
        session.clock.alike = len(lengths) == 1 and not session.recordable
        self.fitted = rows, max(lengths) if session.clock.alike else min(find(max(lengths)), self.source_columns)

    def pack(self, rows: int) -> None:
        """Move the jobs in slots from `rows` on into free slots below."""
        self.write_changes()
        self.free.sort(reverse=True)
        origins, targets = [], []
        for job in self.jobs.values():
            for index, slot in enumerate(job.slots):
                if slot >= rows:
                    job.slots[index] = self.free.pop()
                    origins.append(slot)
                    targets.append(job.slots[index])
        self.session.copy(origins, targets)
        self.free += origins
        self.changes.update(dict.fromkeys(origins, NOBODY))

    def write_changes(self) -> None:
        """Copy the changes of slots to the device."""
        if not self.changes:
            return
        changes = torch.tensor([(slot, *change) for slot, change in self.changes.items()], device=self.session.device)
        slots, tokens, positions, moves, adapters = changes.T
        self.session.tokens.index_copy_(0, slots, tokens)
        self.session.clock.at.index_copy_(0, slots, positions)
        self.session.moves.index_copy_(0, slots, moves)
        self.session.adapters.numbers.index_copy_(0, slots, adapters)
        self.changes = {}

    def choose(self) -> list[Event]:
        """Let every job choose its next token, and those that are done leave."""
        rows, counts = self.session.clock.rows, self.counts
        counts.steps, counts.row_steps = counts.steps + 1, counts.row_steps + rows
        counts.tokens += len(self.jobs)
        events, done = self.choice.step(self.jobs.values())
        counts.finished += len(done)
        for job in done:
            self.leave(job.ticket)
        return events


def find_limit(name: str, asked_for: int | None, part: Decoder | Encoder) -> int:
    """Return the maximum number of columns: no more than the model has positions."""
    n_positions = None if part.embedding.position is None else part.embedding.position.length
    if asked_for is not None and asked_for < 1:
        raise OptionError(f"{name} must be 1 or more; came {asked_for}")
    if n_positions is None:
        return MANY_COLUMNS if asked_for is None else asked_for
    return n_positions if asked_for is None else min(asked_for, n_positions)


def find_bucket(columns: int) -> int:
    """Return the least power of two, of 32 or more, that is enough: each is recorded once."""
    return max(FEWEST, 1 << (columns - 1).bit_length())


def round_up(rows: int) -> int:
    """Return the next multiple of 8; of a few, the next power of two."""
    return -(-rows // 8) * 8 if rows > 4 else (0, 1, 2, 4, 4)[rows]
