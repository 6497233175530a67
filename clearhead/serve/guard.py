"""The guard between the network and the explorer: a request that is not allowed goes no further.

A page of another site can send requests to this machine, and a name of its own can be made to point here. So every
address begins with a random token, the Host must be one the server was started for, and an Origin must be its own.
"""

import asyncio
import ipaddress
import re
import secrets
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import final

from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.errors import OptionError

MOST_BYTES = 1_000_000
"""The most bytes of a request's body."""
MOST_ADDRESS = 8192
PATIENCE = 20.0
"""Seconds in which a body must have arrived."""
LEAST_TOKEN = 16
"""The fewest characters of a token that somebody chose: with fewer, a program on this machine could try them all."""
METHODS = ("GET", "HEAD", "POST")
PLAIN_PATH = re.compile(rb"/([A-Za-z0-9_-][A-Za-z0-9_.-]*/)*([A-Za-z0-9_-][A-Za-z0-9_.-]*)?")
"""A path without leading dots, escapes or empty parts: all that is served has such a name."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; object-src 'none'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@final
@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The server's address: the host it was started for, the port it got, and the token of every address."""

    host: str
    port: int
    token: str

    @property
    def address(self) -> str:
        host = "127.0.0.1" if self.everywhere else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/{self.token}/"

    @property
    def everywhere(self) -> bool:
        """Return whether it listens on every network of the machine."""
        return self.host in ("0.0.0.0", "::")

    def knows(self, host: str) -> bool:
        """Return whether a Host header names this server. Listening everywhere, any IP will do, but only its own
        name.
        """
        name, port = split_host(host)
        if port != self.port:
            return False
        if name in ("127.0.0.1", "localhost", "::1", self.host.lower()):
            return True
        return self.everywhere and (is_number(name) or name == socket.gethostname().lower())


def check_token(token: str) -> str:
    """Return a token that somebody chose for the address, or say why it cannot be one.

    >>> check_token("lesson-7-kepler-school")
    'lesson-7-kepler-school'
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]*", token):
        raise OptionError(
            "token: it stands in addresses and headers, so it may have only the letters A to Z and a to z, digits, "
            "- and _; this one has something else"
        )
    if len(token) < LEAST_TOKEN:
        raise OptionError(
            f"token: whoever guesses it gets in, so it needs {LEAST_TOKEN} characters at least; this one has "
            f"{len(token)}. `python -c 'import secrets; print(secrets.token_urlsafe(24))'` makes a good one"
        )
    return token


def split_host(host: str) -> tuple[str, int | None]:
    """Return the name of a Host header in lower case, and its port; None where it is malformed.

    >>> split_host("[::1]:80"), split_host("localhost"), split_host("a:b:1")
    (('::1', 80), ('localhost', 80), ('', None))
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]@/\s]+))(?::(\d{1,5}))?", host)
    if match is None:
        return "", None
    return (match[1] or match[2]).lower(), int(match[3] or 80)


