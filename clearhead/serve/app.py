"""The front: what every request passes, whichever table its route is in, and how an error becomes a reply.

A request is counted, admitted by the guard, answered by the route of its address, and logged.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Message, Receive, Scope, Send

from clearhead.serve import openapi, replies
from clearhead.serve.errors import ApiError, ClientGone, as_reply, error_reply
from clearhead.serve.guard import OPEN, Guard, Readiness
from clearhead.serve.limits import Limits
from clearhead.serve.logs import Logs
from clearhead.serve.metrics import Metrics

GONE = 499
"""The status in logs and metrics of a client that hung up before it was answered: nginx's."""
PROBES = (*OPEN, "/metrics")
"""Addresses that programs ask every few seconds: they are not logged, and a stopping server does not wait for them."""
DISCARDED = 16_000_000
"""Bytes of a body that is too large that are read and thrown away, so that the client gets to read the refusal."""
DISCARDING = 2.0
"""Seconds for that."""
NOSNIFF: tuple[bytes, bytes] = (b"x-content-type-options", b"nosniff")
PAGE_HEADERS = [
    NOSNIFF,
    (
        b"content-security-policy",
        b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; object-src 'none'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""Headers of every reply that a browser might show; those of the API have no more than it needs."""


@dataclass(frozen=True, kw_only=True)
class Front:
    """What all routes share."""

    limits: Limits
    logs: Logs
    metrics: Metrics = field(default_factory=Metrics)
    state: Readiness = field(default_factory=Readiness)


class Service:
    """A table of routes, and what works behind them from `fork` over `start` to `close`."""

    private: bool = False
    """Whether there must be a token."""

    def routes(self, front: Front) -> Sequence[BaseRoute]:
        """Return the routes; called once, before anything else."""
        raise NotImplementedError

    def fork(self, inherited: list[socket.socket], on_lost: Callable[[], None]) -> None:
        """Start processes, before there is any thread; they close the sockets in `inherited`, and add their own."""

    async def start(self) -> None:
        """Start on the loop that is running."""

    async def warm_up(self) -> None:
        """Return once it can answer."""

    def measure(self) -> None:
        """Set the metrics that are measured when somebody asks for them."""

    def close(self) -> None:
        """End what was started."""

    def check(self) -> None:
        """Raise RunError where it ended by itself."""


@dataclass(kw_only=True)
class RequestNotes:
    """Facts about a request that its line in the log will have, noted while it is answered."""

    id: str = field(default_factory=lambda: secrets.token_hex(12))
    began: float = field(default_factory=time.perf_counter)
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    streamed: bool = False
    """Whether the first token of a stream has come."""


def at_once(reply: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that runs on the event loop itself: Starlette would give a plain function a thread."""

    async def endpoint(request: Request) -> Response:
        return reply(request)

    return endpoint


class App:
    """Every route behind the guard."""

    def __init__(self, services: Sequence[Service], guard: Guard, front: Front) -> None:
        self.services, self.guard, self.front = services, guard, front
        routes = [
            Route("/healthz", at_once(lambda _: PlainTextResponse("ok\n"))),
            Route("/readyz", at_once(lambda _: self.show_readiness())),
            Route("/metrics", at_once(lambda _: self.show_metrics())),
            Route("/openapi.json", at_once(lambda _: replies.as_json(openapi.describe_routes(self.named)))),
            *(route for service in services for route in service.routes(front)),
        ]
        self.router = Router(routes)
        self.named = [route for route in routes if isinstance(route, Route)]
        # Starlette's router tries one route after another, and takes as long as a whole answer.
        self.exact = {route.path: route for route in self.named if "{" not in route.path}
        self.patterns: dict[object, str] = {route.endpoint: route.path for route in self.named}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.live(receive, send)
        if scope["type"] != "http":
            return
        noted = scope["noted"] = RequestNotes()
        reply = Reply(send, scope, noted, self.front.state)
        counted = scope["path"] not in PROBES
        self.front.state.running += counted
        try:
            await self.answer(scope, receive, reply)
        except (ClientGone, asyncio.CancelledError) as error:
            reply.status = GONE
            self.front.metrics.count("disconnects_total")
            if isinstance(error, asyncio.CancelledError):
                raise
        except Exception as error:
            await self.refuse(error, scope, receive, reply)
        finally:
            self.front.state.running -= counted
            self.note(scope, noted, reply.status or 0)

    async def live(self, receive: Receive, send: Send) -> None:
        """Start the services before the first request, and close them after the last."""
        await receive()
        for service in self.services:
            await service.start()
        await send({"type": "lifespan.startup.complete"})
        warming = asyncio.ensure_future(self.warm_up())
        await receive()
        warming.cancel()
        for service in self.services:
            service.close()
        self.front.logs.event("stopped")
        await send({"type": "lifespan.shutdown.complete"})

    async def warm_up(self) -> None:
        """Wait until every service can answer; then requests are taken."""
        for service in self.services:
            await service.warm_up()
        self.front.state.ready = True
        place = self.guard.place
        reach = None if place.token else "this machine only, since there is no token"
        self.front.logs.event("ready", address=place.origin, reached_from=reach)

    async def answer(self, scope: Scope, receive: Receive, reply: "Reply") -> None:
        admitted = await self.guard.admit(scope, receive)
        if isinstance(admitted, Response):
            await admitted(scope, receive, reply)
            return
        route = self.exact.get(scope["path"])
        if route is not None:
            if scope["method"] not in (route.methods or ()):
                raise HTTPException(405)
            response = await route.endpoint(Request(scope, admitted))
            await response(scope, admitted, reply)
        else:
            scope["app"], scope["root_path"] = self, ""  # with an app, the router raises what it does not find
            await self.router(scope, admitted, reply)

    async def refuse(self, error: Exception, scope: Scope, receive: Receive, reply: "Reply") -> None:
        """Reply to a request that failed; what nobody foresaw is logged."""
        refused = as_reply(error)
        if isinstance(error, HTTPException):
            there = ", ".join(path for path in self.exact if path.startswith("/v1/"))
            asked = f"{error.detail}: {scope['method']} {scope['path'][:100]}"
            refused = ApiError(refused.status, f"{asked}; there are {there}" if there else asked, code=refused.code)
        elif refused.status >= 500 and refused is not error:
            self.front.logs.failure(error, id=scope["noted"].id)
        if reply.status is None:
            send = discarding(receive, reply) if refused.status == 413 else reply
            await error_reply(refused, scope["path"])(scope, receive, send)

    def note(self, scope: Scope, noted: RequestNotes, status: int) -> None:
        seconds, path = time.perf_counter() - noted.began, scope["path"]
        route = path if path in self.exact else self.patterns.get(scope.get("endpoint", self), "other")
        self.front.metrics.count("requests_total", route=route, status=str(status))
        if scope["method"] == "POST" and route != "other":
            self.front.metrics.observe("request_seconds", seconds, route=route)
        if path in PROBES and status == 200:
            return  # they would hide the rest
        self.front.logs.event(
            "request",
            id=noted.id,
            method=scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 10 else "other",
            route=route,
            status=status,
            seconds=round(seconds, 4),
            model=noted.model,
            prompt_tokens=noted.prompt_tokens,
            completion_tokens=noted.completion_tokens,
        )

    def show_readiness(self) -> Response:
        self.front.state.check_ready()
        return PlainTextResponse("ready\n")

    def show_metrics(self) -> Response:
        metrics, state = self.front.metrics, self.front.state
        metrics.set("ready", int(state.ready and not state.draining))
        metrics.set("requests_running", state.running)
        for service in self.services:
            service.measure()
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")


class Reply:
    """A send function that adds the headers that every reply has, and knows the status that was sent."""

    def __init__(self, send: Send, scope: Scope, noted: RequestNotes, state: Readiness) -> None:
        self.send, self.scope, self.noted, self.state = send, scope, noted, state
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, path = message["status"], self.scope["path"]
            extra = [NOSNIFF] if path.startswith("/v1/") else [*PAGE_HEADERS]
            extra.append((b"x-request-id", self.noted.id.encode()))
            headers = message.get("headers", ())
            if not any(name == b"cache-control" for name, _ in headers):
                page = not path.startswith(("/v1/", "/api/", "/b/api/"))
                extra.append((b"cache-control", b"no-cache" if page else b"no-store"))
            if self.state.draining:
                extra.append((b"connection", b"close"))
            message = {**message, "headers": [*headers, *extra]}
        await self.send(message)


def discarding(receive: Receive, send: Send) -> Send:
    """Return a send function that, after a refusal, reads some of the body before the connection is closed.

    A connection that is closed with bytes unread is reset, and most clients then never see the reply.
    """

    async def sending(message: Message) -> None:
        if message["type"] != "http.response.body":
            await send({**message, "headers": [*message["headers"], (b"connection", b"close")]})
            return
        await send({**message, "more_body": True})
        room, until = DISCARDED, time.monotonic() + DISCARDING
        while room > 0:
            try:
                incoming = await asyncio.wait_for(receive(), max(0.01, until - time.monotonic()))
            except TimeoutError:
                break
            if incoming["type"] == "http.disconnect" or not incoming.get("more_body", False):
                break
            room -= len(incoming.get("body", b""))
        await send({"type": "http.response.body", "body": b""})

    return sending
