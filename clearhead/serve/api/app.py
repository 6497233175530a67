"""The addresses of the API, and what stands before them: the log, the token, the limits, the drain."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.errors import ClearheadError
from clearhead.serve.api.completions import chat, complete
from clearhead.serve.api.errors import ApiError, as_reply, error_reply
from clearhead.serve.api.events import ClientGone
from clearhead.serve.api.metrics import Metrics, cpu_seconds, resident_bytes
from clearhead.serve.api.one_pass import answer, classify, embed, fill
from clearhead.serve.api.request import Api, RequestNotes, RunRequest
from clearhead.serve.api.translate import translate
from clearhead.serve.guard import Refused, ServerAddress, check_content, replay_body, whole_body
from clearhead.serve.replies import as_json

VERBS: dict[str, Callable[[RunRequest], Awaitable[Response]]] = {
    "/v1/translate": translate,
    "/v1/completions": complete,
    "/v1/chat/completions": chat,
    "/v1/classify": classify,
    "/v1/fill": fill,
    "/v1/embeddings": embed,
    "/v1/answer": answer,
}
OPEN = ("/healthz", "/readyz")
"""Addresses that need no token: they say nothing but that the server is there."""
GONE = 499
"""The status in logs and metrics of a client that hung up before it was answered: nginx's."""
DISCARDED = 16_000_000
"""Bytes of a body that is too large that are read and thrown away, so that the client gets to read the refusal."""
DISCARDING = 2.0
"""Seconds for that."""


@final
@dataclass
class State:
    """Whether requests are taken, and how many are being answered."""

    ready: bool = False
    draining: bool = False
    running: int = 0


