"""/v1/completions and /v1/chat/completions: a decoder continues prompts, or replies in a conversation, as at OpenAI."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

from starlette.responses import Response

from clearhead.decoding.sampling import Greedy, Sample
from clearhead.errors import ClearheadError
from clearhead.serve.api.attention import AttentionOptions, read_attention
from clearhead.serve.api.errors import ApiError
from clearhead.serve.api.events import Outgoing
from clearhead.serve.api.options import Options, check_count, check_length
from clearhead.serve.api.request import RunRequest
from clearhead.serve.api.sequences import (
    ExtraRules,
    Text,
    check_unread,
    choose_method,
    continuation,
    follow,
    together,
    with_seed,
)
from clearhead.serve.api.writing import Writing, WrittenToken
from clearhead.training.answers import token_names
from clearhead.training.tasks import Generate
from clearhead.training.tasks.base import TraceInputs
from clearhead.training.tasks.framing import Framing
from clearhead.training.tasks.generate import MAX_NEW

USUAL_TOKENS = 16
"""New tokens of a completion, unless asked otherwise: OpenAI's."""
MOST_STOPS, MOST_LOGPROBS = 16, 20
SHARED = (
    *("model", "stream", "stream_options", "n", "seed", "stop", "temperature", "top_p", "top_k", "min_p"),
    *("min_tokens", "repetition_penalty", "no_repeat_ngram_size", "truncate", "attention", "user"),
    *("frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "max_tokens"),
)
COMPLETION = (*SHARED, "prompt", "best_of", "echo", "suffix")
CHAT = (
    *SHARED,
    *("messages", "max_completion_tokens", "top_logprobs", "response_format", "tools", "tool_choice", "functions"),
    *("modalities", "store", "parallel_tool_calls", "service_tier"),
)
NOT_HERE: dict[str, Any] = {"logit_bias": {}, "suffix": "", "tools": [], "functions": [], "tool_choice": "none"}
NOT_HERE |= {"response_format": {"type": "text"}, "modalities": ["text"], "store": False, "service_tier": "auto"}
NOT_HERE |= {"parallel_tool_calls": False}
"""Options of OpenAI's that cannot be followed, and the value with which each asks for nothing."""


@final
@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """The options of a request for completions or a chat, checked."""

    form: Literal["text_completion", "chat.completion"]
    id: str
    created: int
    n: int
    best_of: int
    method: Greedy | Sample
    seed: int
    stops: tuple[str, ...]
    logprobs: int | None
    """Likeliest tokens to tell at each place; None: no log-probabilities at all."""
    cuts: ExtraRules
    truncate: bool
    stream: bool
    with_usage: bool
    attention: AttentionOptions | None
    echo: bool = False

    @property
    def is_chat(self) -> bool:
        return self.form == "chat.completion"


async def complete(request: RunRequest) -> Response:
    """Answer /v1/completions."""
    options, task = request.options, request.served.task
    assert isinstance(task, Generate)
    options.only(*COMPLETION)
    rows, prompts, framing = await read_prompts(request, task.frame())
    logprobs = options.integer("logprobs", 0, least=0, most=MOST_LOGPROBS) if "logprobs" in options else None
    n = options.integer("n", 1, least=1, most=request.limits.texts)
    best_of = options.integer("best_of", n, least=n, most=request.limits.texts)
    completion = read_completion_options(request, "text_completion", n=n, best_of=best_of, logprobs=logprobs)
    completion = replace(completion, echo=options.flag("echo"))
    if completion.stream and best_of > n:
        raise ApiError(
            400, "best_of: the best are known at the end only; leave out stream, or best_of", param="best_of"
        )
    if completion.echo and logprobs is not None:
        raise ApiError(400, "echo: the prompt's own log-probabilities are not told; leave out logprobs", param="echo")
    max_new = options.integer("max_tokens", USUAL_TOKENS, least=1, most=request.limits.tokens)
    check_count("prompt", len(rows) * best_of, request.limits.texts)
    texts = make_texts(request, rows, completion, max_new, framing)
    check_unread(texts, "prompt", truncate=completion.truncate)
    return await answer(request, completion, texts, [prompt for prompt in prompts for _ in range(best_of)])


async def chat(request: RunRequest) -> Response:
    """Answer /v1/chat/completions."""
    options, task, template = request.options, request.served.task, request.served.template
    assert isinstance(task, Generate)
    assert template is not None
    options.only(*CHAT)
    messages = read_messages(options, request.limits.text)
    try:
        async with request.served.rendering:
            prompt = await asyncio.to_thread(template.render, messages)
    except ClearheadError as error:
        raise ApiError(400, str(error), param="messages", code="invalid_value") from None
    [row] = await request.encode([prompt])
    n = options.integer("n", 1, least=1, most=request.limits.texts)
    with_logprobs = options.flag("logprobs")
    top = options.integer("top_logprobs", 0, least=0, most=MOST_LOGPROBS)
    if top and not with_logprobs:
        raise ApiError(400, "top_logprobs: they come with logprobs: true; add it", param="top_logprobs")
    completion = read_completion_options(
        request, "chat.completion", n=n, best_of=n, logprobs=top if with_logprobs else None
    )
    # A template brings its own special tokens. Without a number, as much is written as there is room for.
    framing = replace(task.frame(), before=())
    room = max(1, min(MAX_NEW, task.context - len(row)))
    name = "max_completion_tokens" if "max_completion_tokens" in options else "max_tokens"
    max_new = options.integer(name, room, least=1, most=request.limits.tokens)
    texts = make_texts(request, [row], completion, max_new, framing)
    check_unread(texts, "messages", truncate=completion.truncate)
    return await answer(request, completion, texts, [""] * n)


def read_completion_options(
    request: RunRequest,
    form: Literal["text_completion", "chat.completion"],
    *,
    n: int,
    best_of: int,
    logprobs: int | None,
) -> CompletionOptions:
    """Read the options that both addresses have."""
    options = request.options
    options.refuse({"frequency_penalty": 0, "presence_penalty": 0}, "is not there; repetition_penalty is")
    options.refuse(NOT_HERE, "cannot be followed here")
    stream = options.flag("stream")
    seed = options.integer("seed", secrets.randbits(31), least=-(2**63), most=2**63 - 1)
    with options.naming("top_p"):
        method = choose_method(
            options.number("temperature", 1.0, least=0, most=100),
            seed=seed % 2**62,
            top_p=options.number("top_p", 1.0, least=1e-6, most=1),
            top_k=options.integer("top_k", 1, least=1, most=2**31) if "top_k" in options else None,
            min_p=options.number("min_p", 0.0, least=0, most=1),
        )
    attention = read_attention(options, request.served.run)
    if attention is not None and stream:
        raise ApiError(400, "attention: the weights are of the whole text; leave out stream", param="attention")
    return CompletionOptions(
        form=form,
        id=("chatcmpl-" if form == "chat.completion" else "cmpl-") + request.noted.id,
        created=int(time.time()),
        n=n,
        best_of=best_of,
        method=method,
        seed=seed % 2**62,
        stops=read_stops(options),
        logprobs=logprobs,
        cuts=ExtraRules(
            min_new=options.integer("min_tokens", 0, least=0, most=request.limits.tokens),
            repetition_penalty=options.number("repetition_penalty", 1.0, least=0.01, most=100),
            no_repeat=options.integer("no_repeat_ngram_size", 0, least=0, most=1000),
            candidates=logprobs or 0,
        ),
        truncate=options.flag("truncate"),
        stream=stream,
        with_usage=read_stream_options(options, stream=stream),
        attention=attention,
    )


async def read_prompts(request: RunRequest, framing: Framing) -> tuple[list[list[int]], list[str], Framing]:
    """Return the ids and the texts of the prompts, and their framing: a text, a list of texts, ids, or lists of ids.

    Ids are read as they are, as at OpenAI: a client that has them has the special tokens before them, too.
    """
    options, limits = request.options, request.limits
    value = options.values.get("prompt")
    if value is None:
        raise ApiError(400, "prompt: expected a text, or a list of texts", param="prompt", code="invalid_value")
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(item, list) for item in value):
        texts = options.texts("prompt", most=limits.texts, longest=limits.text)
        return await request.encode(texts), texts, framing
    check_count("prompt", len(value), limits.texts)
    vocabulary = request.served.run.tokenizer.vocabulary
    for row in value:
        if not row or not all(isinstance(item, int) and not isinstance(item, bool) for item in row):
            raise options.error("prompt", "expected texts, or lists of token ids", row)
        if not all(0 <= item < vocabulary for item in row):
            raise options.error("prompt", f"token ids go from 0 to {vocabulary - 1}", row)
        if len(row) > limits.text:
            raise ApiError(413, f"prompt: {len(row):,} ids; {limits.text:,} at most will do", param="prompt")
    return value, [request.served.run.tokenizer.decode(row) for row in value], replace(framing, before=())


