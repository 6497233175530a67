"""The API's routes: every kind of run over HTTP, in OpenAI's form where it has one."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import final

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from clearhead.errors import OptionError, RunError
from clearhead.model.lora import share_adapters
from clearhead.serve.api import completions, model_process, one_pass
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
    "/v1/completions": completions.complete,
    "/v1/chat/completions": completions.chat,
    "/v1/classify": one_pass.classify,
    "/v1/fill": one_pass.fill,
    "/v1/embeddings": one_pass.embed,
    "/v1/answer": one_pass.answer,
}


def check_replicas(replicas: int, runs: Sequence[Run], model_threads: int | None) -> None:
    """Raise OptionError where a run cannot be served by this many processes."""
    if replicas < 1:
        raise OptionError(f"replicas must be 1 or more; came {replicas}")
    devices = [next(run.model.parameters()).device for run in runs]
    if replicas > 1 and (model_threads is None or not all(map(model_process.can_fork, devices))):
        raise OptionError(
            f"replicas: {replicas} processes for a run need models on the CPU, a system that forks (not macOS), and "
            f"threads for each; here models are on {', '.join(sorted({device.type for device in devices}))}. "
            "Leave it at 1"
        )


def find_adapters(run: Run, adapters: Sequence[Run]) -> dict[str, Run]:
    """Return those that were fine-tuned from a run, by the names of their folders."""
    sources = [(adapter, adapter.folder.fine_tuning()) for adapter in adapters]
    return {
        adapter.folder.path.resolve().name: adapter
        for adapter, tuning in sources
        if tuning is not None and (tuning.run, tuning.step) == (run.folder.id(), run.step)
    }


@final
class Api(Service):
    """Runs and their workers, for `Server`. Models answer under the names of their folders, or under `names`.

    Args:
        runs: The runs.
        names: A name for each.
        adapters: Runs fine-tuned from one of them by LoRA, loaded with `merge=False`. They answer at NAME:FOLDER and
            share the batch and the weights of the run they came from.
        scheduler: Decodes the jobs of a run; by default they share a batch.
        model_threads: Give each run that decodes on the CPU its own process with this many threads, if the system can
            fork.
        replicas: How many such processes each run has, each with its own batch.

    Raises:
        OptionError: If names are missing or used twice, or an adapter fits no run.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        names: Sequence[str] = (),
        adapters: Sequence[Run] = (),
        scheduler: SchedulerOf | None = None,
        model_threads: int | None = None,
        replicas: int = 1,
    ) -> None:
        if not runs:
            raise OptionError("there is nothing to serve: give at least one run")
        check_replicas(replicas, runs, model_threads)
        self.runs = dict(zip(names_of([run.folder for run in runs], names), runs, strict=True))
        self.adapters = {name: find_adapters(run, adapters) for name, run in self.runs.items()}
        for adapter in adapters:
            if not any(adapter in found.values() for found in self.adapters.values()):
                raise OptionError(f"adapter: {adapter.folder.path} was not fine-tuned from a run that is served here")
        for name, found in self.adapters.items():
            if found:
                if self.runs[name].model.encoder is not None:
                    raise OptionError(f"adapter: adapters stand beside a decoder alone, and {name} has an encoder too")
                share_adapters(self.runs[name].model, [adapter.model for adapter in found.values()])
        self.scheduler, self.model_threads, self.replicas = scheduler or batched(), model_threads, replicas

    def routes(self, front: Front) -> list[Route]:
        self.front = front
        self.models = Models(list(self.serve_all(front)))
        return [
            Route("/v1/models", at_once(lambda _: self.list_models())),
            Route("/v1/models/{name:path}", at_once(lambda request: self.show_model(request.path_params["name"]))),
            *(Route(path, self.endpoint(path, verb), methods=["POST"]) for path, verb in VERBS.items()),
        ]

    def serve_all(self, front: Front) -> Iterator[Served]:
        """Yield the runs, each with its adapters after it."""
        for name, run in self.runs.items():
            base = Served(name, run, self.scheduler, front)
            yield base
            for number, (adapter, adapted) in enumerate(self.adapters[name].items(), 1):
                yield Served(f"{name}:{adapter}", adapted, self.scheduler, front, base=base, adapter=number)

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
        for served in self.models.own:
            name = served.name
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
        for model in self.models.own:
            if model_process.can_fork(model.device):
                model.worker.fork(self.model_threads, inherited, on_lost, replicas=self.replicas)
        torch.set_num_threads(self.model_threads)

    async def start(self) -> None:
        for model in self.models.own:
            await model.worker.start()

    async def warm_up(self) -> None:
        """Have every worker say that it runs."""
        units = [model.worker.compute(object(), list, [None]) for model in self.models.own]
        await asyncio.gather(*units)

    def close(self) -> None:
        for model in self.models.own:
            model.worker.close()

    def check(self) -> None:
        for model in self.models.own:
            if any(process.lost for process in model.worker.processes):
                raise RunError(f"the process of the model {model.name} ended, and the server with it: start it again")
