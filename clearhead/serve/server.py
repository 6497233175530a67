"""The server: a socket, the guard and the tables of routes behind it, and uvicorn between them."""

import contextlib
import errno
import ipaddress
import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from clearhead.errors import OptionError
from clearhead.serve.app import App, Front, Service
from clearhead.serve.connections import QuietServer, quiet_config
from clearhead.serve.guard import Guard, ServerAddress, check_token
from clearhead.serve.limits import Limits
from clearhead.serve.logs import Logs


@dataclass(frozen=True, kw_only=True)
class Tls:
    """The files of a certificate, as uvicorn takes them."""

    certificate: Path
    key: Path | None = None

    def check(self) -> None:
        """Raise OptionError where they cannot be used, before anything is served."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise OptionError(f"ssl-certfile: {self.certificate} and its key cannot be used ({error})") from None


@final
class Server:
    """Serve tables of routes over HTTP. It listens as soon as it is made.

    Args:
        services: `Api` or `ExplorerPages`.
        host: Address to listen on.
        port: Port; 0 takes a free one, which `place` names.
        token: What a client must send. None asks for none, and only this machine can connect; the explorer then makes
            one. A given token and a fixed port keep the explorer's address the same after a restart.
        cors: Origins that may ask.
        tls: Certificate and key.
        limits: Limits on connections, sizes and times.
        logs: Where events are written.
    """

    def __init__(
        self,
        *services: Service,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        cors: Sequence[str] = (),
        tls: Tls | None = None,
        limits: Limits = Limits(),
        logs: Logs | None = None,
    ) -> None:
        if token is not None:
            check_token(token)
        elif any(service.private for service in services):
            token = secrets.token_urlsafe(24)
        if tls is not None:
            tls.check()
        self.services, self.limits = services, limits
        self.front = Front(limits=limits, logs=logs or Logs())
        self.state, self.logs = self.front.state, self.front.logs
        self.socket = listen(host, port, private=token is None)
        port, scheme = self.socket.getsockname()[1], "http" if tls is None else "https"
        self.place = ServerAddress(host=host, port=port, token=token, scheme=scheme)
        guard = Guard(self.place, origins=tuple(cors), limits=limits, state=self.state)
        app: ASGIApp = App(services, guard, self.front)
        if cors:
            methods, headers = ["GET", "POST"], ["Authorization", "Content-Type"]
            app = CORSMiddleware(app, allow_origins=list(cors), allow_methods=methods, allow_headers=headers)
        files = {} if tls is None else {"certificate": tls.certificate, "key": tls.key}
        self.draining_since: float | None = None
        config = quiet_config(app, limits, **files)
        self.uvicorn = QuietServer(config, drained=self.is_drained, most=limits.drain)

    @property
    def address(self) -> str:
        return self.place.origin

    def run(self) -> None:
        """Serve until told to stop, by SIGTERM, Ctrl-C or `stop`. RunError where the process of a model has died."""
        with contextlib.suppress(KeyboardInterrupt), self.socket:
            inherited = [self.socket]
            for service in self.services:
                service.fork(inherited, on_lost=self.stop)
            self.uvicorn.run(sockets=[self.socket])
        for service in self.services:
            service.check()

    def stop(self) -> None:
        """Stop taking requests, from another thread; those under way may end within the time of the drain."""
        self.uvicorn.signalled = True

    def is_drained(self) -> bool:
        """Return whether the server may end: nothing is under way any more, or the time for it is over."""
        if self.draining_since is None:
            self.draining_since, self.state.draining = time.monotonic(), True
            self.logs.event("draining", running=self.state.running, seconds=self.limits.drain)
        over = time.monotonic() - self.draining_since > self.limits.drain
        if over and self.state.running:
            self.logs.event("drain_over", running=self.state.running)
        return over or not self.state.running


def check_port(host: str, port: int, *, private: bool = False) -> None:
    """Raise OptionError where nothing can listen at a port: it is taken, or the address is none of this machine."""
    listen(host, port, private=private).close()


def listen(host: str, port: int, *, private: bool = False) -> socket.socket:
    """Return a socket that listens; `private`: OptionError where another machine could reach it."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise OptionError(f"host: there is no {host!r} on this machine ({error}); take 127.0.0.1") from None
    if private and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise OptionError(
            f"host: {host} can be reached from other machines, and there is no token, so anyone could use it; "
            "set CLEARHEAD_TOKEN, --token or --token-file, or leave out --host"
        )
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise OptionError(f"host: {host} is no address of this machine; take 127.0.0.1") from None
        problem = f"port {port} of {host} cannot be had" if port else f"there is no port to be had on {host}"
        raise OptionError(f"{problem} ({error.strerror}); choose another --port, or leave it out") from None
    return listening
