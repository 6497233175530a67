"""A request as every address takes it: the run it names, its options, and how its answer is sent."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from clearhead.serve.api.attention import WeightsOptions, attention_of
from clearhead.serve.api.served import Served
from clearhead.serve.app import Front, RequestNotes
from clearhead.serve.errors import ApiError
from clearhead.serve.events import EventStream, Producer, answer_in_time
from clearhead.serve.limits import Limits
from clearhead.serve.params import Fields, Params, read_fields
from clearhead.training.tasks.base import TraceInputs

LONG = 20_000
"""Characters from which on a text is tokenised on another thread, so that the event loop goes on."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A request for one run."""

    front: Front
    request: Request
    params: Params
    served: Served
    noted: RequestNotes

    @property
    def limits(self) -> Limits:
        return self.front.limits

    def read(self, kind: type[Fields]) -> Fields:
        """Return what was sent, checked as its fields say (`clearhead.serve.bodies`)."""
        return read_fields(kind, self.params, self.limits)

    def usage(self, read: int, written: int | None = None) -> dict[str, int]:
        """Return the tokens that were read and written, and count them."""
        first = self.noted.prompt_tokens is None
        self.noted.prompt_tokens, self.noted.completion_tokens = read, written
        if first:
            self.front.metrics.count("prompt_tokens_total", float(read), model=self.served.name)
            self.front.metrics.count("generated_tokens_total", float(written or 0), model=self.served.name)
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

    def in_time(self, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """Return what the work returns, once it is awaited; ApiError 504 where it takes too long."""
        return answer_in_time(self.request.scope, work, self.limits.seconds)

    def stream(self, produce: Producer) -> Response:
        """Return the answer as server-sent events."""
        limits = self.limits
        return EventStream(produce, seconds=limits.seconds, unread=limits.unread, logs=self.front.logs)

    def first_token(self) -> None:
        """Note that a token of a stream has come; the time of the first one is measured."""
        if not self.noted.streamed:
            seconds = time.perf_counter() - self.noted.began
            self.front.metrics.observe("first_token_seconds", seconds, model=self.served.name)
        self.noted.streamed = True

    async def attention(self, inputs: TraceInputs, attention_options: WeightsOptions) -> dict[str, Any]:
        """Return the weights of a text, computed by the run's worker."""
        run, most = self.served.run, self.limits.attention
        if any(len(ids) > self.served.task.context for ids in inputs.ids.values()):
            message = f"attention: the text is longer than the model's context of {self.served.task.context} tokens"
            raise ApiError(413, message, param="attention", code="attention_too_large")

        def compute(items: list[TraceInputs]) -> list[dict[str, Any]]:
            return [attention_of(run, item, attention_options, most) for item in items]

        [answer] = await self.served.worker.compute(object(), compute, [inputs])
        return answer
