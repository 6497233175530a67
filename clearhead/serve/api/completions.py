"""/v1/completions and /v1/chat/completions: a decoder continues prompts, or replies in a conversation, as at OpenAI."""

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

from starlette.responses import Response

from clearhead.decoding import Greedy, Rules, Sample
from clearhead.decoding.grammar import Grammar, json_grammar
from clearhead.serve.api.attention import WeightsOptions, read_attention
from clearhead.serve.api.request import RunRequest
from clearhead.serve.api.sequences import Streaming, Work, check_unread, follow, respond, together
from clearhead.serve.api.tools import read_calls, read_tools
from clearhead.serve.api.writing import OutputText, WrittenToken
from clearhead.serve.errors import ApiError
from clearhead.serve.events import Outgoing
from clearhead.serve.params import Params
from clearhead.training.tasks.answering import Passage, WritingOptions
from clearhead.training.tasks.framing import Framing
from clearhead.training.tasks.generate import MAX_NEW
from clearhead.training.tasks.showing import TraceInputs

USUAL_TOKENS = 16
"""New tokens of a completion, unless asked otherwise: OpenAI's."""
GRAMMARS = {"response_format", "regex"}
LONGEST_GRAMMAR = 20_000
MOST_STOPS, MOST_LOGPROBS, MOST_BIASED = 16, 20, 1024
NOT_HERE: dict[str, Any] = {"suffix": "", "functions": []}
NOT_HERE |= {"modalities": ["text"], "store": False, "service_tier": "auto"}
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
    writing: WritingOptions
    truncate: bool
    stream: bool
    with_usage: bool
    attention: WeightsOptions | None
    echo: bool = False
    with_tools: bool = False

    @property
    def is_chat(self) -> bool:
        return self.form == "chat.completion"


async def complete(request: RunRequest) -> Response:
    """Answer /v1/completions."""
    params, task = request.params, request.served.task
    rows, prompts, framing = await read_prompts(request, task.frame())
    logprobs = params.maybe_whole("logprobs", below=MOST_LOGPROBS + 1)
    n = params.integer("n", least=1, below=request.limits.texts + 1, default=1)
    best_of = params.integer("best_of", least=n, below=request.limits.texts + 1, default=n)
    max_new = params.integer("max_tokens", least=1, below=request.limits.tokens + 1, default=USUAL_TOKENS)
    completion = await read_completion_options(
        request, "text_completion", n=n, best_of=best_of, logprobs=logprobs, max_new=max_new
    )
    completion = replace(completion, echo=params.flag("echo"))
    if completion.stream and best_of > n:
        raise ApiError(
            400, "best_of: the best are known at the end only; leave out stream, or best_of", param="best_of"
        )
    if completion.echo and logprobs is not None:
        raise ApiError(400, "echo: the prompt's own log-probabilities are not told; leave out logprobs", param="echo")
    params.check_count("prompt", len(rows) * best_of, request.limits.texts)
    texts = make_texts(request, rows, completion, framing)
    check_unread(texts, "prompt", truncate=completion.truncate)
    prompts = [prompt for prompt in prompts for _ in range(best_of)]
    return await respond(request, texts, *ways_to_answer(request, completion, texts, prompts))


