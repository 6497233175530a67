"""Passages decoded by a run's worker, token by token until they end, and the reply or the stream of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from starlette.responses import Response

from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.scheduler import Finished, Job
from clearhead.serve.api.request import RunRequest
from clearhead.serve.api.served import Served
from clearhead.serve.api.writing import OutputText
from clearhead.serve.errors import ApiError
from clearhead.serve.events import Outgoing
from clearhead.serve.replies import as_json
from clearhead.training.tasks.answering import Passage

Work = Callable[[], Coroutine[Any, Any, dict[str, Any]]]
Streaming = Callable[[Outgoing], Coroutine[Any, Any, None]]


async def follow(served: Served, text: Passage, writing: OutputText, *, each_token: bool) -> AsyncIterator[str]:
    """Decode a text by greedy search or sampling into `writing`, and yield its pieces as they are certain.

    Without `each_token` there is one piece, at the end. When the caller stops iterating, the row in the batch is freed.
    """
    job: Job | None = text.first
    over = ended = False
    while job is not None and not over and not writing.stopped:
        decoding = served.worker.decode(served.job(job), each_token=each_token or bool(writing.stops.strings))
        try:
            while not writing.stopped:
                event = await decoding.next_event()
                if isinstance(event, Finished):
                    [hypothesis] = event.hypotheses
                    if not decoding.each_token:
                        writing.add_all(hypothesis.tokens, hypothesis.log_probs, hypothesis.candidates)
                    over = hypothesis.ended or len(hypothesis.tokens) < job.rules.max_new  # nothing more is allowed
                    ended = over and (hypothesis.ended or job.rules.grammar is None)  # a grammar may pass its bounds
                    break
                if piece := writing.add(event.token, event.log_prob, event.candidates):
                    yield piece
        finally:
            served.worker.cancel(decoding)
        job = text.following(writing.ids)
    if piece := writing.close(ended=ended):
        yield piece


async def search(served: Served, text: Passage) -> list[Hypothesis]:
    """Return the hypotheses of a beam."""
    decoding = served.worker.decode(served.job(text.first))
    try:
        while True:
            event = await decoding.next_event()
            if isinstance(event, Finished):
                return event.hypotheses
    finally:
        served.worker.cancel(decoding)


def check_unread(texts: Sequence[Passage], param: str, *, truncate: bool) -> None:
    """Refuse texts longer than the model reads, unless the request sets `truncate`."""
    for index, text in enumerate(texts):
        if text.unread and not truncate:
            refuse_unread(param, index, len(texts), text.unread)


def refuse_unread(param: str, index: int, count: int, unread: int) -> None:
    name = f"{param}[{index}]" if count > 1 else param
    message = (
        f"{name}: the model would not read {unread} of its tokens; shorten it, ask for fewer max_tokens where that is "
        'an option, or say "truncate": true'
    )
    raise ApiError(413, message, param=param, code="context_length_exceeded")


async def together(tasks: Sequence[Any]) -> list[Any]:
    """Await coroutines side by side; where one fails, or the caller is cancelled, all others are cancelled too."""
    if len(tasks) == 1:
        return [await tasks[0]]
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(task) for task in tasks]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in running]


async def respond(
    request: RunRequest, texts: Sequence[Passage], work: Work, streaming: Streaming | None, *, width: int = 1
) -> Response:
    """Reserve room for the texts in the worker's queue, and return the reply, or the stream where there is one."""
    worker, memory = request.served.worker, sum(request.served.cache_bytes(text.first, width) for text in texts)
    worker.check_room(len(texts), memory)
    if streaming is not None:

        async def produce(out: Outgoing) -> None:
            with worker.taking(len(texts), memory):
                await streaming(out)

        return request.stream(produce)

    with worker.taking(len(texts), memory):
        return as_json(await request.in_time(work()))
