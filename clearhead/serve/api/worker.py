"""A worker: the one thread that uses a run's model. Requests hand it jobs and texts, and get back what came of them.

Jobs that are decoded go to a scheduler and share its batch; with `fork` that is in a process of its own, or in several,
each with a batch. Texts that take one pass (classes, blanks, vectors) are collected: what waits is computed together.
All that the event loop and the thread share is an inbox, under a lock, and what is handed back, which goes through the
loop.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol, final, runtime_checkable

from clearhead.decoding.scheduler import Chosen, Event, Finished, Job, Scheduler
from clearhead.errors import ClearheadError
from clearhead.serve.api.errors import ApiError, as_reply
from clearhead.serve.api.limits import ApiLimits
from clearhead.serve.api.logs import Logs
from clearhead.serve.api.metrics import Metrics
from clearhead.serve.api.model_process import ModelProcess

AT_ONCE = 64
"""Texts that are computed in one pass."""
LONGEST_WAIT = 30
"""The most seconds that a client is told to wait before it asks again."""


@runtime_checkable
class Compute(Protocol):
    """A function from texts to answers, as many."""

    def __call__(self, items: list[Any], /) -> Sequence[Any]: ...


@final
class Decoding:
    """A job as the event loop sees it: its events as they come, an error for the last where it failed.

    `each_token`: the tokens are wanted as they are chosen, and not only when the job has finished.
    """

    def __init__(self, job: Job, *, each_token: bool) -> None:
        self.job, self.each_token = job, each_token
        self.events: deque[Event | Exception] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.done = False
        self.ticket: int | None = None
        """The scheduler's number of it; the thread alone reads and writes it."""
        self.process: ModelProcess | None = None
        """The process that decodes it, where that is not the thread."""

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


@final
class Unit:
    """A text that is computed in one pass, together with others of the same `key`."""

    def __init__(self, key: Hashable, compute: Compute, item: Any, answer: "asyncio.Future[Any]") -> None:
        self.key, self.compute, self.item, self.answer = key, compute, item, answer
        self.dropped = False


