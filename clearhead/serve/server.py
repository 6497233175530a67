"""The server: a socket on this machine, the guard in front of the app, and uvicorn between them."""

import contextlib
import errno
import functools
import secrets
import socket
from pathlib import Path
from typing import final

from clearhead.errors import OptionError, RunError
from clearhead.serve.app import make_app
from clearhead.serve.connections import Connection, Limits, QuietServer, quiet_config
from clearhead.serve.explorer import Explorer
from clearhead.serve.guard import Guard, ServerAddress, check_token

STATIC = Path(__file__).parent / "static"
"""The page, as `make web` builds it."""


def check_page() -> None:
    if not (STATIC / "index.html").is_file():
        raise RunError(f"the explorer's page is not built: there is no {STATIC / 'index.html'}; run `make web`")


@final
class Server:
    """The explorer's server. It listens from when it is made; port 0 is any that is free, in `place.address`.

    A `token` of one's own, with a fixed port, keeps the address the same when the server is started again.
    """

    def __init__(
        self,
        explorer: Explorer,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        static: Path | None = None,
        limits: Limits = Limits(),
    ) -> None:
        token = secrets.token_urlsafe(24) if token is None else check_token(token)
        app = make_app(explorer, static or STATIC)
        self.socket = listen(host, port)
        self.place = ServerAddress(host=host, port=self.socket.getsockname()[1], token=token)
        connection = functools.partial(Connection, limits)
        self.uvicorn = QuietServer(quiet_config(Guard(app, self.place), connection, loop="asyncio", lifespan="off"))

    def run(self) -> None:
        """Serve until stopped; Ctrl-C is a way to stop it."""
        with contextlib.suppress(KeyboardInterrupt), self.socket:
            self.uvicorn.run(sockets=[self.socket])

    def stop(self) -> None:
        """Stop the server from another thread; answers under way are still sent."""
        self.uvicorn.should_exit = True


def check_port(host: str, port: int) -> None:
    """Raise OptionError where nothing can listen at a port: it is taken, or the address is none of this machine."""
    listen(host, port).close()


def listen(host: str, port: int) -> socket.socket:
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise OptionError(f"host: there is no {host!r} on this machine ({error}); take 127.0.0.1") from None
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
