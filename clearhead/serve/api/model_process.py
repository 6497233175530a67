"""The model in a process of its own, so that no request is read while a step waits for Python's lock, nor the reverse.

A step of a small model is hundreds of short operations, each of which gives the lock up and asks for it again. With the
event loop in the same process both spend more time on that than on their work: docs/decisions/0019 has the figures.

The process is forked before the server has any thread: it has the weights already, shares their memory, and no file is
read again. Jobs and events go through a socket as JSON (`clearhead.serve.api.frames`). It ends when the other end of
the socket is closed, however that came about, and no signal of a terminal or of systemd ends it before that. Where it
dies itself, what is under way is answered with status 503, and the server stops: whoever started it starts it again.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast, final, runtime_checkable

import torch

from clearhead.decoding.scheduler import Chosen, Event, Finished, Job, Scheduler
from clearhead.serve.api.errors import ApiError, as_reply
from clearhead.serve.api.frames import (
    Frames,
    pack,
    read_candidates,
    read_hypothesis,
    read_job,
    write_hypothesis,
    write_job,
)
from clearhead.serve.api.logs import Logs, facts_of
from clearhead.serve.api.metrics import Metrics

AT_ONCE = 1 << 20
"""Bytes that are read from the socket at a time."""
QUIET = 16
"""Steps that may pass before the other side is told how many there were, where nothing else came of them."""
PATIENCE = 30.0
"""Seconds for the step that the process is in when it is told to end."""


def can_fork(device: torch.device) -> bool:
    """Check whether the model can be given a process of its own: not on a GPU, whose driver does not survive a fork.

    Nor on macOS, whose own libraries do not.
    """
    return device.type == "cpu" and hasattr(os, "fork") and sys.platform != "darwin"


@runtime_checkable
class Listener(Protocol):
    """A job, and the receiver of its events; `each_token`: an event for every token, not only at the end."""

    job: Job
    each_token: bool

    def put(self, event: Event | Exception, /) -> None: ...


@final
class ModelSide:
    """The model's process: it takes jobs, decodes them, and sends back their events."""

    def __init__(self, link: socket.socket, scheduler: Scheduler, make_scheduler: Callable[[], Scheduler]) -> None:
        self.link, self.scheduler, self.make_scheduler = link, scheduler, make_scheduler
        self.frames = Frames()
        self.jobs: dict[int, tuple[int, bool]] = {}
        """For the scheduler's tickets: the number that the other side knows a job by, and whether it wants tokens."""
        self.tickets: dict[int, int] = {}
        self.rows: list[int] = []
        """Rows of the steps that were not told of yet."""

    def run(self) -> None:
        """Decode until the other side closes the socket."""
        while self.take_commands():
            if self.scheduler.busy:
                self.step()

    def take_commands(self) -> bool:
        """Read what has come, and wait for it where there is nothing else to do; False when nothing will come."""
        try:
            data = self.link.recv(AT_ONCE, socket.MSG_DONTWAIT if self.scheduler.busy else 0)
        except BlockingIOError:
            return True
        for frame in self.frames.take(data):
            for number, each_token, job in frame["add"]:
                self.add(number, each_token, job)
            for number in frame["drop"]:
                if (ticket := self.tickets.pop(number, None)) is not None:
                    del self.jobs[ticket]
                    self.scheduler.cancel(ticket)
            if frame["drop"] and not self.scheduler.busy:
                self.tell()  # no step will follow that would say that nothing runs any more
        return bool(data)

    def add(self, number: int, each_token: bool, job: list[Any]) -> None:
        try:
            ticket = self.scheduler.add(read_job(job))
        except Exception as error:
            self.fail(error, [number])
        else:
            self.jobs[ticket], self.tickets[number] = (number, each_token), ticket

    def step(self) -> None:
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
                done.append((number, [write_hypothesis(hypothesis) for hypothesis in event.hypotheses]))
            elif each_token:
                tokens.append((number, *event[1:]))
        if tokens or done or len(self.rows) >= QUIET or not self.scheduler.busy:
            self.tell(tokens=tokens, done=done)

    def fail(self, error: Exception, lost: Sequence[int]) -> None:
        reply = as_reply(error)
        facts = facts_of(error) if reply.status >= 500 else None
        self.tell(failed=lost, reply=[reply.status, str(reply), reply.code, reply.retry_after], facts=facts)

    def tell(self, **facts: Any) -> None:
        busy = {"running": self.scheduler.running, "waiting": self.scheduler.waiting, "rows": self.rows}
        self.link.sendall(pack(busy | facts))
        self.rows = []