def read_messages(options: Options, longest: int) -> list[dict[str, Any]]:
    """Return the messages; content in parts is joined, where all of them are text."""
    value = options.values.get("messages")
    if not isinstance(value, list) or not value:
        raise options.error("messages", "expected a list of messages", value)
    messages, size = [], 0
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise options.error("messages", f"the {index + 1}. has no role and content", message)
        content = message.get("content")
        if isinstance(content, list):
            if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
                raise options.error("messages", "content may have parts of the type text only", content)
            content = "".join(str(part.get("text", "")) for part in content)
        text = options.item("messages", index, content, longest)
        size += len(text)
        messages.append({**message, "content": text})
    check_length("messages", " " * size, longest)
    return messages


def read_stops(options: Options) -> tuple[str, ...]:
    value = options.values.get("stop", [])
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(stop, str) and stop for stop in listed):
        raise options.error("stop", "expected a text that is not empty, or a list of them", value)
    if len(listed) > MOST_STOPS:
        raise options.error("stop", f"{MOST_STOPS} at most will do", len(listed))
    return tuple(listed)


def read_stream_options(options: Options, *, stream: bool) -> bool:
    """Return whether a stream ends with its usage."""
    value = options.values.get("stream_options")
    if value is None:
        return False
    if not stream or not isinstance(value, dict) or not set(value) <= {"include_usage", "include_obfuscation"}:
        raise options.error("stream_options", 'with stream, expected {"include_usage": true}', value)
    return bool(value.get("include_usage", False))


