"""Jobs and the loop that decodes them, on a thread of the server or in a process of its own.

`JobLoop` has the model: it takes commands from a link, computes, and sends reports back. `Jobs` is the same loop as the
event loop sees it: it hands jobs over and gives each listener its events. A link is a queue or a socket; what passes
through it is the same.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

from clearhead.decoding.scheduler import Chosen, Event, Finished, Job, Scheduler
from clearhead.errors import ClearheadError
from clearhead.serve.app import Front
from clearhead.serve.errors import ApiError, as_reply
from clearhead.serve.logs import facts_of

AT_ONCE = 64
"""Texts that are computed in one pass."""
QUIET = 16
"""Steps that may pass before the other side is told how many there were, where nothing else came of them."""
Frame = dict[str, Any]
"""Commands (`add`, `drop`, `units`), or a report of the loop."""


@runtime_checkable
class Compute(Protocol):
    """A function from texts to answers, as many."""

    def __call__(self, items: list[Any], /) -> Sequence[Any]: ...


class OnePassText:
    """A text that is computed in one pass, together with others of the same `key`."""

    def __init__(self, key: Hashable, compute: Compute, item: Any, answer: "asyncio.Future[Any]") -> None:
        self.key, self.compute, self.item, self.answer = key, compute, item, answer
        self.dropped = False

    def set(self, answer: Any) -> None:
        """Answer it, on the event loop, unless nobody waits any more."""
        if not self.dropped and not self.answer.done():
            if isinstance(answer, Exception):
                self.answer.set_exception(answer)
            else:
                self.answer.set_result(answer)


class Link(ABC):
    """The model's end of a link."""

    @abstractmethod
    def take(self, *, wait: bool) -> list[Frame] | None:
        """Return the commands that have come, after waiting for one if `wait`; None when no more will come."""

    @abstractmethod
    def send(self, report: Frame) -> None:
        """Send a report to the event loop."""


class QueueLink(Link):
    """A link to a thread of the same process; `deliver` is called on the event loop with each report."""

    def __init__(self, deliver: Callable[[Frame], None]) -> None:
        self.deliver = deliver
        self.commands: list[Frame] = []
        self.wake, self.closing = threading.Condition(), False
        self.loop: asyncio.AbstractEventLoop | None = None

    def put(self, command: Frame) -> None:
        with self.wake:
            self.commands.append(command)
            self.wake.notify()

    def close(self) -> None:
        with self.wake:
            self.closing = True
            self.wake.notify()

    def take(self, *, wait: bool) -> list[Frame] | None:
        with self.wake:
            while wait and not (self.commands or self.closing):
                self.wake.wait()
            commands, self.commands = self.commands, []
        return None if self.closing else commands

    def send(self, report: Frame) -> None:
        if self.loop is not None and not self.loop.is_closed():  # else nobody waits any more
            self.loop.call_soon_threadsafe(self.deliver, report)


