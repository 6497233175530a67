"""Connections: how many there may be, and how long one may be silent. uvicorn has no bound for either of its own.

A connection that sends nothing, or half of a request's head, is closed after a deadline. When there are as many as may
be, the silent one that has waited longest makes room for a new one; those that are being answered are never closed.
"""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, final

import h11
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

AT_ONCE = 32
"""Connections that are accepted before any of them is handled: asyncio takes as many as its backlog says."""
QUEUED = 2048
"""Connections that the kernel holds until they are accepted."""
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 52\r\n"
    b"Retry-After: 5\r\nConnection: close\r\n\r\nthere are too many connections: try again in seconds"
)
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most connections at once, and for how many seconds a client may keep the server waiting."""

    connections: int = 512
    head: float = 10.0
    """Seconds for the whole head of a request, from when it is accepted or has sent the first byte."""
    reading: float = 60.0
    """Seconds for a reply that is not read."""

    def within(self, files: int | None) -> int:
        """Return the maximum number of connections for a process that may open `files` files.

        >>> Limits().within(None), Limits().within(1024), Limits().within(256)
        (512, 512, 128)
        """
        return self.connections if files is None else max(1, min(self.connections, files // 2))


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
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)  # pyright: ignore[reportCallIssue]
        self.limits = limits
        self.deadline: asyncio.TimerHandle | None = None
        self.since = self.loop.time()
        """When it began to wait for the client."""

    @property
    def answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

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
        min(waiting, key=lambda connection: (connection.cycle is not None, connection.since)).transport.abort()
        return True

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.answering:
            self.stop_waiting()
        elif self.deadline is None:  # not put off by every byte
            self.since = self.loop.time()
            self.close_after(self.limits.head)

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()  # pyright: ignore[reportAttributeAccessIssue]

    def pause_writing(self) -> None:
        super().pause_writing()
        self.close_after(self.limits.reading)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the app that its client has gone, if it gave its scope a function `on_hang_up`."""
        self.stop_waiting()
        if self.answering:
            scope = self.cycle.scope
            scope["hung_up"] = True
            scope.get("on_hang_up", lambda: None)()
        super().connection_lost(exc)

    def close_after(self, seconds: float) -> None:
        self.stop_waiting()
        self.deadline = self.loop.call_later(seconds, self.transport.abort)

    def stop_waiting(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


@final
class Connection(Deadlines, H11Protocol):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A connection whose requests are read by h11, which is always there."""

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # it sent nonsense after its request, while the reply was under way
            self.transport.abort()


def quiet_config(app: Any, connection: Callable[..., asyncio.Protocol], **options: Any) -> Config:
    """Return the settings of a server that logs nothing, names no software and has no websockets.

    `connection` makes the protocol of each connection; `options` are further settings of uvicorn.
    """
    return Config(
        app,
        http=connection,  # pyright: ignore[reportArgumentType]
        backlog=AT_ONCE,
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        **options,
    )


@final
class QuietServer(uvicorn.Server):
    """uvicorn's server, accepting a few connections at a time, with one line on stderr if it cannot.

    `drained`, where there is one, is asked every tenth of a second once a signal has come: the server ends when it says
    so, or at a second signal.
    """

    def __init__(self, config: Config, drained: Callable[[], bool] | None = None) -> None:
        super().__init__(config)
        self.is_reported, self.drained, self.signalled = False, drained, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.drained is None:
            super().handle_exit(sig, frame)
        elif self.signalled:
            self.should_exit = self.force_exit = True
        else:
            self.signalled = True

    async def on_tick(self, counter: int) -> bool:
        over = await super().on_tick(counter)
        return over or (self.signalled and self.drained is not None and self.drained())

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
