"""The explorer's routes: an address for each question, and the form of its answer."""

import asyncio
import threading
from collections.abc import Callable, Mapping
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
from clearhead.serve.openapi import QuestionRoute
from clearhead.serve.params import Params, read_json
from clearhead.serve.question_table import QUESTIONS
from clearhead.serve.questions.question import Matrix, Question, Thumbs, TraceQuestion, answer_type, read_question
from clearhead.serve.replies import as_bytes, as_json, as_numbers
from clearhead.tracing.recording import StoppedError, stopping_when

STATIC = Path(__file__).parent / "static"
"""The page, as `make web` builds it."""
STATUSES = {GoneError: 410, TooMuchError: 413, TraceError: 500}
"""Statuses of the package's errors that are not 400."""
Form = Callable[[Any], Response]
FORMS: dict[Any, Form] = {Matrix: as_numbers, Thumbs: as_bytes}
"""How answers are sent that are not JSON, by their type."""


@final
class ExplorerPages(Service):
    """The explorer's table: its page, and what the page asks. `static` holds the page.

    A second run is asked under /b/api, in the same turns: it has the same cores.
    """

    private = True

    def __init__(self, explorer: Explorer, static: Path | None = None) -> None:
        self.explorer, self.static = explorer, static or STATIC

    def routes(self, front: Front) -> list[BaseRoute]:
        turns = {name: Turns() for name in ("model", "weights", "part")}
        routes = routes_of(self.explorer, "/api", turns)
        if self.explorer.beside is not None:
            routes += routes_of(self.explorer.beside, "/b/api", turns)
        return [*routes, Mount("/", StaticFiles(directory=self.static, html=True))]


def check_page() -> None:
    if not (STATIC / "index.html").is_file():
        raise RunError(f"the explorer's page is not built: there is no {STATIC / 'index.html'}; run `make web`")


def routes_of(explorer: Explorer, at: str, turns: "Mapping[str, Turns]") -> list[BaseRoute]:
    """Return the addresses of all questions about a run."""
    health = Route(f"{at}/health", at_once(lambda _: as_json({"ok": True})))
    return [health, *(route_of(explorer, at, name, kind, turns.get(kind.turn)) for name, kind in QUESTIONS.items())]


def route_of(explorer: Explorer, at: str, name: str, kind: type[Question[Any]], turns: "Turns | None") -> QuestionRoute:
    """Return the address of a question; one that needs files alone waits for nobody's turn."""
    form = FORMS.get(answer_type(kind), as_json)

    async def endpoint(request: Request) -> Response:
        body = await request.body() if kind.sent else None

        def work() -> Response:
            named = {**request.query_params, **request.path_params}
            params = Params(named, "the address") if body is None else read_json(body)
            return form(explorer.ask(read_question(kind, params)))

        return await (asyncio.to_thread(work) if turns is None else turns.take(request, work))

    path = f"{at}/trace/{{trace}}/{name}" if issubclass(kind, TraceQuestion) else f"{at}/{name}"
    return QuestionRoute(path, endpoint, methods=["POST" if kind.sent else "GET"], asks=kind)


@final
class Turns:
    """A queue for what takes the model: on a few cores two questions at once are slower than one after another.

    All of it runs on one thread, and the event loop goes on answering meanwhile.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    async def take(self, request: Request, work: Callable[[], Response]) -> Response:
        """Wait for a turn and run the work; stop working for a reader who has gone, as when a map is panned."""
        disconnected = threading.Event()
        request.scope["on_hang_up"] = disconnected.set

        def run_until_gone() -> Response:
            """Run the work on this thread, and cancel it at the next block of rows once the reader is gone."""
            with stopping_when(disconnected.is_set):
                return work()

        async with self.lock:
            if request.scope.get("hung_up"):
                raise ClientGone
            try:
                return await asyncio.get_running_loop().run_in_executor(self.thread, run_until_gone)
            except StoppedError:
                raise ClientGone from None
            except tuple(STATUSES) as error:
                raise ApiError(STATUSES[type(error)], str(error)) from error
            finally:
                disconnected.set()  # also where the server ends, so that its thread does