class JobLoop:
    """Decodes jobs, and computes texts of one pass, until its link is closed."""

    def __init__(self, link: Link, scheduler: Scheduler | None, make_scheduler: Callable[[], Scheduler] | None) -> None:
        self.link, self.scheduler, self.make_scheduler = link, scheduler, make_scheduler
        self.jobs: dict[int, tuple[int, bool]] = {}
        """For the scheduler's tickets: the number that the other side knows a job by, and whether it wants tokens."""
        self.tickets: dict[int, int] = {}
        self.units: deque[OnePassText] = deque()
        self.rows: list[int] = []
        """Rows of the steps that were not told of yet."""

    @property
    def is_decoding(self) -> bool:
        return self.scheduler is not None and self.scheduler.busy

    def run(self) -> None:
        while (commands := self.link.take(wait=not (self.is_decoding or self.units))) is not None:
            for command in commands:
                self.obey(command)
            if self.is_decoding:
                self.step()
            if self.units:
                self.compute_some()

    def obey(self, command: Frame) -> None:
        for number, each_token, job in command.get("add", ()):
            self.add(number, each_token, job)
        for number in command.get("drop", ()):
            if (ticket := self.tickets.pop(number, None)) is not None:
                assert self.scheduler is not None
                del self.jobs[ticket]
                self.scheduler.cancel(ticket)
        if command.get("drop") and not self.is_decoding:
            self.tell()  # no step will follow that would say that nothing runs any more
        self.units.extend(command.get("units", ()))

    def add(self, number: int, each_token: bool, job: Job) -> None:
        assert self.scheduler is not None
        try:
            ticket = self.scheduler.add(job)
        except Exception as error:
            self.fail(error, [number])
        else:
            self.jobs[ticket], self.tickets[number] = (number, each_token), ticket

    def step(self) -> None:
        """Compute one token for every row, and tell what came of it."""
        assert self.scheduler is not None
        assert self.make_scheduler is not None
        rows = self.scheduler.running
        try:
            events = self.scheduler.step()
        except Exception as error:  # the scheduler may be in any state, so the next jobs get another
            lost, self.jobs, self.tickets = list(self.tickets), {}, {}
            self.scheduler = self.make_scheduler()
            self.fail(error, lost)
            return
        self.rows.append(self.scheduler.running or rows)
        tokens, done = [], []
        for event in events:
            number, each_token = self.jobs.get(event.ticket, (0, False))
            if number and isinstance(event, Finished):
                del self.jobs[event.ticket], self.tickets[number]
                done.append((number, event.hypotheses))
            elif each_token:
                tokens.append((number, *event[1:]))
        if tokens or done or len(self.rows) >= QUIET or not self.scheduler.busy:
            self.tell(tokens=tokens, done=done)

    def fail(self, error: Exception, lost: Sequence[int]) -> None:
        reply = as_reply(error)
        facts = facts_of(error) if reply.status >= 500 else None
        self.tell(failed=lost, reply=[reply.status, str(reply), reply.code, reply.retry_after], facts=facts)

    def tell(self, **facts: Any) -> None:
        assert self.scheduler is not None
        busy = {"running": self.scheduler.running, "waiting": self.scheduler.waiting, "rows": self.rows}
        self.link.send(busy | facts)
        self.rows = []

    def compute_some(self) -> None:
        """Compute the texts that wait and are of one kind with the first; a wrong one among them fails alone."""
        key, batch, waiting = self.units[0].key, list[OnePassText](), deque[OnePassText]()
        for unit in self.units:
            if not unit.dropped:
                (batch if unit.key == key and len(batch) < AT_ONCE else waiting).append(unit)
        self.units = waiting
        if batch and not self.answer(batch):
            for unit in batch:
                self.answer([unit])

    def answer(self, batch: list[OnePassText]) -> bool:
        """Answer these texts. Return False where one of several is wrong, and each must be tried by itself."""
        try:
            answers = batch[0].compute([unit.item for unit in batch])
        except Exception as error:
            if len(batch) > 1:
                return False
            facts = None if isinstance(error, ClearheadError) else facts_of(error)
            self.link.send({"answers": [(batch[0], as_reply(error))], "facts": facts})
            return True
        self.link.send({"answers": list(zip(batch, answers, strict=True))})
        return True