async def chat(request: RunRequest) -> Response:
    """Answer /v1/chat/completions."""
    params, task, template = request.params, request.served.task, request.served.template
    assert template is not None
    messages, tools = read_messages(params, request.limits.text), read_tools(params, template)

    async def render() -> str:
        async with request.served.rendering:
            return await asyncio.to_thread(template.render, messages, tools=tools)

    with params.naming("messages"):  # a template is a program that came with the model, and may take its time
        prompt = await request.in_time(render())
    [row] = await request.encode([prompt])
    n = params.integer("n", least=1, below=request.limits.texts + 1, default=1)
    with_logprobs = params.flag("logprobs")
    top = params.integer("top_logprobs", least=0, below=MOST_LOGPROBS + 1, default=0)
    if top and not with_logprobs:
        raise ApiError(400, "top_logprobs: they come with logprobs: true; add it", param="top_logprobs")
    # A template brings its own special tokens. Without a number, as much is written as there is room for.
    framing = replace(task.frame(), before=())
    room = max(1, min(MAX_NEW, task.context - len(row)))
    name = "max_completion_tokens" if "max_completion_tokens" in params else "max_tokens"
    max_new = params.integer(name, least=1, below=request.limits.tokens + 1, default=room)
    logprobs = top if with_logprobs else None
    completion = await read_completion_options(
        request, "chat.completion", n=n, best_of=n, logprobs=logprobs, max_new=max_new
    )
    completion = replace(completion, with_tools=tools is not None)
    texts = make_texts(request, [row], completion, framing)
    check_unread(texts, "messages", truncate=completion.truncate)
    return await respond(request, texts, *ways_to_answer(request, completion, texts, [""] * n))


async def read_completion_options(
    request: RunRequest,
    form: Literal["text_completion", "chat.completion"],
    *,
    n: int,
    best_of: int,
    logprobs: int | None,
    max_new: int,
) -> CompletionOptions:
    """Read the options that both addresses have."""
    params = request.params
    params.refuse(NOT_HERE, "cannot be followed here")
    stream = params.flag("stream")
    seed = params.integer("seed", least=-(2**63), below=2**63, default=secrets.randbits(31))
    with params.naming("top_p"):
        temperature = params.number("temperature", default=1.0, least=0, most=100)
        sample = Sample(
            temperature=temperature or 1.0,
            seeds=seed % 2**62,
            top_p=params.number("top_p", default=1.0, least=1e-6, most=1),
            top_k=params.maybe_whole("top_k", least=1, below=2**31 + 1),
            min_p=params.number("min_p", default=0.0, least=0, most=1),
        )
    attention = read_attention(params, request.served.run)
    if attention is not None and stream:
        raise ApiError(400, "attention: the weights are of the whole text; leave out stream", param="attention")
    return CompletionOptions(
        form=form,
        id=("chatcmpl-" if form == "chat.completion" else "cmpl-") + request.noted.id,
        created=int(time.time()),
        n=n,
        best_of=best_of,
        method=sample if temperature else Greedy(),
        seed=seed % 2**62,
        stops=read_stops(params),
        logprobs=logprobs,
        writing=WritingOptions(rules=await read_rules(request, max_new), candidates=logprobs or 0),
        truncate=params.flag("truncate"),
        stream=stream,
        with_usage=read_stream_options(params, stream=stream),
        attention=attention,
    )


async def read_rules(request: RunRequest, max_new: int) -> Rules:
    """Read what an output must keep to."""
    params = request.params
    min_new = params.integer("min_tokens", least=0, below=request.limits.tokens + 1, default=0)
    if min_new > max_new:
        raise params.value_error("min_tokens", f"must be 0 to max_tokens, {max_new:,} here", min_new)
    return Rules(
        max_new=max_new,
        min_new=min_new,
        repetition_penalty=params.number("repetition_penalty", default=1.0, least=0.01, most=100),
        no_repeat=params.integer("no_repeat_ngram_size", least=0, below=1001, default=0),
        presence_penalty=params.number("presence_penalty", default=0.0, least=-2, most=2),
        frequency_penalty=params.number("frequency_penalty", default=0.0, least=-2, most=2),
        logit_bias=read_bias(params, request.served.run.tokenizer.vocabulary),
        grammar=await asyncio.to_thread(read_grammar, params) if GRAMMARS & set(params.values) else None,
    )