def make_texts(
    request: RunRequest, rows: Sequence[Sequence[int]], completion: CompletionOptions, max_new: int, framing: Framing
) -> list[Text]:
    """Return `best_of` texts for each row; the i-th of all draws from the seed + i."""
    task = request.served.task
    assert isinstance(task, Generate)
    least = completion.cuts.min_new
    if least > max_new:
        raise request.options.error("min_tokens", f"must be 0 to max_tokens, {max_new:,} here", least)
    texts = []
    for index, row in enumerate(row for row in rows for _ in range(completion.best_of)):
        method = with_seed(completion.method, completion.seed + index)
        with request.options.naming("max_tokens"):
            texts.append(continuation(task, row, method, max_new=max_new, framing=framing, cuts=completion.cuts))
    return texts


async def answer(request: RunRequest, completion: CompletionOptions, texts: list[Text], prompts: list[str]) -> Response:
    """Decode the texts, and return the reply or the stream of it."""
    memory = sum(request.served.cache_bytes(text.first, 1) for text in texts)
    request.served.worker.check_room(len(texts), memory)
    if completion.stream:

        async def produce(out: Outgoing) -> None:
            with request.served.worker.taking(len(texts), memory):
                await stream_choices(request, completion, texts, prompts, out)

        return request.stream(produce)

    async def work() -> dict[str, Any]:
        with request.served.worker.taking(len(texts), memory):
            return await whole_choices(request, completion, texts, prompts)

    return await request.reply(work())


async def whole_choices(
    request: RunRequest, completion: CompletionOptions, texts: list[Text], prompts: list[str]
) -> dict[str, Any]:
    """Return the whole answer."""

    async def write(text: Text) -> Writing:
        writing = new_writing(text, completion)
        async for _ in follow(request.served, text, writing, each_token=False):
            pass
        return writing

    writings = await together([write(text) for text in texts])
    read = sum(text.prompt_tokens for text in texts[:: completion.best_of])
    usage = request.usage(read, sum(len(writing.ids) for writing in writings))
    choices = []
    for start in range(0, len(texts), completion.best_of):
        group = range(start, start + completion.best_of)
        ranked = (
            sorted(group, key=lambda i: -mean(writings[i].log_probs)) if completion.best_of > completion.n else group
        )
        for i in ranked[: completion.n]:
            choice = make_choice(completion, len(choices), writings[i], prompts[i])
            if completion.attention is not None:
                inputs = trace_inputs(request, texts[i], writings[i])
                choice["attention"] = await request.attention(inputs, completion.attention)
            choices.append(choice)
    return {**head(request, completion, completion.form), "choices": choices, "usage": usage, "seed": completion.seed}


