"""Sequences: texts as jobs of a scheduler, followed token by token until they end.

A translation is one job. A text that a decoder continues past its context is several, one after another, as
`clearhead generate` does it: each reads the last half of what there is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from clearhead.decoding.beam import Beam
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.rules import Rules
from clearhead.decoding.sampling import Greedy, Sample
from clearhead.decoding.scheduler import Finished, Job
from clearhead.serve.api.served import Served
from clearhead.serve.api.writing import Writing
from clearhead.serve.errors import ApiError
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks import Framing, Generate, Translate
from clearhead.training.tasks.generate import last_ids, window, with_seeds

Following = Callable[[Sequence[int]], Job | None]
"""The job that goes on from the tokens so far; None where there is none."""


@final
@dataclass(frozen=True, kw_only=True)
class Text:
    """A text to decode. `before`: ids of the text that the output continues; `following` is asked after each job."""

    first: Job
    following: Following
    tokenizer: Tokenizer
    before: Sequence[int]
    unread: int = 0
    """Tokens that the model does not read, since there are too many."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.first.inputs)


@final
@dataclass(frozen=True, kw_only=True)
class ExtraRules:
    """Rules of decoding that a request adds to those of the task."""

    min_new: int = 0
    repetition_penalty: float = 1.0
    no_repeat: int = 0
    candidates: int = 0


def translation(task: Translate, row: Sequence[int], method: Greedy | Beam, *, candidates: int = 0) -> Text:
    """Return the job of a source's ids, as `Translate.search` gives it to `generate`."""
    reads = task.frame("source")
    most = task.context - reads.size
    decoding = task.decoding({"encoder": reads.around(row, most)}, max_new=None, usual=0)
    assert decoding.prefix is not None
    job = Job(
        inputs=tuple(decoding.source),
        rules=decoding.rules,
        method=method,
        prefix=tuple(decoding.prefix[0]),
        candidates=candidates,
    )
    return Text(
        first=job, following=lambda _: None, tokenizer=decoding.writes, before=(), unread=max(0, len(row) - most)
    )


def continuation(
    task: Generate, row: Sequence[int], method: Greedy | Sample, *, max_new: int, framing: Framing, cuts: ExtraRules
) -> Text:
    """Return the jobs that continue a row of ids, as `Generate.stream` decodes it."""
    read, window_new = window(task.context, max_new)
    line = [*framing.before, *row] or task.opener()
    opening = () if task.framing is None else framing.before

    def job(tokens: Sequence[int]) -> Job | None:
        begun = len(tokens)
        if begun >= max_new:
            return None
        rules = Rules(
            max_new=min(window_new, max_new - begun),
            min_new=max(0, min(cuts.min_new - begun, window_new, max_new - begun)),
            end=framing.ends,
            never=framing.never,
            repetition_penalty=cuts.repetition_penalty,
            no_repeat=cuts.no_repeat,
        )
        inputs = tuple(last_ids([*line, *tokens], read, opening))
        seeded = with_seeds(method, [0], begun)
        return Job(inputs=inputs, rules=rules, method=seeded, candidates=cuts.candidates)

    first = job(())
    assert first is not None
    return Text(first=first, following=job, tokenizer=task.tokenizer, before=list(row), unread=max(0, len(line) - read))


async def follow(served: Served, text: Text, writing: Writing, *, each_token: bool) -> AsyncIterator[str]:
    """Decode a text by greedy search or sampling into `writing`, and yield its pieces as they are certain.

    Without `each_token` there is one piece, at the end. When the caller stops iterating, the row in the batch is freed.
    """
    job: Job | None = text.first
    ended = False
    while job is not None and not ended and not writing.stopped:
        decoding = served.worker.decode(job, each_token=each_token or bool(writing.stops.strings))
        try:
            while not writing.stopped:
                event = await decoding.next_event()
                if isinstance(event, Finished):
                    [hypothesis] = event.hypotheses
                    if not decoding.each_token:
                        writing.add_all(hypothesis.tokens, hypothesis.log_probs, hypothesis.candidates)
                    ended = hypothesis.ended or len(hypothesis.tokens) < job.rules.max_new
                    break
                if piece := writing.add(event.token, event.log_prob, event.candidates):
                    yield piece
        finally:
            served.worker.cancel(decoding)
        job = text.following(writing.ids)
    if piece := writing.close(ended=ended):
        yield piece


async def search(served: Served, text: Text) -> list[Hypothesis]:
    """Return the hypotheses of a beam."""
    decoding = served.worker.decode(text.first)
    try:
        while True:
            event = await decoding.next_event()
            if isinstance(event, Finished):
                return event.hypotheses
    finally:
        served.worker.cancel(decoding)


def check_unread(texts: Sequence[Text], param: str, *, truncate: bool) -> None:
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


def choose_method(temperature: float, *, seed: int, top_p: float, top_k: int | None, min_p: float) -> Greedy | Sample:
    """Return how tokens are chosen; a temperature of 0 is greedy decoding."""
    if temperature == 0:
        return Greedy()
    return Sample(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seeds=seed)


def with_seed(method: Greedy | Sample, seed: int) -> Greedy | Sample:
    return method if isinstance(method, Greedy) else replace(method, seeds=seed)
