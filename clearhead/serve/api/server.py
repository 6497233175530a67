"""The server of the API: runs and their workers, the app before them, and uvicorn around it."""

import asyncio
import contextlib
import functools
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from clearhead.errors import OptionError, RunError
from clearhead.serve.api.app import State, make_app
from clearhead.serve.api.connection import connection_class
from clearhead.serve.api.limits import ApiLimits
from clearhead.serve.api.logs import Logs
from clearhead.serve.api.metrics import Metrics
from clearhead.serve.api.model_process import can_fork
from clearhead.serve.api.request import Api
from clearhead.serve.api.served import Models, SchedulerOf, Served, batched, names_of
from clearhead.serve.connections import Limits, QuietServer, quiet_config
from clearhead.serve.guard import ServerAddress, check_token
from clearhead.serve.server import listen
from clearhead.training.run import Run

LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEPT_ALIVE = 30
"""Seconds for which a connection may be silent between two requests."""


@final
@dataclass(frozen=True, kw_only=True)
class Tls:
    """The files of a certificate, as uvicorn takes them."""

    certificate: Path
    key: Path | None = None

    def check(self) -> None:
        """Raise OptionError where they cannot be used, before anything is served."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise OptionError(f"ssl-certfile: {self.certificate} and its key cannot be used ({error})") from None


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
class ApiServer:
    """Serves runs. It listens from when it is made; port 0 is any that is free, in `address`.

    `token` None: no token is asked for. Models answer at the names of their folders, or at `names`.
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
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        cors: Sequence[str] = (),
        tls: Tls | None = None,
        limits: ApiLimits = ApiLimits(),
        logs: Logs | None = None,
        connections: Limits = Limits(connections=1024),
    ) -> None:
        if not runs:
            raise OptionError("there is nothing to serve: give at least one run")
        if token is not None:
            check_token(token)
        if tls is not None:
            tls.check()
        self.limits, self.logs, self.metrics, self.state = limits, logs or Logs(), Metrics(), State()
        self.model_threads, self.replicas = model_threads, replicas
        check_replicas(replicas, runs, model_threads)
        self.models = Models(
            [
                Served(name, run, scheduler or batched(), limits=limits, metrics=self.metrics, logs=self.logs)
                for name, run in zip(names_of([run.folder for run in runs], names), runs, strict=True)
            ]
        )
        self.socket = listen(host, port)
        self.place = ServerAddress(host=host, port=self.socket.getsockname()[1], token=token or "")
        self.scheme = "http" if tls is None else "https"
        api = Api(models=self.models, limits=limits, metrics=self.metrics, logs=self.logs)
        # Without a token a page of another site must not get here by a name of its own that points to this machine.
        app = make_app(api, self.state, place=self.place if token is None else None, token=token, cors=tuple(cors))
        files: dict[str, Any] = {} if tls is None else {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
        self.draining_since: float | None = None
        self.uvicorn = QuietServer(
            quiet_config(
                self.with_workers(app),
                functools.partial(connection_class(), connections),
                loop="auto",  # uvloop where it is installed
                lifespan="on",
                timeout_keep_alive=KEPT_ALIVE,
                **files,
            ),
            drained=self.is_drained,
        )

    @property
    def address(self) -> str:
        """Return where it is reached, without a slash at the end."""
        host = "127.0.0.1" if self.place.everywhere else self.place.host
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.place.port}"

    def run(self) -> None:
        """Serve until told to stop, by SIGTERM, Ctrl-C or `stop`. RunError where the process of a model has died."""
        with contextlib.suppress(KeyboardInterrupt), self.socket:
            if self.model_threads is not None:
                self.fork_models(self.model_threads)
            self.uvicorn.run(sockets=[self.socket])
        for name, model in self.models.by_name.items():
            if any(process.lost for process in model.worker.processes):
                raise RunError(f"the process of the model {name} ended, and the server with it: start it again")

    def fork_models(self, threads: int) -> None:
        inherited = [self.socket]
        for model in self.models.by_name.values():
            if can_fork(model.device):
                model.worker.fork(threads, inherited, replicas=self.replicas)
            for process in model.worker.processes:
                inherited.append(process.link)
                process.on_lost = self.stop
        torch.set_num_threads(threads)

    def stop(self) -> None:
        """Stop taking requests, from another thread; those under way may end within the time of the drain."""
        self.uvicorn.signalled = True

    def is_drained(self) -> bool:
        """Return whether the server may end: nothing is under way any more, or the time for it is over."""
        if self.draining_since is None:
            self.draining_since, self.state.draining = time.monotonic(), True
            self.logs.event("draining", running=self.state.running, seconds=self.limits.drain)
        over = time.monotonic() - self.draining_since > self.limits.drain
        if over and self.state.running:
            self.logs.event("drain_over", running=self.state.running)
        return over or not self.state.running

    def with_workers(self, app: Any) -> Any:
        """Return the app with the workers started before its first request, and closed after its last."""

        async def with_lifespan(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "lifespan":
                await app(scope, receive, send)
                return
            await receive()
            for model in self.models.by_name.values():
                await model.worker.start()
            await send({"type": "lifespan.startup.complete"})
            warming = asyncio.ensure_future(self.warm_up())
            await receive()
            warming.cancel()
            for model in self.models.by_name.values():
                model.worker.close()
            self.logs.event("stopped")
            await send({"type": "lifespan.shutdown.complete"})

        return with_lifespan

    async def warm_up(self) -> None:
        """Have every worker say that it runs; then requests are taken."""
        for model in self.models.by_name.values():
            await model.worker.compute(object(), lambda items: items, [None])
        self.state.ready = True
        self.logs.event("ready", models=list(self.models.by_name), address=self.address)
