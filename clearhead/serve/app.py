"""The routes: which question of the explorer an address asks, and in which form its answer goes out."""

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
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from clearhead.errors import ClearheadError, TraceError
from clearhead.serve.budget import TooMuchError
from clearhead.serve.explorer import Explorer, GoneError
from clearhead.serve.guard import tell_failure
from clearhead.serve.params import Params, read_json
from clearhead.serve.replies import as_bytes, as_json, as_numbers
from clearhead.tracing.stopping import StoppedError, stopping_when

__all__ = ["make_app"]

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
}
"""What is asked of a trace, by the explorer's method of that name, and how it is given."""
LONG = ("readings",)
"""What reads every weight of a trace, seconds for a long text, and needs no model: tiles do not wait for it."""


def make_app(explorer: Explorer, static: Path) -> Starlette:
    """The app. `static` holds the page."""
    turns, long_turns = Turns(), Turns()
    questions = [
        Route("/health", health),
        Route("/run", beside(lambda _: explorer.run_facts())),
        Route("/curves", beside(explorer.curves)),
        Route("/sentence", turns.get(explorer.sentence)),
        Route("/positions", turns.get(explorer.positions)),
        Route("/trace", turns.post(explorer.trace), methods=["POST"]),
        Route("/context", turns.post(explorer.context), methods=["POST"]),
        Route("/decode", turns.post(explorer.decode), methods=["POST"]),
        *(
            Route(
                f"/trace/{{trace}}/{name}",
                (long_turns if name in LONG else turns).get(inside(getattr(explorer, name)), form),
            )
            for name, form in INSIDE.items()
        ),
    ]
    routes = [Mount("/api", routes=questions), Mount("/", StaticFiles(directory=static, html=True))]
    handlers = {
        ClearheadError: told(400),
        GoneError: told(410),
        TooMuchError: told(413),
        TraceError: told(500),
        HTTPException: not_so,
        Exception: failed,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


async def health(request: Request) -> Response:
    """Answers whatever else is being worked on."""
    return as_json({"ok": True})


def beside(answer: Callable[[Params], object]) -> Endpoint:
    """For what only reads files: it does not wait for the model."""

    async def endpoint(request: Request) -> Response:
        return as_json(await asyncio.to_thread(answer, parameters(request)))

    return endpoint


def inside(answer: Callable[[str, Params], object]) -> Callable[[Params], object]:
    """The same with the trace among what is asked."""
    return lambda asked: answer(asked.text("trace"), asked)


def parameters(request: Request) -> Params:
    return Params({**request.query_params, **request.path_params}, "the address")


@final
class Turns:
    """What takes the model takes turns, in the order it was asked for: on a few cores two at once are slower than one.

    All of it runs on one thread, and the loop goes on answering meanwhile.
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
        """Wait for a turn, and do the work. Whoever has gone, as when a map is panned, is no longer worked for."""
        await request.body()
        async with self.lock:
            if await request.is_disconnected():
                return Response(status_code=400)
            gone = threading.Event()
            watcher = asyncio.create_task(wait_until_gone(request, gone))
            try:
                return await asyncio.get_running_loop().run_in_executor(self.thread, work_until, gone, work)
            except StoppedError:
                return Response(status_code=400)
            finally:
                gone.set()  # also where the server ends, so that its thread does
                watcher.cancel()


async def wait_until_gone(request: Request, gone: threading.Event) -> None:
    """Set `gone` when the reader closes the connection. The body has been read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()


def work_until(gone: threading.Event, work: Callable[[], Response]) -> Response:
    """Do the work on this thread, and give it up at the next block of rows once the reader is gone."""
    with stopping_when(gone.is_set):
        return work()


def told(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    """An error whose sentence is for whoever asked."""

    async def handler(request: Request, error: Exception) -> Response:
        return as_json({"error": str(error)}, status)

    return handler


async def not_so(request: Request, error: Exception) -> Response:
    """What starlette itself refuses: no such address, or not by that method."""
    assert isinstance(error, HTTPException)
    return as_json({"error": f"{error.detail}: there is nothing to be had so at this address"}, error.status_code)


async def failed(request: Request, error: Exception) -> Response:
    """What was not expected is told on stderr before the reply goes out, and to the page only that it happened."""
    tell_failure(error)
    return as_json({"error": "this should not happen: the terminal has the details"}, 500)
