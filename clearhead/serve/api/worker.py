"""A worker: what uses a run's model. Requests hand it jobs and texts, and get back what came of them.

Jobs that are decoded share the batch of a scheduler, on the worker's thread; with `fork` in a process of its own, or in
several, each with a batch. Texts that take one pass (classes, blanks, vectors) are always computed on the thread: those
that wait are computed together.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from clearhead.decoding.scheduler import Job, Scheduler
from clearhead.serve.api.jobs import Compute, Jobs, ModelThread, OnePassText, RunningJob
from clearhead.serve.api.model_process import ModelProcess
from clearhead.serve.app import Front
from clearhead.serve.errors import ApiError

LONGEST_WAIT = 30
"""The most seconds that a client is told to wait before it asks again."""


class Worker:
    """Computes what a run is asked for, from `start` to `close`. All of its methods are the event loop's."""

    def __init__(self, name: str, make_scheduler: Callable[[], Scheduler] | None, front: Front) -> None:
        self.name, self.make_scheduler, self.front, self.limits = name, make_scheduler, front, front.limits
        self.pending = 0
        """Texts that were taken and are not done, and the memory of their caches."""
        self.memory = 0
        self.seconds_each = 0.05
        """A moving average of the time that a text takes, for Retry-After."""
        self.scheduler = None if make_scheduler is None else make_scheduler()
        self.thread = ModelThread(name, front, self.scheduler, make_scheduler)
        self.processes: list[ModelProcess] = []

    @property
    def decoders(self) -> Sequence[Jobs]:
        return self.processes or [self.thread]

    def fork(
        self, threads: int, inherited: list[socket.socket], on_lost: Callable[[], None], *, replicas: int = 1
    ) -> None:
        """Give the scheduler, if there is one, processes of its own; before there is any thread or loop."""
        if self.scheduler is None or self.make_scheduler is None:
            return
        for _ in range(replicas):
            process = ModelProcess.fork(
                self.name, self.front, self.scheduler, self.make_scheduler, threads=threads, inherited=inherited
            )
            process.on_lost = on_lost
            inherited.append(process.link)
            self.processes.append(process)

    async def start(self) -> None:
        """Start the thread, and listen to the processes, on the loop that is running."""
        self.thread.start()
        for process in self.processes:
            await process.connect()

    def close(self) -> None:
        """Stop the thread and the processes, each after the step it is in."""
        for process in self.processes:
            process.close()
        self.thread.close()

    def decode(self, job: Job, *, each_token: bool = False) -> RunningJob:
        """Submit a job; `taking` must have reserved room for it."""
        decoding = RunningJob(job, each_token=each_token)
        min(self.decoders, key=lambda decoder: decoder.load).add(decoding)
        return decoding

    def cancel(self, decoding: RunningJob) -> None:
        """Drop a job, wherever it is, and free its place; one that is done is left alone."""
        if not decoding.done:
            decoding.done = True
            any(decoder.drop(decoding) for decoder in self.decoders)

    async def compute(self, key: Hashable, compute: Compute, items: Sequence[Any]) -> list[Any]:
        """Return the answers to texts; those of other requests with the same key may be computed with them."""
        loop = asyncio.get_running_loop()
        units = [OnePassText(key, compute, item, loop.create_future()) for item in items]
        self.thread.send({"units": units})
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

    def measure(self) -> None:
        if self.scheduler is not None:
            running, waiting = zip(*(decoder.count() for decoder in self.decoders), strict=True)
            self.front.metrics.set("sequences_running", float(sum(running)), model=self.name)
            self.front.metrics.set("sequences_waiting", float(sum(waiting)), model=self.name)