def make_app(
    api: Api, state: State, *, place: ServerAddress | None, token: str | None, cors: tuple[str, ...] = ()
) -> ASGIApp:
    """Return the app. `place` is the address that Host headers are checked against: on loopback, without a token."""
    routes = [
        Route("/healthz", at_once(lambda request: PlainTextResponse("ok\n"))),
        Route("/readyz", at_once(lambda request: show_readiness(state))),
        Route("/metrics", at_once(lambda request: show_metrics(api, state))),
        Route("/v1/models", at_once(lambda request: list_models(api))),
        Route("/v1/models/{name:path}", at_once(lambda request: show_model(api, request.path_params["name"]))),
        *(Route(route, never_here, methods=["POST"]) for route in VERBS),
    ]
    handlers: dict[Any, Any] = {
        ApiError: tell_error,
        ClearheadError: tell_package_error,
        HTTPException: tell_http_error,
    }
    app: ASGIApp = Verbs(Starlette(routes=routes, exception_handlers=handlers), api)
    app = ApiGuard(app, api, state, place=place, token=token)
    if cors:
        app = CORSMiddleware(
            app,
            allow_origins=list(cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return Observed(app, api, state)


@final
class Verbs:
    """Answers the addresses in `VERBS`, and gives all others to an app.

    Starlette's router tries one route after another, under two handlers of errors, and takes as long as a whole answer.
    """

    def __init__(self, app: ASGIApp, api: Api) -> None:
        self.app, self.api = app, api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        verb = VERBS.get(scope["path"]) if scope["method"] == "POST" else None
        if verb is None:
            await self.app(scope, receive, send)
            return
        try:
            reply = await verb(await self.api.ask(Request(scope, receive), scope["path"]))
            await reply(scope, receive, send)
        except ApiError as error:
            await error_reply(error)(scope, receive, send)
        except ClearheadError as error:
            await error_reply(ApiError(400, str(error), code="invalid_value"))(scope, receive, send)


async def never_here(request: Request) -> Response:
    """Raise: `Verbs` answers these addresses first.

    With this route, the router replies 405 to another method at such an address, and not 404.
    """
    raise AssertionError(request.url.path)


def at_once(reply: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that runs on the event loop itself: Starlette would give a plain function a thread."""

    async def endpoint(request: Request) -> Response:
        return reply(request)

    return endpoint


def show_readiness(state: State) -> Response:
    return PlainTextResponse("ready\n") if state.ready and not state.draining else error_reply(not_now(state))


def not_now(state: State) -> ApiError:
    if state.draining:
        return ApiError(503, "the server is stopping; ask another one, or try again", code="draining", retry_after=5)
    return ApiError(503, "the server is starting; try again", code="not_ready", retry_after=1)


def show_metrics(api: Api, state: State) -> Response:
    metrics = api.metrics
    metrics.set("ready", int(state.ready and not state.draining))
    metrics.set("requests_running", state.running)
    for name, served in api.models.by_name.items():
        metrics.set("pending", served.worker.pending, model=name)
        if served.worker.processes:
            served.worker.measure()
            measure_processes(metrics, name, [process.pid for process in served.worker.processes])
    return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")


def measure_processes(metrics: Metrics, name: str, processes: list[int]) -> None:
    seconds = [value for process in processes if (value := cpu_seconds(process)) is not None]
    memory = [value for process in processes if (value := resident_bytes(process)) is not None]
    if len(seconds) == len(memory) == len(processes):
        metrics.set("model_cpu_seconds_total", sum(seconds), model=name)
        metrics.set("model_resident_memory_bytes", float(sum(memory)), model=name)


def list_models(api: Api) -> Response:
    return as_json({"object": "list", "data": [model.facts() for model in api.models.by_name.values()]})


def show_model(api: Api, name: str) -> Response:
    return as_json(api.models.named(name).facts())


async def tell_error(request: Request, error: ApiError) -> Response:
    return error_reply(error)


async def tell_package_error(request: Request, error: Exception) -> Response:
    return error_reply(ApiError(400, str(error), code="invalid_value"))


async def tell_http_error(request: Request, error: HTTPException) -> Response:
    """Return the reply to an unknown address or method."""
    addresses = ", ".join(("/v1/models", *VERBS))
    message = f"{error.detail}: {request.method} {request.url.path[:100]}; there are {addresses}"
    return error_reply(ApiError(error.status_code, message, code="not_found" if error.status_code == 404 else None))


@final
class ApiGuard:
    """Lets in requests that have the token, while the server takes any, with a body that is not too large."""

    def __init__(self, app: ASGIApp, api: Api, state: State, *, place: ServerAddress | None, token: str | None) -> None:
        self.app, self.api, self.state, self.place = app, api, state, place
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value.decode("latin-1"))
        try:
            inner = await self.admit(scope, headers, receive)
        except ApiError as error:
            await error_reply(error)(scope, receive, send)
        except Refused as error:
            refused = ApiError(error.status, str(error) or "the request cannot be read")
            too_large = error.status == 413
            await error_reply(refused)(scope, receive, discarding(receive, send) if too_large else send)
        else:
            await self.app(scope, inner, send)

    async def admit(self, scope: Scope, headers: dict[bytes, list[str]], receive: Receive) -> Receive:
        """Return what the app receives, once the request may pass."""
        path = scope["path"]
        if self.place is not None:
            hosts = headers.get(b"host", [])
            if len(hosts) != 1 or not self.place.knows(hosts[0]):
                message = (
                    "the Host header names another server; without a token only this machine's own names are served"
                )
                raise ApiError(403, message, code="wrong_host")
        if path in OPEN:
            return receive
        self.check_token(headers.get(b"authorization", []))
        if not path.startswith("/v1/"):
            return receive
        if scope["method"] != "POST":
            return receive
        if self.state.draining or not self.state.ready:
            raise not_now(self.state)
        most = self.api.limits.body
        check_content(headers.get(b"content-type", []), headers.get(b"content-length", []), most)
        return replay_body(await whole_body(receive, most), receive)

    def check_token(self, headers: list[str]) -> None:
        """Raise ApiError 401 where the token is missing or wrong; it is compared in constant time."""
        if self.token is None:
            return
        scheme, _, key = (headers[0] if len(headers) == 1 else "").partition(" ")
        right = secrets.compare_digest(key.strip().encode("latin-1"), self.token)
        if scheme.lower() != "bearer" or not right:
            message = "the token is missing or wrong: send it in the header `Authorization: Bearer TOKEN`"
            raise ApiError(401, message, code="invalid_api_key")


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


@final
class Observed:
    """Counts, times and logs every request, and answers unexpected exceptions with 500."""

    def __init__(self, app: ASGIApp, api: Api, state: State) -> None:
        self.app, self.api, self.state = app, api, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        noted, status = RequestNotes(), 0
        scope["noted"] = noted

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", noted.id.encode()), (b"x-content-type-options", b"nosniff")]
                if self.state.draining:
                    extra.append((b"connection", b"close"))
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        counted = scope["path"].startswith("/v1/")
        self.state.running += counted
        try:
            await self.app(scope, receive, noting)
        except (ClientGone, asyncio.CancelledError) as error:
            status = GONE
            self.api.metrics.count("disconnects_total")
            if isinstance(error, asyncio.CancelledError):
                raise
        except Exception as error:
            self.api.logs.failure(error, id=noted.id)
            if not status:
                await error_reply(as_reply(error))(scope, receive, noting)
        finally:
            self.state.running -= counted
            self.note(scope, noted, status)

    def note(self, scope: Scope, noted: RequestNotes, status: int) -> None:
        seconds, path = time.perf_counter() - noted.began, scope["path"]
        fixed_route = path in VERBS or path in (*OPEN, "/metrics", "/v1/models")
        route = path if fixed_route else "/v1/models/{id}" if path.startswith("/v1/models/") else "other"
        self.api.metrics.count("requests_total", route=route, status=str(status))
        if path in VERBS:
            self.api.metrics.observe("request_seconds", seconds, route=route)
        if path in (*OPEN, "/metrics") and status == 200:
            return  # probes come every few seconds, and would hide the rest
        self.api.logs.event(
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
