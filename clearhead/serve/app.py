"""The routes: the explorer's method for each address, and the form of its answer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from clearhead.errors import ClearheadError, TraceError
from clearhead.serve.budget import TooMuchError
from clearhead.serve.explorer import Explorer, GoneError
from clearhead.serve.guard import tell_failure
from clearhead.serve.params import Params, read_json
from clearhead.serve.replies import as_bytes, as_json, as_numbers
from clearhead.tracing.stopping import StoppedError, stopping_when

Form = Callable[[Any], Response]
Endpoint = Callable[[Request], Awaitable[Response]]
INSIDE: dict[str, Form] = {
    "tile": as_numbers,
    "thumbs": as_bytes,
    "row": as_json,
    "column": as_json,
    "cell": as_json,
    "vectors": as_numbers,
    "readings": as_json,
    "lens": as_json,
    "effects": as_json,
    "stream": as_json,
    "spaces": as_json,
    "sequence": as_json,
    "box": as_json,
    "terms": as_json,
    "neurons": as_json,
}
"""The questions about a trace, by the explorer's method of that name, and the form of the answer."""
LONG = ("readings",)
"""Questions that read every weight of a trace, seconds for a long text, and need no model: tiles do not wait for
them.
"""


def make_app(explorer: Explorer, static: Path) -> Starlette:
    """Return the app. `static` holds the page. A second run is asked under /b/api, in the same turns: it has the same
    cores.
    """
    turns, long_turns = Turns(), Turns()
    routes: list[BaseRoute] = [Mount("/api", routes=questions_of(explorer, turns, long_turns))]
    if explorer.beside is not None:
        routes.append(Mount("/b/api", routes=questions_of(explorer.beside, turns, long_turns)))
    routes.append(Mount("/", StaticFiles(directory=static, html=True)))
    handlers = {
        ClearheadError: error_handler(400),
        GoneError: error_handler(410),
        TooMuchError: error_handler(413),
        TraceError: error_handler(500),
        HTTPException: handle_http_error,
        Exception: handle_failure,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def questions_of(explorer: Explorer, turns: "Turns", long_turns: "Turns") -> list[BaseRoute]:
    """Return the addresses of all questions about a run."""
    return [
        Route("/health", health),
        Route("/run", read_files(lambda _: explorer.run_facts())),
        Route("/curves", read_files(explorer.curves)),
        Route("/sentence", turns.get(explorer.sentence)),
        Route("/positions", turns.get(explorer.positions)),
        Route("/trace", turns.post(explorer.trace), methods=["POST"]),
        Route("/context", turns.post(explorer.context), methods=["POST"]),
        Route("/decode", turns.post(explorer.decode), methods=["POST"]),
        Route("/sample", turns.post(explorer.sample), methods=["POST"]),
        Route("/embeddings", turns.get(explorer.embeddings)),
        Route("/neighbours", turns.get(explorer.neighbours)),
        Route("/tokenize", turns.post(explorer.tokenize), methods=["POST"]),
        *(
            Route(
                f"/trace/{{trace}}/{name}",
                (long_turns if name in LONG else turns).get(with_trace(getattr(explorer, name)), form),
            )
            for name, form in INSIDE.items()
        ),
    ]


async def health(request: Request) -> Response:
    """Answer at once, whatever else is being computed."""
    return as_json({"ok": True})


def read_files(answer: Callable[[Params], object]) -> Endpoint:
    """Return an endpoint for a question that only reads files, and does not wait for the model."""

    async def endpoint(request: Request) -> Response:
        return as_json(await asyncio.to_thread(answer, parameters(request)))

    return endpoint


def with_trace(answer: Callable[[str, Params], object]) -> Callable[[Params], object]:
    """Return the same question with the trace taken from the request."""
    return lambda params: answer(params.text("trace"), params)


def parameters(request: Request) -> Params:
    return Params({**request.query_params, **request.path_params}, "the address")


@final
class Turns:
    """A queue for what takes the model: on a few cores two questions at once are slower than one after another.

    All of it runs on one thread, and the event loop goes on answering meanwhile.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    def get(self, answer: Callable[[Params], object], form: Form = as_json) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return await self.take(request, lambda: form(answer(parameters(request))))

        return endpoint

    def post(self, answer: Callable[[Params], object]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            body = await request.body()
            return await self.take(request, lambda: as_json(answer(read_json(body))))

        return endpoint

    async def take(self, request: Request, work: Callable[[], Response]) -> Response:
        """Wait for a turn and run the work; stop working for a reader who has gone, as when a map is panned."""
        await request.body()
        async with self.lock:
            if await request.is_disconnected():
                return Response(status_code=400)
            disconnected = threading.Event()
            watcher = asyncio.create_task(wait_until_gone(request, disconnected))
            try:
                return await asyncio.get_running_loop().run_in_executor(self.thread, run_until_gone, disconnected, work)
            except StoppedError:
                return Response(status_code=400)
            finally:
                disconnected.set()  # also where the server ends, so that its thread does
                watcher.cancel()


async def wait_until_gone(request: Request, disconnected: threading.Event) -> None:
    """Set `gone` when the reader closes the connection. The body has been read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    disconnected.set()


def run_until_gone(disconnected: threading.Event, work: Callable[[], Response]) -> Response:
    """Run the work on this thread, and cancel it at the next block of rows once the reader is gone."""
    with stopping_when(disconnected.is_set):
        return work()


def error_handler(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return a handler for errors whose message is for the reader."""

    async def handler(request: Request, error: Exception) -> Response:
        return as_json({"error": str(error)}, status)

    return handler


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Return the reply to what Starlette itself refuses: an unknown address or method."""
    assert isinstance(error, HTTPException)
    return as_json({"error": f"{error.detail}: there is nothing to be had so at this address"}, error.status_code)


async def handle_failure(request: Request, error: Exception) -> Response:
    """Write an unexpected error to stderr before the reply goes out; the page only learns that it happened."""
    tell_failure(error)
    return as_json({"error": "this should not happen: the terminal has the details"}, 500)