class RunningJob:
    """A job as a request sees it: its events as they come, an error for the last where it failed.

    `each_token`: the tokens are wanted as they are chosen, and not only when the job has finished.
    """

    def __init__(self, job: Job, *, each_token: bool) -> None:
        self.job, self.each_token = job, each_token
        self.events: deque[Event | Exception] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.done = False

    async def next_event(self) -> Event:
        """Return the next event; raise the error that the job failed with."""
        if not self.events:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        event = self.events.popleft()
        if isinstance(event, Exception):
            raise event
        return event

    def put(self, event: Event | Exception) -> None:
        self.done = self.done or not isinstance(event, Chosen)
        self.events.append(event)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class Jobs(ABC):
    """A job loop as the event loop sees it."""

    def __init__(self, name: str, front: Front) -> None:
        self.name, self.front = name, front
        self.decodings: dict[int, RunningJob] = {}
        self.numbers: dict[RunningJob, int] = {}
        self.next_number = 0
        self.adding: list[tuple[int, bool, Job]] = []
        self.dropping: list[int] = []
        self.load = 0
        """Rows that its jobs take, running or waiting."""
        self.told = 0, 0
        """Jobs that run and that wait, as the loop has last told."""

    def count(self) -> tuple[int, int]:
        """Return how many jobs run and how many wait."""
        return self.told

    @abstractmethod
    def send(self, command: Frame) -> None:
        """Send commands to the loop."""

    def add(self, decoding: RunningJob) -> None:
        """Hand over a job."""
        self.next_number += 1
        self.decodings[self.next_number], self.numbers[decoding] = decoding, self.next_number
        self.load += decoding.job.rows
        self.flush_soon()
        self.adding.append((self.next_number, decoding.each_token, decoding.job))

    def drop(self, decoding: RunningJob) -> bool:
        """Take a job back, wherever it is; return False where it is not here."""
        number = self.numbers.get(decoding)
        if number is None:
            return False
        self.forget(number)
        self.flush_soon()
        self.dropping.append(number)
        return True

    def flush_soon(self) -> None:
        """Send what is collected in this round of the event loop at its end, as one frame."""
        if not (self.adding or self.dropping):
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self.send({"add": self.adding, "drop": self.dropping})
        self.adding, self.dropping = [], []

    def take_report(self, report: Frame) -> None:
        """Give everyone what the loop has sent for them."""
        metrics = self.front.metrics
        if "rows" in report:
            for rows in report["rows"]:
                metrics.observe("batch_rows", float(rows), model=self.name)
            metrics.count("steps_total", float(len(report["rows"])), model=self.name)
            self.told = report["running"], report["waiting"]
        for number, token, log_prob, candidates in report.get("tokens", ()):
            if (decoding := self.decodings.get(number)) is not None:
                decoding.put(Chosen(number, token, log_prob, tuple(map(tuple, candidates))))
        for number, hypotheses in report.get("done", ()):
            if (decoding := self.forget(number)) is not None:
                decoding.put(Finished(number, hypotheses))
        failed, answers = report.get("failed", ()), report.get("answers", ())
        if report.get("facts") is not None:
            self.front.logs.event("failure", **report["facts"], model=self.name, lost=len(failed) + len(answers))
        for number in failed:
            status, message, code, retry_after = report["reply"]
            if (decoding := self.forget(number)) is not None:
                decoding.put(ApiError(status, message, code=code, retry_after=retry_after))
        for unit, answer in answers:
            unit.set(answer)

    def forget(self, number: int) -> RunningJob | None:
        decoding = self.decodings.pop(number, None)
        if decoding is not None:
            del self.numbers[decoding]
            self.load -= decoding.job.rows
        return decoding


class ModelThread(Jobs):
    """A thread with a job loop, from `start` to `close`."""

    def __init__(
        self,
        name: str,
        front: Front,
        scheduler: Scheduler | None,
        make_scheduler: Callable[[], Scheduler] | None,
    ) -> None:
        super().__init__(name, front)
        self.link = QueueLink(self.take_report)
        self.job_loop = JobLoop(self.link, scheduler, make_scheduler)
        self.thread = threading.Thread(target=self.job_loop.run, name=f"model {name}", daemon=True)

    def count(self) -> tuple[int, int]:
        scheduler = self.job_loop.scheduler
        return (0, 0) if scheduler is None else (scheduler.running, scheduler.waiting)

    def send(self, command: Frame) -> None:
        self.link.put(command)

    def start(self) -> None:
        """Start the thread; reports go to the event loop that is running."""
        self.link.loop = asyncio.get_running_loop()
        self.thread.start()

    def close(self) -> None:
        """Stop the thread after the step it is in."""
        self.link.close()
        if self.thread.is_alive():
            self.thread.join(30)