@final
class Worker:
    """Computes what a run is asked for on a thread of its own, from `start` to `close`."""

    def __init__(
        self,
        name: str,
        make_scheduler: Callable[[], Scheduler] | None,
        *,
        limits: ApiLimits,
        metrics: Metrics,
        logs: Logs,
    ) -> None:
        self.name, self.make_scheduler, self.limits = name, make_scheduler, limits
        self.metrics, self.logs = metrics, logs
        self.pending = 0
        """Texts that were taken and are not done; the loop alone counts them, and their memory."""
        self.memory = 0
        self.seconds_each = 0.05
        """A moving average of the time that a text takes, for Retry-After."""
        self.scheduler = None if make_scheduler is None else make_scheduler()
        self.by_ticket: dict[int, Decoding] = {}
        self.units: deque[Unit] = deque()
        self.outbox: list[Callable[[], None]] = []
        self.inbox: list[Callable[[], None]] = []
        self.wake = threading.Condition()
        self.closing = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = threading.Thread(target=self.run, name=f"model {name}", daemon=True)
        self.processes: list[ModelProcess] = []

    def fork(self, threads: int, inherited: Iterable[socket.socket], *, replicas: int = 1) -> None:
        """Give the scheduler, if there is one, processes of its own; before there is any thread or loop."""
        if self.scheduler is None or self.make_scheduler is None:
            return
        for _ in range(replicas):
            process = ModelProcess.fork(
                self.name,
                self.make_scheduler,
                scheduler=self.scheduler,
                threads=threads,
                inherited=[*inherited, *(earlier.link for earlier in self.processes)],
                metrics=self.metrics,
                logs=self.logs,
            )
            self.processes.append(process)

    # What the event loop calls.

    async def start(self) -> None:
        """Start the thread; events go to the loop that is running."""
        self.loop = asyncio.get_running_loop()
        self.thread.start()
        for process in self.processes:
            await process.connect()

    def close(self) -> None:
        """Stop the thread, and the process, after the step it is in."""
        for process in self.processes:
            process.close()
        with self.wake:
            self.closing = True
            self.wake.notify()
        if self.thread.is_alive():
            self.thread.join(30)

    def decode(self, job: Job, *, each_token: bool = False) -> Decoding:
        """Submit a job; `taking` must have reserved room for it."""
        decoding = Decoding(job, each_token=each_token)
        if self.processes:
            decoding.process = min(self.processes, key=lambda process: process.load)
            decoding.process.add(decoding)
        else:
            self.hand_over(lambda: self.add(decoding))
        return decoding

    def cancel(self, decoding: Decoding) -> None:
        """Drop a job, wherever it is, and free its place; one that is done is left alone."""
        if not decoding.done:
            decoding.done = True
            if decoding.process is None:
                self.hand_over(lambda: self.drop(decoding))
            else:
                decoding.process.drop(decoding)

    async def compute(self, key: Hashable, compute: Compute, items: Sequence[Any]) -> list[Any]:
        """Return the answers to texts; those of other requests with the same key may be computed with them."""
        loop = asyncio.get_running_loop()
        units = [Unit(key, compute, item, loop.create_future()) for item in items]
        self.hand_over(lambda: self.units.extend(units))
        try:
            return [await unit.answer for unit in units]
        finally:
            for unit in units:
                unit.dropped = True
                if unit.answer.done() and not unit.answer.cancelled():
                    unit.answer.exception()  # read, or asyncio would report that nobody did

    @contextlib.contextmanager
    def taking(self, count: int, memory: int = 0) -> Iterator[None]:
        """Reserve room for a request's texts; ApiError where the queue is full, or their caches would not fit."""
        self.check_room(count, memory)
        self.pending += count
        self.memory += memory
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.pending -= count
            self.memory -= memory
            if count:  # none, where every text is blank
                # Texts are answered side by side, so each takes its share of the time that all of them took.
                seconds = (time.perf_counter() - begun) / (self.pending + count)
                self.seconds_each += 0.05 * (seconds - self.seconds_each)

    def check_room(self, count: int, memory: int) -> None:
        if count > self.limits.queue:
            raise ApiError(413, f"the request has {count} texts, and {self.limits.queue} are the most in the queue")
        if self.pending + count > self.limits.queue:
            message = f"{self.name} has {self.pending} texts to answer, and takes {self.limits.queue}; try again later"
            raise ApiError(429, message, code="queue_full", retry_after=self.retry_after())
        if memory > self.limits.memory:
            message = (
                f"the KV cache would take {memory / 1e6:,.0f} MB, and {self.limits.memory / 1e6:,.0f} are the most; "
                "ask for fewer tokens, or for fewer texts at once"
            )
            raise ApiError(413, message, code="cache_too_large")
        if self.memory + memory > self.limits.memory:
            message = f"{self.name} has no memory for another KV cache now; try again later"
            raise ApiError(503, message, code="out_of_memory", retry_after=self.retry_after())

    def retry_after(self) -> int:
        """Return in how many seconds half of what waits will be done, as far as one can tell."""
        return max(1, min(LONGEST_WAIT, round(self.pending * self.seconds_each / 2)))

    def hand_over(self, command: Callable[[], None]) -> None:
        with self.wake:
            self.inbox.append(command)
            self.wake.notify()

    # What the thread does.

    def run(self) -> None:
        while True:
            with self.wake:
                while not (self.inbox or self.units or self.closing or self.is_decoding):
                    self.wake.wait()
                if self.closing:
                    return
                commands, self.inbox = self.inbox, []
            for command in commands:
                command()
            if self.is_decoding:
                self.step()
            if self.units:
                self.compute_some()
            self.hand_back()

    @property
    def is_decoding(self) -> bool:
        return self.scheduler is not None and self.scheduler.busy

    def add(self, decoding: Decoding) -> None:
        assert self.scheduler is not None
        try:
            decoding.ticket = self.scheduler.add(decoding.job)
        except ClearheadError as error:
            self.tell(decoding, ApiError(400, str(error), code="invalid_value"))
        except Exception as error:
            self.fail(error, [decoding])
        else:
            self.by_ticket[decoding.ticket] = decoding

    def drop(self, decoding: Decoding) -> None:
        if decoding.ticket is not None and self.by_ticket.pop(decoding.ticket, None) is not None:
            assert self.scheduler is not None
            self.scheduler.cancel(decoding.ticket)
        self.measure()

    def step(self) -> None:
        """Compute one token for every row, and deliver the events."""
        assert self.scheduler is not None
        rows = self.scheduler.running
        try:
            events = self.scheduler.step()
        except Exception as error:
            self.start_again(error)
            return
        self.metrics.count("steps_total", model=self.name)
        self.metrics.observe("batch_rows", float(self.scheduler.running or rows), model=self.name)
        self.measure()
        for event in events:
            decoding = self.by_ticket.get(event.ticket)
            if decoding is None:
                continue
            if isinstance(event, Finished):
                del self.by_ticket[event.ticket]
                self.tell(decoding, event)
            elif decoding.each_token:
                self.tell(decoding, event)

    def start_again(self, error: Exception) -> None:
        """Fail every job that is under way, and go on with a new scheduler: the old one may be in any state."""
        assert self.make_scheduler is not None
        lost, self.by_ticket = list(self.by_ticket.values()), {}
        self.scheduler = self.make_scheduler()
        self.fail(error, lost)
        self.measure()

    def fail(self, error: Exception, lost: Sequence[Decoding]) -> None:
        self.logs.failure(error, model=self.name, lost=len(lost))
        for decoding in lost:
            self.tell(decoding, as_reply(error))

    def compute_some(self) -> None:
        """Compute the texts that wait and are of one kind with the first; a wrong one among them fails alone."""
        key, batch, waiting = self.units[0].key, list[Unit](), deque[Unit]()
        for unit in self.units:
            if unit.dropped:
                continue
            (batch if unit.key == key and len(batch) < AT_ONCE else waiting).append(unit)
        self.units = waiting
        if batch and not self.answer(batch):
            for unit in batch:
                self.answer([unit])

    def answer(self, batch: list[Unit]) -> bool:
        """Answer these texts. Return False where one of several is wrong, and each must be tried by itself."""
        try:
            answers = batch[0].compute([unit.item for unit in batch])
        except Exception as error:
            if len(batch) > 1:
                return False
            if not isinstance(error, ClearheadError | ApiError):
                self.logs.failure(error, model=self.name, lost=1)
            self.outbox.append(setter(batch[0].answer, error=as_reply(error)))
            return True
        for unit, answer in zip(batch, answers, strict=True):
            self.outbox.append(setter(unit.answer, result=answer))
        return True

    def tell(self, decoding: Decoding, event: Event | Exception) -> None:
        self.outbox.append(lambda: decoding.put(event))

    def hand_back(self) -> None:
        """Deliver all results of this round to the event loop in one call."""
        if not self.outbox or self.loop is None:
            return
        out, self.outbox = self.outbox, []

        def deliver() -> None:
            for callback in out:
                callback()

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(deliver)

    def measure(self) -> None:
        if self.scheduler is None:
            return
        counted = self.processes or [self.scheduler]
        self.metrics.set("sequences_running", float(sum(decoder.running for decoder in counted)), model=self.name)
        self.metrics.set("sequences_waiting", float(sum(decoder.waiting for decoder in counted)), model=self.name)


def setter(answer: "asyncio.Future[Any]", *, result: Any = None, error: Exception | None = None) -> Callable[[], None]:
    """Return a callback for the event loop that sets a future, unless it was cancelled."""

    def deliver() -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    return deliver
