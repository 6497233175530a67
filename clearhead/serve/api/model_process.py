"""The model in a process of its own, so that no request is read while a step waits for Python's lock, nor the reverse.

A step of a small model is hundreds of short operations, each of which gives the lock up and asks for it again. With the
event loop in the same process both spend more time on that than on their work: docs/decisions/0019 has the figures.

The process is forked before the server has any thread: it has the weights already, shares their memory, and no file is
read again. Jobs and events go through a socket as JSON (`Frames`). It ends when the other end of the socket is closed,
or with the process that forked it, and no signal of a terminal or of systemd ends it before that. Where it dies itself,
what is under way is answered with status 503, and the server stops: whoever started it starts it again.
"""

import asyncio
import dataclasses
import gc
import json
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch

from clearhead.decoding import Beam, Grammar, Greedy, Hypothesis, Rules, Sample
from clearhead.decoding.scheduler import Job, Scheduler
from clearhead.serve.api.jobs import Frame, JobLoop, Jobs, Link, RunningJob
from clearhead.serve.app import Front
from clearhead.serve.errors import ApiError
from clearhead.system import end_with_parent

HEAD = 4
"""Bytes of a frame's length."""
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Job, Rules, Grammar, Greedy, Sample, Beam, Hypothesis)}
"""All that a job or an event can hold."""
FIELDS = {kind: [field.name for field in dataclasses.fields(kind) if field.compare] for kind in KINDS.values()}


def pack(frame: dict[str, Any]) -> bytes:
    data = json.dumps(frame, separators=(",", ":"), default=write_part).encode()
    return len(data).to_bytes(HEAD) + data


def write_part(part: Any) -> dict[str, list[Any]]:
    return {type(part).__name__: [getattr(part, name) for name in FIELDS[type(part)]]}


def read_part(found: dict[str, Any]) -> Any:
    """Return an object as what it was before `pack`."""
    [name, *others] = found or [""]
    if others or name not in KINDS:
        return found
    kind = KINDS[name]
    return kind(**dict(zip(FIELDS[kind], map(as_tuples, found[name]), strict=True)))


def as_tuples(value: Any) -> Any:
    """Return lists, and lists in them, as the tuples that they were."""
    if not isinstance(value, list):
        return value
    return tuple(map(as_tuples, value) if value and isinstance(value[0], list) else value)


class Frames:
    """Bytes as they come, cut into frames: jobs and events as JSON, to and from the process that has the model.

    A frame is its length in four bytes, and a JSON object. A dataclass in it is an object with one name, that of its
    class, and the values of its fields. Numbers come out as they went in, to the last bit.

    >>> frames = Frames()
    >>> data = pack({"drop": [3]}) + pack({"add": []})
    >>> frames.take(data[:9]), frames.take(data[9:])
    ([], [{'drop': [3]}, {'add': []}])
    """

    def __init__(self) -> None:
        self.buffer = bytearray()

    def take(self, data: bytes) -> list[dict[str, Any]]:
        """Return the frames that are complete with these bytes."""
        buffer, frames, begin = self.buffer, [], 0
        buffer += data
        while len(buffer) >= begin + HEAD:
            end = begin + HEAD + int.from_bytes(buffer[begin : begin + HEAD])
            if len(buffer) < end:
                break
            frames.append(json.loads(buffer[begin + HEAD : end], object_hook=read_part))
            begin = end
        del buffer[:begin]
        return frames


AT_ONCE = 1 << 20
"""Bytes that are read from the socket at a time."""
PATIENCE = 30.0
"""Seconds for the step that the process is in when it is told to end."""


def can_fork(device: torch.device) -> bool:
    """Check whether the model can be given a process of its own: not on a GPU, whose driver does not survive a fork.

    Nor on macOS, whose own libraries do not.
    """
    return device.type == "cpu" and hasattr(os, "fork") and sys.platform != "darwin"


class SocketLink(Link):
    """A link to another process; it ends when the other end is closed."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.frames = link, Frames()

    def take(self, *, wait: bool) -> list[Frame] | None:
        try:
            data = self.link.recv(AT_ONCE, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        return self.frames.take(data) if data else None

    def send(self, report: Frame) -> None:
        self.link.sendall(pack(report))


class ModelProcess(Jobs, asyncio.Protocol):
    """A process with a job loop, as the event loop sees it, from `fork` over `connect` to `close`.

    `on_lost` is called if the process ends by itself.
    """

    def __init__(self, name: str, front: Front, link: socket.socket, pid: int) -> None:
        super().__init__(name, front)
        self.link, self.pid = link, pid
        self.on_lost: Callable[[], None] = lambda: None
        self.frames = Frames()
        self.transport: asyncio.Transport | None = None
        self.closing, self.lost = False, False

    @classmethod
    def fork(
        cls,
        name: str,
        front: Front,
        scheduler: Scheduler,
        make_scheduler: Callable[[], Scheduler],
        *,
        threads: int,
        inherited: Iterable[socket.socket],
    ) -> "ModelProcess":
        """Fork a process that decodes jobs with this many torch threads; it closes the sockets that it inherits.

        The process that forks must not have computed with several threads: the new one would wait for those.
        """
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        gc.freeze()  # else a collection would write to every object, and so copy the memory that is shared
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy has threads of its own, and is prepared
            pid = os.fork()
        if pid:
            theirs.close()
            return cls(name, front, ours, pid)
        status = 1
        try:
            end_with_parent(parent)
            for signal_number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(signal_number, signal.SIG_IGN)
            for inherited_socket in (ours, *inherited):
                inherited_socket.close()
            torch.set_num_threads(threads)
            JobLoop(SocketLink(theirs), scheduler, make_scheduler).run()
            status = 0
        except OSError:  # the other side has gone
            status = 0
        except BaseException as error:
            front.logs.failure(error, model=name)
        finally:
            os._exit(status)  # nothing of what was inherited is to be ended twice

    async def connect(self) -> None:
        """Listen to the process on the loop that is running."""
        self.link.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=self.link)

    def add(self, decoding: RunningJob) -> None:
        """Hand over a job; ApiError where there is no process to do it."""
        if self.lost:
            raise self.gone()
        super().add(decoding)

    def send(self, command: Frame) -> None:
        if self.transport is not None and not self.lost:
            self.transport.write(pack(command))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for frame in self.frames.take(data):
            self.take_report(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.closing:
            return
        self.lost = True
        decodings, self.decodings, self.numbers = list(self.decodings.values()), {}, {}
        self.front.logs.event("model_lost", model=self.name, lost=len(decodings), status=self.end())
        for decoding in decodings:
            decoding.put(self.gone())
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