def new_writing(text: Text, completion: CompletionOptions) -> Writing:
    return Writing(text.tokenizer, text.before, stops=completion.stops, details=completion.logprobs is not None)


def mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def head(request: RunRequest, completion: CompletionOptions, form: str) -> dict[str, Any]:
    return {
        "id": completion.id,
        "object": form,
        "created": completion.created,
        "model": request.served.name,
        "system_fingerprint": request.served.fingerprint,
    }


def make_choice(completion: CompletionOptions, index: int, writing: Writing, prompt: str) -> dict[str, Any]:
    text = prompt + writing.text if completion.echo else writing.text
    content: dict[str, Any] = {"text": text}
    if completion.is_chat:
        content = {"message": {"role": "assistant", "content": text, "refusal": None}}
    logprobs = None if completion.logprobs is None else tell_logprobs(completion, writing.written)
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": writing.finish}


def tell_logprobs(completion: CompletionOptions, tokens: Sequence[WrittenToken]) -> dict[str, Any]:
    """Return log-probabilities in the form of the address."""
    if not completion.is_chat:
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.log_prob for token in tokens],
            "top_logprobs": [dict(token.candidates) for token in tokens] if completion.logprobs else None,
            "text_offset": [token.offset for token in tokens],
        }
    content = []
    for token in tokens:
        top = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in token.candidates]
        chosen = {"token": token.text, "logprob": token.log_prob, "bytes": list(token.text.encode())}
        content.append({**chosen, "top_logprobs": top})
    return {"content": content, "refusal": None}


def trace_inputs(request: RunRequest, text: Text, writing: Writing) -> TraceInputs:
    """Return the prompt and what was written after it as one text, without the end token."""
    if len(writing.ids) > text.first.rules.max_new:
        message = "attention: the text goes past the model's context, so no one pass has all of it; ask for less"
        raise ApiError(413, message, param="attention", code="attention_too_large")
    ids = [*text.first.inputs, *(token for token in writing.ids if token not in text.first.rules.end)]
    return TraceInputs({"decoder": ids}, {"decoder": token_names(text.tokenizer, ids)})


async def stream_choices(
    request: RunRequest, completion: CompletionOptions, texts: list[Text], prompts: list[str], out: Outgoing
) -> None:
    """Put the pieces of every choice as they come, and the usage at the end where it was asked for."""
    form = "chat.completion.chunk" if completion.is_chat else completion.form
    top = head(request, completion, form)
    first_token_seen = []

    def put(index: int, piece: str, writing: Writing, n_sent: int, *, role: bool = False) -> int:
        """Send a piece with the tokens begun since the last piece; return how many tokens have been sent."""
        content: dict[str, Any] = {"text": piece}
        if completion.is_chat:
            first = {"role": "assistant"} if role else {}
            content = {"delta": {**first, **({"content": piece} if piece or role else {})}}
        tokens = [token for token in writing.written[n_sent:] if writing.finish or token.offset < writing.stops.sent]
        logprobs = tell_logprobs(completion, tokens) if completion.logprobs is not None and tokens else None
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": writing.finish}
        out.put({**top, "choices": [choice], **({"usage": None} if completion.with_usage else {})})
        return n_sent + len(tokens)

    async def write(index: int, text: Text) -> Writing:
        writing, n_sent, last = new_writing(text, completion), 0, ""
        if completion.is_chat or completion.echo:
            put(index, prompts[index] if completion.echo else "", writing, 0, role=True)
        async for piece in follow(request.served, text, writing, each_token=True):
            if not first_token_seen:
                first_token_seen.append(request.first_token())
            if writing.finish is None:
                n_sent = put(index, piece, writing, n_sent)
            else:
                last = piece
        put(index, last, writing, n_sent)
        return writing

    writings = await together([write(i, text) for i, text in enumerate(texts)])
    usage = request.usage(
        sum(text.prompt_tokens for text in texts[:: completion.best_of]), sum(len(w.ids) for w in writings)
    )
    if completion.with_usage:
        out.put({**top, "choices": [], "usage": usage})
