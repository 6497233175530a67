"""A request as every address takes it: the run it names, its options, and how its answer is sent."""

import asyncio
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response

from clearhead.serve.api.attention import AttentionOptions, attention_of
from clearhead.serve.api.errors import ApiError
from clearhead.serve.api.events import EventStream, Producer, answer_in_time
from clearhead.serve.api.limits import ApiLimits
from clearhead.serve.api.logs import Logs
from clearhead.serve.api.metrics import Metrics
from clearhead.serve.api.options import Options
from clearhead.serve.api.served import Models, Served
from clearhead.serve.params import read_json
from clearhead.serve.replies import as_json
from clearhead.training.tasks.base import TraceInputs

LONG = 20_000
"""Characters from which on a text is tokenised on another thread, so that the event loop goes on."""


@final
@dataclass(kw_only=True)
class RequestNotes:
    """Facts about a request that its line in the log will have, noted while it is answered."""

    id: str = field(default_factory=lambda: secrets.token_hex(12))
    began: float = field(default_factory=time.perf_counter)
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Api:
    """What all addresses share."""

    models: Models
    limits: ApiLimits
    metrics: Metrics
    logs: Logs

    async def ask(self, request: Request, route: str) -> "RunRequest":
        """Read a request; ApiError where it is not JSON, or names no run that this address serves."""
        params = read_json(await request.body())
        options = Options(params)
        name = options.values.get("model")
        if name is not None and not isinstance(name, str):
            raise options.error("model", "expected the name of a model", name)
        served = self.models.find(name, route)
        noted: RequestNotes = request.scope["noted"]
        noted.model = served.name
        return RunRequest(api=self, request=request, options=options, served=served, noted=noted)


@final
@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A request for one run."""

    api: Api
    request: Request
    options: Options
    served: Served
    noted: RequestNotes

    @property
    def limits(self) -> ApiLimits:
        return self.api.limits

    def usage(self, read: int, written: int | None = None) -> dict[str, int]:
        """Return the tokens that were read and written, and count them."""
        first = self.noted.prompt_tokens is None
        self.noted.prompt_tokens, self.noted.completion_tokens = read, written
        if first:
            self.api.metrics.count("prompt_tokens_total", float(read), model=self.served.name)
            self.api.metrics.count("generated_tokens_total", float(written or 0), model=self.served.name)
        counts = {"prompt_tokens": read, "total_tokens": read + (written or 0)}
        return counts if written is None else {**counts, "completion_tokens": written}

    async def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of texts in the run's input."""
        tokenizer = self.served.run.tokenizer
        if len(texts) == 1:  # a batch is spread over the cores, which takes longer than a short text does
            return await self.apart(texts, lambda batch: [tokenizer.encode(batch[0])])
        return await self.apart(texts, tokenizer.encode_batch)

    async def apart(self, texts: list[str], work: Any) -> Any:
        """Do work on texts, on another thread where they are long."""
        if sum(map(len, texts)) > LONG:
            return await asyncio.to_thread(work, texts)
        return work(texts)

    async def reply(self, work: Coroutine[Any, Any, dict[str, Any]]) -> Response:
        """Return the answer as JSON, once it is there."""
        answer = await answer_in_time(self.request.scope, work, self.limits.seconds)
        return as_json(answer)

    def stream(self, produce: Producer) -> Response:
        """Return the answer as server-sent events."""
        limits = self.limits
        return EventStream(produce, seconds=limits.seconds, unread=limits.unread, logs=self.api.logs)

    def first_token(self) -> None:
        """Note that the first token of a stream has come."""
        seconds = time.perf_counter() - self.noted.began
        self.api.metrics.observe("first_token_seconds", seconds, model=self.served.name)

    async def attention(self, inputs: TraceInputs, attention_options: AttentionOptions) -> dict[str, Any]:
        """Return the weights of a text, computed by the run's worker."""
        run, most = self.served.run, self.limits.attention
        if any(len(ids) > self.served.task.context for ids in inputs.ids.values()):
            message = f"attention: the text is longer than the model's context of {self.served.task.context} tokens"
            raise ApiError(413, message, param="attention", code="attention_too_large")

        def compute(items: list[TraceInputs]) -> list[dict[str, Any]]:
            return [attention_of(run, item, attention_options, most) for item in items]

        [answer] = await self.served.worker.compute(object(), compute, [inputs])
        return answer
