"""The guard between the network and the routes: a request that is not allowed goes no further.

A page of another site can send requests to this machine, and a name of its own can be made to point here. So a request
carries the token, in its path or in its header; without the header the Host must be one the server was started for, and
an Origin must be its own.
"""

import asyncio
import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass

from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope

from clearhead.errors import OptionError
from clearhead.serve.errors import ApiError, ClientGone
from clearhead.serve.limits import Limits

MOST_ADDRESS = 8192
LEAST_TOKEN = 16
"""The fewest characters of a token that somebody chose: with fewer, a program on this machine could try them all."""
METHODS = ("GET", "HEAD", "POST")
PLAIN_PATH = re.compile(rb"/([A-Za-z0-9_-][A-Za-z0-9_.-]*/)*([A-Za-z0-9_-][A-Za-z0-9_.-]*)?")
"""A path without leading dots, escapes or empty parts: all but the names of models are of this form."""
OPEN = ("/healthz", "/readyz")
"""Addresses that need no token: they say nothing but that the server is there."""


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The server's address: the host it was started for, the port it got, and the token, where it asks for one."""

    host: str
    port: int
    token: str | None
    scheme: str = "http"

    @property
    def origin(self) -> str:
        """Return where it is reached, without a slash at the end."""
        host = "127.0.0.1" if self.everywhere else self.host
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def page(self) -> str:
        """Return the address with the token in it: the explorer's page."""
        return f"{self.origin}/{self.token}/"

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


@dataclass
class Readiness:
    """Whether requests are taken, and how many are being answered."""

    ready: bool = False
    draining: bool = False
    running: int = 0

    def check_ready(self) -> None:
        """Raise ApiError 503 while no requests are taken."""
        if self.draining:
            raise ApiError(503, "the server is stopping; ask another one, or try again", code="draining", retry_after=5)
        if not self.ready:
            raise ApiError(503, "the server is starting; try again", code="not_ready", retry_after=1)


class Guard:
    """Checks each request before any route sees it; `origins` are those of pages that may ask from a browser."""

    def __init__(self, place: ServerAddress, *, origins: tuple[str, ...], limits: Limits, state: Readiness) -> None:
        self.place, self.origins, self.limits, self.state = place, origins, limits, state
        self.token = None if place.token is None else place.token.encode()

    async def admit(self, scope: Scope, receive: Receive) -> Response | Receive:
        """Return what the route receives, with the token taken out of the scope's path; or a redirect to the page."""
        if len(scope["raw_path"]) + len(scope["query_string"]) > MOST_ADDRESS:
            raise ApiError(414, f"an address has {MOST_ADDRESS} bytes at most; send a long text in a POST")
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value.decode("latin-1"))
        self.authenticate(scope, headers)
        if not scope["path"]:
            return RedirectResponse(self.place.page)
        if scope["method"] not in METHODS:
            raise ApiError(405, f"expected one of {', '.join(METHODS)}")
        if not scope["path"].startswith("/v1/") and not PLAIN_PATH.fullmatch(scope["raw_path"]):
            raise ApiError(400, "the address cannot be read")
        if scope["method"] != "POST":
            return receive
        self.state.check_ready()
        check_content(headers.get(b"content-type", []), headers.get(b"content-length", []), self.limits.body)
        return replay_body(await whole_body(receive, self.limits), receive)

    def authenticate(self, scope: Scope, headers: dict[bytes, list[str]]) -> None:
        """Check the token in the header; or that in the path, with Host and Origin, and take it out of the path."""
        path = scope["raw_path"]
        if self.token is not None:
            _, _, rest = path.partition(b"/")
            first, slash, rest = rest.partition(b"/")
            if not path.startswith(b"/") or not secrets.compare_digest(first, self.token):
                if scope["path"] not in OPEN:
                    self.check_bearer(headers.get(b"authorization", []))
                return
            scope["raw_path"] = slash + rest
            scope["path"] = "/" + scope["path"].split("/", 2)[2] if slash else ""
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not self.place.knows(hosts[0]):
            message = "the Host header names another server; only with the token in a header may it"
            raise ApiError(403, message, code="wrong_host")
        for origin in headers.get(b"origin", []):
            scheme, _, host = origin.partition("://")
            if origin not in self.origins and (scheme != self.place.scheme or not self.place.knows(host)):
                raise ApiError(403, "a page of another origin may not ask this server; see --cors", code="wrong_origin")

    def check_bearer(self, headers: list[str]) -> None:
        """Raise ApiError 401 where the token is missing or wrong; it is compared in constant time."""
        scheme, _, key = (headers[0] if len(headers) == 1 else "").partition(" ")
        right = secrets.compare_digest(key.strip().encode("latin-1"), self.token or b"")
        if scheme.lower() != "bearer" or not right:
            message = "the token is missing or wrong: send it in the header `Authorization: Bearer TOKEN`"
            raise ApiError(401, message, code="invalid_api_key")


def check_content(kinds: list[str], lengths: list[str], most: int) -> None:
    if len(kinds) != 1 or kinds[0].split(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "expected a body of JSON, with Content-Type: application/json")
    for length in lengths:
        if not length.isascii() or not length.isdigit() or int(length) > most:
            raise too_large(most)


def too_large(most: int) -> ApiError:
    return ApiError(413, f"a request has {most:,} bytes at most; send less text", code="body_too_large")


async def whole_body(receive: Receive, limits: Limits) -> bytes:
    """Return the body, which must arrive in time. It is counted as it comes: an announced length proves nothing."""
    parts: list[bytes] = []
    room = limits.body
    try:
        async with asyncio.timeout(limits.arrival):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(message.get("body", b""))
                room -= len(parts[-1])
                if room < 0:
                    raise too_large(limits.body)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        message = f"the request did not come within {limits.arrival:g} seconds; send it again"
        raise ApiError(408, message) from None


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that gives a body, already read, to the app."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return waiting.pop() if waiting else await receive()

    return read
