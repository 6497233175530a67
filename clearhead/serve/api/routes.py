"""The API's routes: every kind of run over HTTP, in OpenAI's form where it has one."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import final

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from clearhead.errors import OptionError, RunError
from clearhead.serve.api.completions import chat, complete
from clearhead.serve.api.model_process import can_fork
from clearhead.serve.api.one_pass import answer, classify, embed, fill
from clearhead.serve.api.request import RunRequest
from clearhead.serve.api.served import Models, SchedulerOf, Served, batched, names_of
from clearhead.serve.api.translate import translate
from clearhead.serve.app import Front, RequestNotes, Service, at_once
from clearhead.serve.bodies import BODIES, names_of_body
from clearhead.serve.metrics import cpu_seconds, resident_bytes
from clearhead.serve.params import read_json
from clearhead.serve.replies import as_json
from clearhead.training.run import Run

Verb = Callable[[RunRequest], Awaitable[Response]]
VERBS: dict[str, Verb] = {
    "/v1/translate": translate,
    "/v1/completions": complete,
    "/v1/chat/completions": chat,
    "/v1/classify": classify,
    "/v1/fill": fill,
    "/v1/embeddings": embed,
    "/v1/answer": answer,
}


def check_replicas(replicas: int, runs: Sequence[Run], model_threads: int | None) -> None:
    """Raise OptionError where a run cannot be served by this many processes."""
    if replicas < 1:
        raise OptionError(f"replicas must be 1 or more; came {replicas}")
    devices = [next(run.model.parameters()).device for run in runs]
    if replicas > 1 and (model_threads is None or not all(map(can_fork, devices))):
        raise OptionError(
            f"replicas: {replicas} processes for a run need models on the CPU, a system that forks (not macOS), and "
            f"threads for each; here models are on {', '.join(sorted({device.type for device in devices}))}. "
            "Leave it at 1"
        )


@final
class Api(Service):
    """Runs and their workers. Models answer at the names of their folders, or at `names`.

    `scheduler` decodes the jobs of a run; by default they share a batch. With `model_threads` each run that decodes on
    the CPU has a process of its own, with so many threads, where the system can fork; `replicas` of them, each with a
    batch of its own, where that is more than 1.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        names: Sequence[str] = (),
        scheduler: SchedulerOf | None = None,
        model_threads: int | None = None,
        replicas: int = 1,
    ) -> None:
        if not runs:
            raise OptionError("there is nothing to serve: give at least one run")
        check_replicas(replicas, runs, model_threads)
        self.runs = dict(zip(names_of([run.folder for run in runs], names), runs, strict=True))
        self.scheduler, self.model_threads, self.replicas = scheduler or batched(), model_threads, replicas

    def routes(self, front: Front) -> list[Route]:
        self.front = front
        self.models = Models([Served(name, run, self.scheduler, front) for name, run in self.runs.items()])
        return [
            Route("/v1/models", at_once(lambda _: self.list_models())),
            Route("/v1/models/{name:path}", at_once(lambda request: self.show_model(request.path_params["name"]))),
            *(Route(path, self.endpoint(path, verb), methods=["POST"]) for path, verb in VERBS.items()),
        ]

    def endpoint(self, route: str, verb: Verb) -> Callable[[Request], Awaitable[Response]]:
        """Return what reads a request, finds the run that it names, and answers."""

        names = names_of_body(BODIES[route])

        async def endpoint(request: Request) -> Response:
            params = read_json(await request.body())
            params.only(*names)
            name = params.text("model") if "model" in params else None
            served = self.models.find(name, route)
            noted: RequestNotes = request.scope["noted"]
            noted.model = served.name
            run_request = RunRequest(front=self.front, request=request, params=params, served=served, noted=noted)
            return await verb(run_request)

        return endpoint

    def list_models(self) -> Response:
        return as_json({"object": "list", "data": [model.facts() for model in self.models.by_name.values()]})

    def show_model(self, name: str) -> Response:
        return as_json(self.models.named(name).facts())

    def measure(self) -> None:
        metrics = self.front.metrics
        for name, served in self.models.by_name.items():
            metrics.set("pending", served.worker.pending, model=name)
            served.worker.measure()
            processes = [process.pid for process in served.worker.processes]
            seconds = [value for process in processes if (value := cpu_seconds(process)) is not None]
            memory = [value for process in processes if (value := resident_bytes(process)) is not None]
            if processes and len(seconds) == len(memory) == len(processes):
                metrics.set("model_cpu_seconds_total", sum(seconds), model=name)
                metrics.set("model_resident_memory_bytes", float(sum(memory)), model=name)

    def fork(self, inherited: list[socket.socket], on_lost: Callable[[], None]) -> None:
        if self.model_threads is None:
            return
        for model in self.models.by_name.values():
            if can_fork(model.device):
                model.worker.fork(self.model_threads, inherited, on_lost, replicas=self.replicas)
        torch.set_num_threads(self.model_threads)

    async def start(self) -> None:
        for model in self.models.by_name.values():
            await model.worker.start()

    async def warm_up(self) -> None:
        """Have every worker say that it runs."""
        units = [model.worker.compute(object(), list, [None]) for model in self.models.by_name.values()]
        await asyncio.gather(*units)

    def close(self) -> None:
        for model in self.models.by_name.values():
            model.worker.close()

    def check(self) -> None:
        for name, model in self.models.by_name.items():
            if any(process.lost for process in model.worker.processes):
                raise RunError(f"the process of the model {name} ended, and the server with it: start it again")
