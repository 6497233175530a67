"""The explorer's routes: its method for each address, and the form of its answer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from clearhead.errors import RunError, TraceError
from clearhead.serve.app import Front, Service, at_once
from clearhead.serve.budget import TooMuchError
from clearhead.serve.errors import ApiError, ClientGone
from clearhead.serve.explorer import Explorer, GoneError
from clearhead.serve.params import Params, read_json
from clearhead.serve.replies import as_bytes, as_json, as_numbers
from clearhead.tracing.stopping import StoppedError, stopping_when

STATIC = Path(__file__).parent / "static"
"""The page, as `make web` builds it."""
STATUSES = {GoneError: 410, TooMuchError: 413, TraceError: 500}
"""Statuses of the package's errors that are not 400."""
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
ASKED = ("sentence", "positions", "embeddings", "neighbours")
SENT = ("trace", "context", "decode", "sample", "tokenize")
"""The other questions, by the explorer's method: those of an address, and those with a body."""
LONG = ("readings",)
"""Questions that read every weight of a trace, seconds for a long text, and need no model: tiles do not wait for
them.
"""


@final
class ExplorerPages(Service):
    """The explorer's table: its page, and what the page asks. `static` holds the page.

    A second run is asked under /b/api, in the same turns: it has the same cores.
    """

    private = True

    def __init__(self, explorer: Explorer, static: Path | None = None) -> None:
        self.explorer, self.static = explorer, static or STATIC

    def routes(self, front: Front) -> list[BaseRoute]:
        turns, long_turns = Turns(), Turns()
        routes = questions_of(self.explorer, "/api", turns, long_turns)
        if self.explorer.beside is not None:
            routes += questions_of(self.explorer.beside, "/b/api", turns, long_turns)
        return [*routes, Mount("/", StaticFiles(directory=self.static, html=True))]


def check_page() -> None:
    if not (STATIC / "index.html").is_file():
        raise RunError(f"the explorer's page is not built: there is no {STATIC / 'index.html'}; run `make web`")


def questions_of(explorer: Explorer, at: str, turns: "Turns", long_turns: "Turns") -> list[BaseRoute]:
    """Return the addresses of all questions about a run."""
    return [
        Route(f"{at}/health", at_once(lambda _: as_json({"ok": True}))),
        Route(f"{at}/run", read_files(lambda _: explorer.run_facts())),
        Route(f"{at}/curves", read_files(explorer.curves)),
        *(Route(f"{at}/{name}", turns.get(getattr(explorer, name))) for name in ASKED),
        *(Route(f"{at}/{name}", turns.post(getattr(explorer, name)), methods=["POST"]) for name in SENT),
        *(
            Route(
                f"{at}/trace/{{trace}}/{name}",
                (long_turns if name in LONG else turns).get(with_trace(getattr(explorer, name)), form),
            )
            for name, form in INSIDE.items()
        ),
    ]


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
        disconnected = threading.Event()
        request.scope["on_hang_up"] = disconnected.set
        async with self.lock:
            if request.scope.get("hung_up"):
                raise ClientGone
            try:
                return await asyncio.get_running_loop().run_in_executor(self.thread, run_until_gone, disconnected, work)
            except StoppedError:
                raise ClientGone from None
            except tuple(STATUSES) as error:
                raise ApiError(STATUSES[type(error)], str(error)) from error
            finally:
                disconnected.set()  # also where the server ends, so that its thread does


def run_until_gone(disconnected: threading.Event, work: Callable[[], Response]) -> Response:
    """Run the work on this thread, and cancel it at the next block of rows once the reader is gone."""
    with stopping_when(disconnected.is_set):
        return work()