def is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Refused(Exception):
    """A request that goes no further: its status, and a message."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@final
class Guard:
    """The app behind checks: requests lose the token of their path, and replies gain the headers that all have."""

    def __init__(self, app: ASGIApp, place: ServerAddress) -> None:
        self.app, self.place = app, place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        reply = Reply(send, api=b"/api/" in scope["raw_path"])
        try:
            admitted = await self.admit(scope, receive)
        except Refused as error:
            admitted = refusal(error)
        if isinstance(admitted, Response):
            await admitted(scope, receive, reply)
        else:
            await self.run_app(*admitted, reply)

    async def admit(self, scope: Scope, receive: Receive) -> Response | tuple[Scope, Receive]:
        """Return what the app is given; or a redirect for a path without its last slash."""
        headers = {
            name: [value.decode("latin-1") for key, value in scope["headers"] if key == name]
            for name in (b"host", b"origin", b"content-type", b"content-length")
        }
        self.check_request(scope)
        self.check_host(headers[b"host"])
        path = self.check_path(scope["raw_path"])
        self.check_origin(headers[b"origin"])
        if not path:
            return RedirectResponse(f"/{self.place.token}/")
        inner = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
        if scope["method"] != "POST":
            return inner, receive
        check_content(headers[b"content-type"], headers[b"content-length"])
        return inner, replay_body(await whole_body(receive), receive)

    async def run_app(self, scope: Scope, receive: Receive, reply: "Reply") -> None:
        """Send the app's reply. A failure is reported here unless the app's own handler has replied to it."""
        try:
            await self.app(scope, receive, reply)
        except Exception as error:
            if reply.status != 500:
                tell_failure(error)
            if reply.status is None:
                await refusal(Refused(500, "this should not happen: the terminal has the details"))(
                    scope, receive, reply
                )

    def check_request(self, scope: Scope) -> None:
        if scope["method"] not in METHODS:
            raise Refused(405, f"expected one of {', '.join(METHODS)}")
        if len(scope["raw_path"]) + len(scope["query_string"]) > MOST_ADDRESS:
            raise Refused(414, f"an address has {MOST_ADDRESS} bytes at most; send a long text in a POST")

    def check_host(self, hosts: list[str]) -> None:
        if len(hosts) != 1 or not self.place.knows(hosts[0]):
            raise Refused(403, "")

    def check_path(self, path: bytes) -> str:
        """Return the path without the token."""
        if not PLAIN_PATH.fullmatch(path):
            raise Refused(400, "")
        _, token, *parts = path.split(b"/", 2)
        if not secrets.compare_digest(token, self.place.token.encode()):
            raise Refused(403, "")
        return "".join(f"/{part.decode()}" for part in parts)

    def check_origin(self, origins: list[str]) -> None:
        for origin in origins:
            if not origin.startswith("http://") or not self.place.knows(origin.removeprefix("http://")):
                raise Refused(403, "")


def tell_failure(error: Exception) -> None:
    """Write the traceback of an error on stderr, in one piece: other threads write there too."""
    sys.stderr.write("".join(traceback.format_exception(error)))
    sys.stderr.flush()


def refusal(error: Refused) -> Response:
    """Return the reply to a refused request, with a body only where there is something to say to our own page."""
    text = str(error)
    return JSONResponse({"error": text}, error.status) if text else Response(status_code=error.status)


def check_content(kinds: list[str], lengths: list[str], most: int = MOST_BYTES) -> None:
    if len(kinds) != 1 or kinds[0].split(";")[0].strip().lower() != "application/json":
        raise Refused(415, "expected a body of JSON, with Content-Type: application/json")
    for length in lengths:
        if not length.isascii() or not length.isdigit() or int(length) > most:
            raise Refused(413, f"a request has {most:,} bytes at most; send less text")


async def whole_body(receive: Receive, most: int = MOST_BYTES) -> bytes:
    """Return the body, which must arrive in time and have no more than `most` bytes."""
    try:
        async with asyncio.timeout(PATIENCE):
            return b"".join(await parts_of(receive, most))
    except TimeoutError:
        raise Refused(408, f"the request did not come within {PATIENCE:.0f} seconds; send it again") from None


async def parts_of(receive: Receive, most: int) -> list[bytes]:
    """Return the parts of a body, counted as they come: a length that was announced proves nothing."""
    parts: list[bytes] = []
    room = most
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "")
        parts.append(message.get("body", b""))
        room -= len(parts[-1])
        if room < 0:
            raise Refused(413, f"a request has {most:,} bytes at most; send less text")
        if not message.get("more_body", False):
            return parts


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that gives a body, already read, to the app."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return waiting.pop() if waiting else await receive()

    return read


@final
class Reply:
    """A send function that adds the headers that every reply has."""

    def __init__(self, send: Send, *, api: bool) -> None:
        self.send = send
        self.status: int | None = None
        """The status of the reply, once it has begun."""
        headers = {**HEADERS, "Cache-Control": "no-store" if api else "no-cache"}
        self.extra = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self.extra]}
        await self.send(message)