@final
class ModelProcess(asyncio.Protocol):
    """A process with a scheduler, as the event loop sees it, from `fork` over `connect` to `close`.

    `on_lost` is called if the process ends by itself.
    """

    def __init__(self, name: str, link: socket.socket, pid: int, *, metrics: Metrics, logs: Logs) -> None:
        self.name, self.link, self.pid, self.metrics, self.logs = name, link, pid, metrics, logs
        self.on_lost: Callable[[], None] = lambda: None
        self.frames = Frames()
        self.listeners: dict[int, Listener] = {}
        self.numbers: dict[Listener, int] = {}
        self.next_number = 0
        self.adding: list[tuple[int, bool, list[Any]]] = []
        self.dropping: list[int] = []
        self.transport: asyncio.Transport | None = None
        self.closing, self.lost = False, False
        self.load = 0
        """Rows that its jobs take, running or waiting."""
        self.running, self.waiting = 0, 0
        """Jobs, as the process has last told."""

    @classmethod
    def fork(
        cls,
        name: str,
        make_scheduler: Callable[[], Scheduler],
        *,
        scheduler: Scheduler,
        threads: int,
        inherited: Iterable[socket.socket],
        metrics: Metrics,
        logs: Logs,
    ) -> "ModelProcess":
        """Fork a process that decodes jobs with this many torch threads; it closes the sockets that it inherits.

        The process that forks must not have computed with several threads: the new one would wait for those.
        """
        ours, theirs = socket.socketpair()
        gc.freeze()  # else a collection would write to every object, and so copy the memory that is shared
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy has threads of its own, and is prepared
            pid = os.fork()
        if pid:
            theirs.close()
            return cls(name, ours, pid, metrics=metrics, logs=logs)
        status = 1
        try:
            for signal_number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(signal_number, signal.SIG_IGN)
            for inherited_socket in (ours, *inherited):
                inherited_socket.close()
            torch.set_num_threads(threads)
            ModelSide(theirs, scheduler, make_scheduler).run()
            status = 0
        except OSError:  # the other side has gone
            status = 0
        except BaseException as error:
            logs.failure(error, model=name)
        finally:
            os._exit(status)  # nothing of what was inherited is to be ended twice

    async def connect(self) -> None:
        """Listen to the process on the loop that is running."""
        self.link.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=self.link)

    def add(self, listener: Listener) -> None:
        """Hand over a job; ApiError where there is no process to do it."""
        if self.lost:
            raise self.gone()
        self.next_number += 1
        self.listeners[self.next_number], self.numbers[listener] = listener, self.next_number
        self.load += listener.job.rows
        self.flush_soon()
        self.adding.append((self.next_number, listener.each_token, write_job(listener.job)))

    def drop(self, listener: Listener) -> None:
        """Take a job back, wherever it is."""
        if (number := self.numbers.pop(listener, None)) is not None:
            del self.listeners[number]
            self.load -= listener.job.rows
            self.flush_soon()
            self.dropping.append(number)

    def flush_soon(self) -> None:
        """Send what is collected in this round of the loop at its end, as one frame."""
        if not (self.adding or self.dropping):
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        if self.transport is not None and not self.lost:
            self.transport.write(pack({"add": self.adding, "drop": self.dropping}))
        self.adding, self.dropping = [], []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for frame in self.frames.take(data):
            for rows in frame["rows"]:
                self.metrics.observe("batch_rows", float(rows), model=self.name)
            self.metrics.count("steps_total", float(len(frame["rows"])), model=self.name)
            self.running, self.waiting = frame["running"], frame["waiting"]
            for number, token, log_prob, candidates in frame.get("tokens", ()):
                if (listener := self.listeners.get(number)) is not None:
                    listener.put(Chosen(number, token, log_prob, read_candidates(candidates)))
            for number, hypotheses in frame.get("done", ()):
                if (listener := self.forget(number)) is not None:
                    listener.put(Finished(number, list(map(read_hypothesis, hypotheses))))
            if "failed" in frame:
                self.fail(frame)

    def forget(self, number: int) -> Listener | None:
        listener = self.listeners.pop(number, None)
        if listener is not None:
            del self.numbers[listener]
            self.load -= listener.job.rows
        return listener

    def fail(self, frame: dict[str, Any]) -> None:
        """Tell those whose jobs have failed; one that failed for no fault of its own is logged."""
        status, message, code, retry_after = frame["reply"]
        if frame["facts"] is not None:
            self.logs.event("failure", **frame["facts"], model=self.name, lost=len(frame["failed"]))
        for number in frame["failed"]:
            if (listener := self.forget(number)) is not None:
                listener.put(ApiError(status, message, code=code, retry_after=retry_after))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.closing:
            return
        self.lost = True
        listeners, self.listeners, self.numbers = list(self.listeners.values()), {}, {}
        self.logs.event("model_lost", model=self.name, lost=len(listeners), status=self.end())
        for listener in listeners:
            listener.put(self.gone())
        self.on_lost()

    def gone(self) -> ApiError:
        message = f"the process of {self.name} has ended, and the server is stopping; try again later"
        return ApiError(503, message, code="model_lost", retry_after=5)

    def close(self) -> None:
        """End the process after the step it is in."""
        self.closing = True
        if not self.lost:
            self.link.shutdown(socket.SHUT_RDWR)
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until and not self.has_ended():
                time.sleep(0.005)
            self.end()

    def has_ended(self) -> bool:
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return status is not None

    def end(self) -> int:
        """Return the exit status of the process, the number of a signal below 0; end it if it is still there."""
        os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