def read_grammar(params: Params) -> Grammar | None:
    """Return the grammar of `response_format` or `regex`. It is compiled here, so that a wrong one is refused."""
    if "regex" in params:
        if "response_format" in params:
            raise params.error("regex", "regex: there is a response_format as well; leave one of them out")
        with params.naming("regex"):
            return Grammar("regex", params.text("regex", longest=LONGEST_GRAMMAR))
    value = params.values["response_format"]
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        expected = 'expected {"type": "text"}, "json_object" or "json_schema"'
        raise params.value_error("response_format", expected, value)
    if kind == "text":
        return None
    described = value.get("json_schema") if kind == "json_schema" else {"schema": None}
    if not isinstance(described, dict) or not isinstance(schema := described.get("schema"), dict | None):
        expected = 'expected {"type": "json_schema", "json_schema": {"schema": {…}}}'
        raise params.value_error("response_format", expected, value)
    if len(json.dumps(schema)) > LONGEST_GRAMMAR:
        raise ApiError(
            413, f"response_format: a schema of up to {LONGEST_GRAMMAR:,} characters", param="response_format"
        )
    with params.naming("response_format"):
        return json_grammar(schema)


def read_bias(params: Params, vocabulary: int) -> tuple[tuple[int, float], ...]:
    """Return the tokens of `logit_bias` and what is added to the logit of each."""
    value = params.values.get("logit_bias", {})
    if not isinstance(value, dict) or len(value) > MOST_BIASED:
        expected = f"expected an object of up to {MOST_BIASED} token ids, with a number for each"
        raise params.value_error("logit_bias", expected, value)
    for token in value:
        if not token.isdecimal() or not token.isascii() or len(token) > 9 or int(token) >= vocabulary:
            raise params.value_error("logit_bias", f"token ids go from 0 to {vocabulary - 1}", token)
    every = [(int(token), Params({"logit_bias": number}, f"logit_bias[{token}]")) for token, number in value.items()]
    return tuple((token, number.number("logit_bias", least=-100, most=100)) for token, number in every)


async def read_prompts(request: RunRequest, framing: Framing) -> tuple[list[list[int]], list[str], Framing]:
    """Return the ids and the texts of the prompts, and their framing: a text, a list of texts, ids, or lists of ids.

    Ids are read as they are, as at OpenAI: a client that has them has the special tokens before them, too.
    """
    params, limits = request.params, request.limits
    value = params.values.get("prompt")
    if value is None:
        raise ApiError(400, "prompt: expected a text, or a list of texts", param="prompt", code="invalid_value")
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(item, list) for item in value):
        texts = params.texts("prompt", most=limits.texts, longest=limits.text)
        return await request.encode(texts), texts, framing
    params.check_count("prompt", len(value), limits.texts)
    vocabulary = request.served.run.tokenizer.vocabulary
    for row in value:
        if not row or not all(isinstance(item, int) and not isinstance(item, bool) for item in row):
            raise params.value_error("prompt", "expected texts, or lists of token ids", row)
        if not all(0 <= item < vocabulary for item in row):
            raise params.value_error("prompt", f"token ids go from 0 to {vocabulary - 1}", row)
        if len(row) > limits.text:
            raise ApiError(413, f"prompt: {len(row):,} ids; {limits.text:,} at most will do", param="prompt")
    return value, [request.served.run.tokenizer.decode(row) for row in value], replace(framing, before=())


def read_messages(params: Params, longest: int) -> list[dict[str, Any]]:
    """Return the messages; content in parts is joined, where all of them are text."""
    value = params.values.get("messages")
    if not isinstance(value, list) or not value:
        raise params.value_error("messages", "expected a list of messages", value)
    messages, size = [], 0
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise params.value_error("messages", f"the {index + 1}. has no role and content", message)
        content = message.get("content")
        if content is None and isinstance(message.get("tool_calls"), list):
            content = ""
        if isinstance(content, list):
            if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
                raise params.value_error("messages", "content may have parts of the type text only", content)
            content = "".join(str(part.get("text", "")) for part in content)
        text = params.item("messages", index, content, longest)
        size += len(text)
        messages.append({**message, "content": text})
    if size > longest:
        message = f"messages: the texts have {size:,} characters; {longest:,} at most will do"
        raise ApiError(413, message, param="messages", code="text_too_long")
    return messages


