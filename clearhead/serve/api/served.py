"""A run that is served: what was loaded of it, and which addresses it answers at.

Everything is read when the server starts. A run folder that is replaced, or removed, later changes nothing: weights are
copied out of their file, and the chat template and the names of classes are kept.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.grammar import TokenBytes
from clearhead.decoding.prefix_cache import PrefixCache
from clearhead.decoding.request import Model
from clearhead.decoding.scheduler import Job, Scheduler
from clearhead.errors import OptionError
from clearhead.model.describe import describe
from clearhead.model.transformers import Decoder, Encoder
from clearhead.serve.api.worker import Worker
from clearhead.serve.app import Front
from clearhead.serve.errors import ApiError
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run
from clearhead.training.tasks.base import Task

SchedulerOf = Callable[[Model, Task], Scheduler]
"""Makes the scheduler of a model that does a task."""
CHAT, EMBEDDINGS, ANSWER = "/v1/chat/completions", "/v1/embeddings", "/v1/answer"
"""The address of runs with a chat template, of those with an encoder alone, and of all."""
SLOTS = 32
"""Sequences of a run that are decoded together."""
SPARE = 16
"""Tokens that a model with any number of positions may have past its context: those that a target begins with."""


def batched(slots: int = SLOTS) -> SchedulerOf:
    """Return what decodes jobs together, each joining and leaving the batch at any token."""

    def scheduler(model: Model, task: Task) -> Scheduler:
        # A table of positions sets the limit itself; where there is none, the context does.
        def limit(part: Decoder | Encoder) -> int | None:
            position = part.embedding.position
            return task.context + SPARE if position is None or position.length is None else None

        reads, writes = None if model.encoder is None else limit(model.encoder), limit(model.decoder)
        tokens = TokenBytes(task.tokenizer.token_bytes)
        return ContinuousBatch(
            model, slots=slots, columns=writes, source_columns=reads, prefixes=PrefixCache(), tokens=tokens
        )

    return scheduler


class Served:
    """A run with its worker, under the name that requests call it by."""

    def __init__(
        self,
        name: str,
        run: Run,
        scheduler: SchedulerOf,
        front: Front,
        *,
        base: "Served | None" = None,
        adapter: int = 0,
    ) -> None:
        """`base`: for a run that is adapters beside another's weights, that one. Both are decoded in one batch."""
        self.name, self.run, self.task, self.base, self.adapter = name, run, run.task, base, adapter
        self.template = run.folder.chat() if run.task.target == "continues" else None
        self.rendering = asyncio.Lock()  # a slow template keeps one thread from the other runs, not all of them
        self.loaded, self.step = int(time.time()), run.step
        self.id = run.folder.id()
        described = describe(cast(Any, run.model), source=1, target=1)
        self.parameters, self.memory = described.parameters, described.memory(self.dtype)
        writes = run.model.decoder is not None and run.task.target != "none"
        model = cast(Model, run.model)
        make = (lambda: scheduler(model, run.task)) if writes else None
        self.worker = Worker(name, make, front) if base is None else base.worker

    def job(self, job: Job) -> Job:
        """Return a job as the worker takes it: with the run's adapter."""
        return replace(job, adapter=self.adapter) if self.adapter else job

    @property
    def dtype(self) -> torch.dtype:
        return next(self.run.model.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.run.model.parameters()).device

    @property
    def fingerprint(self) -> str:
        """Return which weights these are: the run's id and the step."""
        return f"fp_{(self.id or 'none')[:12]}_{self.step}"

    @property
    def routes(self) -> list[str]:
        """Return the addresses that it answers at."""
        own = [route for route in self.task.routes if route != CHAT or self.template is not None]
        return [*own, *([EMBEDDINGS] if self.run.model.decoder is None else []), ANSWER]

    def facts(self) -> dict[str, Any]:
        """Return what /v1/models says of it."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.loaded,
            "owned_by": "clearhead",
            "task": self.task.name,
            "step": self.step,
            "fingerprint": self.fingerprint,
            "parameters": self.parameters,
            "context": self.task.context,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "routes": self.routes,
        }

    def cache_bytes(self, job: Job, width: int) -> int:
        """Estimate the most memory that a job's KV caches take, for this many beams."""
        read = len(job.inputs)
        positions = job.rules.max_new + (read if job.prefix is None else len(job.prefix))
        source = 0 if job.prefix is None else read
        return width * (self.memory.fixed + self.memory.token * positions) + self.memory.source_token * source


class Models:
    """The runs that are served, by name."""

    def __init__(self, models: Sequence[Served]) -> None:
        self.by_name = {model.name: model for model in models}
        self.own = [model for model in models if model.base is None]
        """Those with a worker of their own."""

    def find(self, name: str | None, route: str) -> Served:
        """Return the run that a request names; without a name, the only one that this address serves."""
        if name is None:
            candidates = [candidate for candidate in self.by_name.values() if route in candidate.routes]
            if len(candidates) == 1:
                return candidates[0]
            message = f"model: several runs are served here, so a request must name one: {', '.join(self.by_name)}"
            if not candidates:
                message = f"no run that is served answers at {route}"
            raise ApiError(400, message, param="model", code="model_required")
        model = self.named(name)
        if route not in model.routes:
            message = f"{name} was trained to {model.task.name}, and answers at {', '.join(model.routes)}"
            if route == CHAT and "/v1/completions" in model.routes:
                message = f"{name} has no chat template: its model was not trained to talk; use /v1/completions"
            raise ApiError(400, message, param="model", code="wrong_task")
        return model

    def named(self, name: str) -> Served:
        if name not in self.by_name:
            message = f"there is no model {name[:100]!r}; there are {', '.join(self.by_name)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.by_name[name]


def names_of(folders: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Return what runs are called: by the names that were given, else by their folders."""
    if names and len(names) != len(folders):
        raise OptionError(f"name: there are {len(folders)} runs and {len(names)} names; give one for each, or none")
    chosen = list(names) or [folder.path.resolve().name for folder in folders]
    twice = next((name for name in chosen if chosen.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"two runs are called {twice!r}: give each a --name of its own")
    return chosen
