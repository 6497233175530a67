"""Connections: how many there may be, and how long one may be silent. uvicorn has no bound for either of its own.

A connection that sends nothing, or half of a request's head, is closed after a deadline; half of a body has another
(`clearhead.serve.guard`). When there are as many as may be, the one that has kept the server waiting longest makes room
for a new one; those that are being answered are never closed.

Requests are read by httptools, a parser in C, where it is installed, and by h11 where not. h11 is written in Python,
and takes longer for a request than all that the server does with it but for the model's work.
"""

import asyncio
import errno
import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS, ServerState

from clearhead.serve.limits import Limits

AT_ONCE = 32
"""Connections that are accepted before any of them is handled: asyncio takes as many as its backlog says."""
QUEUED = 2048
"""Connections that the kernel holds until they are accepted."""
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 52\r\n"
    b"Retry-After: 5\r\nConnection: close\r\n\r\nthere are too many connections: try again in seconds"
)
MOST_HEAD = 65_536
"""Bytes of a request's head: h11's limit; httptools has none."""
LAST_SECONDS = 5.0
"""Seconds in which the process ends once the time for requests under way is over, or it is ended."""
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def most_files() -> int | None:
    """Return how many files this process may have open; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


class Deadlines(asyncio.Protocol):
    """A connection with a deadline whenever the next move is the client's: what is added to uvicorn's own."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    connections: set[Any]
    cycle: Any

    def __init__(
        self,
        limits: Limits,
        bodies: "dict[Deadlines, None]",
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)  # pyright: ignore[reportCallIssue]
        self.limits, self.bodies = limits, bodies
        """`bodies`: the connections that have sent a part of a body, the first first; all of them share it."""
        self.deadline: asyncio.TimerHandle | None = None
        self.unread: asyncio.TimerHandle | None = None
        """When it is closed for what it has to send, and for what it has to read: a client may do one and not the
        other.
        """
        self.since = self.loop.time()
        """When it began to wait for the client."""

    @property
    def asking(self) -> bool:
        """Return whether the head of a request has come, and the reply to it has not been sent."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def answering(self) -> bool:
        return self.asking and not self.cycle.more_body

    def connection_made(self, transport: Any) -> None:  # an asyncio.Transport, of which uvloop's own is no subclass
        super().connection_made(transport)
        if len(self.connections) > self.limits.within(most_files()) and not self.make_room():
            transport.write(FULL)
            transport.close()
            return
        self.close_after(self.limits.head)

    def make_room(self) -> bool:
        """Close the connection that has waited longest, idle ones first; return False if none waits."""
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, Deadlines)
            and connection is not self
            and not connection.answering
            and not connection.transport.is_closing()
        ]
        if not waiting:
            return False
        min(waiting, key=lambda connection: (connection.cycle is not None, connection.since)).drop()
        return True

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.asking:
            self.stop_waiting()
            self.bound_bodies()
        elif self.deadline is None:  # not put off by every byte
            self.since = self.loop.time()
            self.close_after(self.limits.head)

    def bound_bodies(self) -> None:
        """Note whether a part of the body is missing; where too many wait for theirs, close the first of them."""
        if not self.cycle.more_body:
            self.bodies.pop(self, None)
        elif self not in self.bodies:
            self.since, self.bodies[self] = self.loop.time(), None
            if len(self.bodies) > max(1, min(self.limits.bodies, self.limits.within(most_files()) // 2)):
                first = next(iter(self.bodies))
                del self.bodies[first]
                first.drop()

    def on_response_complete(self) -> None:
        self.bodies.pop(self, None)
        self.since = self.loop.time()
        super().on_response_complete()  # pyright: ignore[reportAttributeAccessIssue]

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread = self.loop.call_later(self.limits.reading, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stop_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the app that its client has gone, if it gave its scope a function `on_hang_up`."""
        self.stop_waiting()
        self.stop_unread()
        self.bodies.pop(self, None)
        for cycle in self.unanswered():
            cycle.disconnected = True
            cycle.message_event.set()
            cycle.scope["hung_up"] = True
            cycle.scope.get("on_hang_up", lambda: None)()
        super().connection_lost(exc)

    def unanswered(self) -> list[Any]:
        """Return what is being answered, and the requests that were sent after it without waiting."""
        return [self.cycle] if self.asking else []

    def drop(self) -> None:
        """Close the connection at once. Nothing is written to it any more: uvloop would raise."""
        for cycle in self.unanswered():
            cycle.disconnected = True
        self.transport.abort()

    def close_after(self, seconds: float) -> None:
        self.stop_waiting()
        self.deadline = self.loop.call_later(seconds, self.drop)

    def stop_waiting(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def stop_unread(self) -> None:
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None


class Connection(Deadlines, H11Protocol):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A connection whose requests are read by h11, which is always there."""

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # it sent nonsense after its request, while the reply was under way
            self.transport.abort()


def connection_class() -> Callable[..., Any]:
    """Return the class of connections; it takes limits and half-sent bodies first, then what uvicorn gives."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return Connection

    class FastConnection(Deadlines, HttpToolsProtocol):  # pyright: ignore[reportIncompatibleVariableOverride]
        """A connection whose requests are read by httptools."""

        head = 0
        """Bytes that came since the last request was complete, of a head that is not."""
        cycles: tuple[Any, ...] = ()
        """Requests that are not answered: uvicorn's `cycle` is the one that came last."""

        def data_received(self, data: bytes) -> None:
            self.head += len(data)
            super().data_received(data)
            if self.head > MOST_HEAD and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            if not self.url.startswith(b"/"):  # h11 hands it on as it is, and the guard refuses it
                raise ValueError("a request names a path, and nothing before it")

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self.head = 0
            self.cycles = (*self.unanswered(), self.cycle)

        def unanswered(self) -> list[Any]:
            return [cycle for cycle in self.cycles if not cycle.response_complete]

        def on_body(self, body: bytes) -> None:
            super().on_body(body)
            self.head = 0

    return FastConnection


def quiet_config(app: Any, limits: Limits, *, certificate: Path | None = None, key: Path | None = None) -> Config:
    """Return the settings of a server that logs nothing, names no software and has no websockets."""
    return Config(
        app,
        http=functools.partial(connection_class(), limits, {}),  # pyright: ignore[reportArgumentType]
        loop="auto",  # uvloop where it is installed
        lifespan="on",
        backlog=AT_ONCE,
        timeout_keep_alive=limits.idle,  # pyright: ignore[reportArgumentType]
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )


class QuietServer(uvicorn.Server):
    """uvicorn's server, accepting a few connections at a time, with one line on stderr if it cannot.

    `drained` is asked every tenth of a second once it is told to stop: the server ends when it says so. A second signal
    ends the process at once, whatever it computes: it is then the system that obeys it, and no longer Python.
    """

    def __init__(self, config: Config, *, drained: Callable[[], bool], most: float) -> None:
        super().__init__(config)
        self.is_reported, self.drained, self.most, self.signalled = False, drained, most, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signalled = True
        for number in HANDLED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        # A thread that computes for ever, or a step that never ends, must not keep the process.
        end = threading.Timer(self.most + LAST_SECONDS, os._exit, (1,))
        end.daemon = True
        end.start()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or (self.signalled and self.drained())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self.tell)
        await super().startup(sockets)
        for listening in sockets or []:
            # uvicorn set it to AT_ONCE, and the kernel may hold more than are accepted at once
            listening.listen(QUEUED)

    def tell(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report once that no more connections can be accepted; asyncio would write a traceback for each."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in OUT_OF_FILES:
            loop.default_exception_handler(context)
        elif not self.is_reported:
            self.is_reported = True
            print(
                f"no more connections can be accepted ({error.strerror}): close other pages, or raise `ulimit -n`",
                file=sys.stderr,
            )