def read_stops(params: Params) -> tuple[str, ...]:
    value = params.values.get("stop", [])
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(stop, str) and stop for stop in listed):
        raise params.value_error("stop", "expected a text that is not empty, or a list of them", value)
    if len(listed) > MOST_STOPS:
        raise params.value_error("stop", f"{MOST_STOPS} at most will do", len(listed))
    return tuple(listed)


def read_stream_options(params: Params, *, stream: bool) -> bool:
    """Return whether a stream ends with its usage."""
    value = params.values.get("stream_options")
    if value is None:
        return False
    if not stream or not isinstance(value, dict) or not set(value) <= {"include_usage", "include_obfuscation"}:
        raise params.value_error("stream_options", 'with stream, expected {"include_usage": true}', value)
    return bool(value.get("include_usage", False))


def make_texts(
    request: RunRequest, rows: Sequence[Sequence[int]], completion: CompletionOptions, framing: Framing
) -> list[Passage]:
    """Return `best_of` texts for each row; the i-th of all draws from the seed + i."""
    options = replace(completion.writing, framing=framing)
    repeated = [row for row in rows for _ in range(completion.best_of)]
    passage, method = request.served.task.passage, completion.method
    with request.params.naming("max_tokens"):
        return [passage(row, method.for_sequences([index]), options) for index, row in enumerate(repeated)]


def ways_to_answer(
    request: RunRequest, completion: CompletionOptions, texts: list[Passage], prompts: list[str]
) -> tuple[Work, Streaming | None]:
    """Return what makes the whole answer, and what streams it where that was asked for."""
    streaming = partial(stream_choices, request, completion, texts, prompts) if completion.stream else None
    return partial(whole_choices, request, completion, texts, prompts), streaming


async def whole_choices(
    request: RunRequest, completion: CompletionOptions, texts: list[Passage], prompts: list[str]
) -> dict[str, Any]:
    """Return the whole answer."""

    async def write(text: Passage) -> OutputText:
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


def new_writing(text: Passage, completion: CompletionOptions) -> OutputText:
    return OutputText(text.tokenizer, text.before, stops=completion.stops, details=completion.logprobs is not None)


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


def make_choice(completion: CompletionOptions, index: int, writing: OutputText, prompt: str) -> dict[str, Any]:
    text = prompt + writing.text if completion.echo else writing.text
    content: dict[str, Any] = {"text": text}
    finish: str | None = writing.finish
    if completion.is_chat:
        content = {"message": {"role": "assistant", "content": text, "refusal": None}}
    if completion.with_tools and (called := read_calls(text, f"{completion.id}_{index}"))[1]:
        finish, rest, calls = "tool_calls", *called
        content["message"] |= {"content": rest.strip() or None, "tool_calls": calls}
    logprobs = None if completion.logprobs is None else tell_logprobs(completion, writing.written)
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}


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


def trace_inputs(request: RunRequest, text: Passage, writing: OutputText) -> TraceInputs:
    """Return the prompt and what was written after it as one text, without the end token."""
    if len(writing.ids) > text.first.rules.max_new:
        message = "attention: the text goes past the model's context, so no one pass has all of it; ask for less"
        raise ApiError(413, message, param="attention", code="attention_too_large")
    return request.served.task.written_inputs(text, writing.ids)


async def stream_choices(
    request: RunRequest, completion: CompletionOptions, texts: list[Passage], prompts: list[str], out: Outgoing
) -> None:
    """Put the pieces of every choice as they come, and the usage at the end where it was asked for."""
    form = "chat.completion.chunk" if completion.is_chat else completion.form
    top = head(request, completion, form)

    def put(index: int, piece: str, writing: OutputText, n_sent: int, *, role: bool = False) -> int:
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

    async def write(index: int, text: Passage) -> OutputText:
        writing, n_sent, last = new_writing(text, completion), 0, ""
        if completion.is_chat or completion.echo:
            put(index, prompts[index] if completion.echo else "", writing, 0, role=True)
        async for piece in follow(request.served, text, writing, each_token=True):
            request.first_token()
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
