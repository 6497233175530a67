"""/v1/completions and /v1/chat/completions: a decoder continues prompts, or replies in a conversation, as at OpenAI."""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import Response

from clearhead.decoding import Greedy, Rules, Sample
from clearhead.decoding.grammar import Grammar, json_grammar
from clearhead.serve.api.attention import WeightsOptions, read_attention
from clearhead.serve.api.request import RunRequest
from clearhead.serve.api.sequences import check_unread, follow, respond, together
from clearhead.serve.api.writing import OutputText, WrittenToken
from clearhead.serve.bodies import ChatBody, CompletionBody, WritingBody
from clearhead.serve.errors import ApiError
from clearhead.serve.events import Outgoing
from clearhead.serve.params import Params
from clearhead.text.templates import ChatTemplate
from clearhead.training.tasks.answering import Passage, WritingOptions
from clearhead.training.tasks.base import TraceInputs
from clearhead.training.tasks.generate import MAX_NEW
from clearhead.training.tasks.texts import Framing

USUAL_TOKENS = 16
"""New tokens of a completion, unless asked otherwise: OpenAI's."""
GRAMMARS = {"response_format", "regex"}
LONGEST_GRAMMAR = 20_000
MOST_STOPS, MOST_BIASED = 16, 1024
NOT_HERE: dict[str, Any] = {"suffix": "", "functions": []}
NOT_HERE |= {"modalities": ["text"], "store": False, "service_tier": "auto"}
NOT_HERE |= {"parallel_tool_calls": False}
"""Options of OpenAI's that cannot be followed, and the value with which each asks for nothing."""


async def complete(request: RunRequest) -> Response:
    """Answer /v1/completions."""
    body = request.read(CompletionBody)
    rows, prompts, framing = await read_prompts(request, request.served.task.frame())
    best_of = request.params.integer("best_of", least=body.n, most=request.limits.texts, default=body.n)
    if body.stream and best_of > body.n:
        raise ApiError(
            400, "best_of: the best are known at the end only; leave out stream, or best_of", param="best_of"
        )
    if body.echo and body.logprobs is not None:
        raise ApiError(400, "echo: the prompt's own log-probabilities are not told; leave out logprobs", param="echo")
    completion = await read_completion(request, body, best_of=best_of, logprobs=body.logprobs)
    completion = replace(completion, prompts=[prompt for prompt in prompts for _ in range(best_of)], echo=body.echo)
    request.params.check_count("prompt", len(rows) * best_of, request.limits.texts)
    completion = completion.with_texts(rows, framing, body.max_tokens or USUAL_TOKENS, "prompt")
    return await respond(request, completion.texts, completion.whole, completion.stream if body.stream else None)


async def chat(request: RunRequest) -> Response:
    """Answer /v1/chat/completions."""
    params, task, template = request.params, request.served.task, request.served.template
    assert template is not None
    body, messages = request.read(ChatBody), read_messages(params, request.limits.text)
    tools = read_tools(params, template)

    async def render() -> str:
        async with request.served.rendering:
            return await asyncio.to_thread(template.render, messages, tools=tools)

    with params.naming("messages"):  # a template is a program that came with the model, and may take its time
        prompt = await request.in_time(render())
    [row] = await request.encode([prompt])
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs: they come with logprobs: true; add it", param="top_logprobs")
    logprobs = body.top_logprobs if body.logprobs else None
    completion = await read_completion(request, body, best_of=body.n, logprobs=logprobs)
    completion = replace(completion, is_chat=True, with_tools=tools is not None, id=f"chatcmpl-{request.noted.id}")
    # A template brings its own special tokens. Without a number, as much is written as there is room for.
    room = max(1, min(MAX_NEW, task.context - len(row)))
    max_new = body.max_completion_tokens or body.max_tokens or room
    completion = completion.with_texts([row], replace(task.frame(), before=()), max_new, "messages")
    return await respond(request, completion.texts, completion.whole, completion.stream if body.stream else None)


async def read_completion(
    request: RunRequest, body: WritingBody, *, best_of: int, logprobs: int | None
) -> "CompletionRequest":
    """Return what both addresses have in common."""
    params = request.params
    params.refuse(NOT_HERE, "cannot be followed here")
    seed = (secrets.randbits(31) if body.seed is None else body.seed) % 2**62
    sample = Sample(
        temperature=body.temperature or 1.0, seeds=seed, top_p=body.top_p, top_k=body.top_k, min_p=body.min_p
    )
    attention = read_attention(params, request.served.run)
    if attention is not None and body.stream:
        raise ApiError(400, "attention: the weights are of the whole text; leave out stream", param="attention")
    return CompletionRequest(
        request=request,
        body=body,
        id=f"cmpl-{request.noted.id}",
        method=sample if body.temperature else Greedy(),
        seed=seed,
        best_of=best_of,
        logprobs=logprobs,
        stops=read_stops(params),
        grammar=await asyncio.to_thread(read_grammar, params) if GRAMMARS & set(params.values) else None,
        logit_bias=read_bias(params, request.served.run.tokenizer.vocabulary),
        with_usage=read_stream_options(params, stream=body.stream),
        attention=attention,
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
    value = params.values["prompt"]
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


def mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A request for completions or a chat, checked, and how it is answered."""

    request: RunRequest
    body: WritingBody
    id: str
    method: Greedy | Sample
    seed: int
    best_of: int
    logprobs: int | None
    """Likeliest tokens to tell at each place; None: no log-probabilities at all."""
    stops: tuple[str, ...]
    grammar: Grammar | None
    logit_bias: tuple[tuple[int, float], ...]
    with_usage: bool
    attention: WeightsOptions | None
    created: int = field(default_factory=lambda: int(time.time()))
    is_chat: bool = False
    with_tools: bool = False
    echo: bool = False
    prompts: Sequence[str] = ()
    texts: Sequence[Passage] = ()

    def rules(self, max_new: int) -> Rules:
        """Return what an output must keep to."""
        body = self.body
        if body.min_tokens > max_new:
            expected = f"must be 0 to max_tokens, {max_new:,} here"
            raise self.request.params.value_error("min_tokens", expected, body.min_tokens)
        return Rules(
            max_new=max_new,
            min_new=body.min_tokens,
            repetition_penalty=body.repetition_penalty,
            no_repeat=body.no_repeat_ngram_size,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=self.logit_bias,
            grammar=self.grammar,
        )

    def with_texts(
        self, rows: Sequence[Sequence[int]], framing: Framing, max_new: int, param: str
    ) -> "CompletionRequest":
        """Return it with `best_of` texts to write for each row; the i-th of all draws from the seed + i."""
        options = WritingOptions(rules=self.rules(max_new), candidates=self.logprobs or 0, framing=framing)
        repeated = [row for row in rows for _ in range(self.best_of)]
        passage = self.request.served.task.passage
        with self.request.params.naming("max_tokens"):
            texts = [passage(row, self.method.for_sequences([i]), options) for i, row in enumerate(repeated)]
        check_unread(texts, param, truncate=self.body.truncate)
        return replace(self, texts=texts)

    def new_writing(self, text: Passage) -> OutputText:
        return OutputText(text.tokenizer, text.before, stops=self.stops, details=self.logprobs is not None)

    def usage(self, writings: Sequence[OutputText]) -> dict[str, int]:
        read = sum(text.prompt_tokens for text in self.texts[:: self.best_of])
        return self.request.usage(read, sum(len(writing.ids) for writing in writings))

    async def whole(self) -> dict[str, Any]:
        """Return the whole answer."""

        async def write(text: Passage) -> OutputText:
            writing = self.new_writing(text)
            async for _ in follow(self.request.served, text, writing, each_token=False):
                pass
            return writing

        writings = await together([write(text) for text in self.texts])
        usage, n, choices = self.usage(writings), self.body.n, []
        for start in range(0, len(self.texts), self.best_of):
            group = range(start, start + self.best_of)
            ranked = sorted(group, key=lambda i: -mean(writings[i].log_probs)) if self.best_of > n else group
            for i in ranked[:n]:
                choice = self.make_choice(len(choices), writings[i], self.prompts[i] if self.echo else "")
                if self.attention is not None:
                    inputs = self.trace_inputs(self.texts[i], writings[i])
                    choice["attention"] = await self.request.attention(inputs, self.attention)
                choices.append(choice)
        form = "chat.completion" if self.is_chat else "text_completion"
        return {**self.head(form), "choices": choices, "usage": usage, "seed": self.seed}

    def head(self, form: str) -> dict[str, Any]:
        served = self.request.served
        names = {"model": served.name, "system_fingerprint": served.fingerprint}
        return {"id": self.id, "object": form, "created": self.created, **names}

    def make_choice(self, index: int, writing: OutputText, prompt: str) -> dict[str, Any]:
        text = prompt + writing.text
        content: dict[str, Any] = {"text": text}
        finish: str | None = writing.finish
        if self.is_chat:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        if self.with_tools and (called := read_calls(text, f"{self.id}_{index}"))[1]:
            finish, rest, calls = "tool_calls", *called
            content["message"] |= {"content": rest.strip() or None, "tool_calls": calls}
        logprobs = None if self.logprobs is None else self.tell_logprobs(writing.written)
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}

    def tell_logprobs(self, tokens: Sequence[WrittenToken]) -> dict[str, Any]:
        """Return log-probabilities in the form of the address."""
        if not self.is_chat:
            return {
                "tokens": [token.text for token in tokens],
                "token_logprobs": [token.log_prob for token in tokens],
                "top_logprobs": [dict(token.candidates) for token in tokens] if self.logprobs else None,
                "text_offset": [token.offset for token in tokens],
            }
        content = []
        for token in tokens:
            top = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in token.candidates]
            chosen = {"token": token.text, "logprob": token.log_prob, "bytes": list(token.text.encode())}
            content.append({**chosen, "top_logprobs": top})
        return {"content": content, "refusal": None}

    def trace_inputs(self, text: Passage, writing: OutputText) -> TraceInputs:
        """Return the prompt and what was written after it as one text, without the end token."""
        if len(writing.ids) > text.first.rules.max_new:
            message = "attention: the text goes past the model's context, so no one pass has all of it; ask for less"
            raise ApiError(413, message, param="attention", code="attention_too_large")
        return self.request.served.task.written_inputs(text, writing.ids)

    async def stream(self, out: Outgoing) -> None:
        """Put the pieces of every choice as they come, and the usage at the end where it was asked for."""
        top = self.head("chat.completion.chunk" if self.is_chat else "text_completion")

        def put(index: int, piece: str, writing: OutputText, n_sent: int, *, role: bool = False) -> int:
            """Send a piece with the tokens begun since the last piece; return how many tokens have been sent."""
            content: dict[str, Any] = {"text": piece}
            if self.is_chat:
                first = {"role": "assistant"} if role else {}
                content = {"delta": {**first, **({"content": piece} if piece or role else {})}}
            tokens = [
                token for token in writing.written[n_sent:] if writing.finish or token.offset < writing.stops.sent
            ]
            logprobs = self.tell_logprobs(tokens) if self.logprobs is not None and tokens else None
            choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": writing.finish}
            out.put({**top, "choices": [choice], **({"usage": None} if self.with_usage else {})})
            return n_sent + len(tokens)

        async def write(index: int, text: Passage) -> OutputText:
            writing, n_sent, last = self.new_writing(text), 0, ""
            if self.is_chat or self.echo:
                put(index, self.prompts[index] if self.echo else "", writing, 0, role=True)
            async for piece in follow(self.request.served, text, writing, each_token=True):
                self.request.first_token()
                if writing.finish is None:
                    n_sent = put(index, piece, writing, n_sent)
                else:
                    last = piece
            put(index, last, writing, n_sent)
            return writing

        writings = await together([write(i, text) for i, text in enumerate(self.texts)])
        usage = self.usage(writings)
        if self.with_usage:
            out.put({**top, "choices": [], "usage": usage})


CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
MOST_TOOLS = 128


def read_tools(params: Params, template: ChatTemplate) -> list[Any] | None:
    """Return the tools that a request offers; ApiError where the template has no place for them."""
    tools = params.values.get("tools") or None
    choice = params.values.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise ApiError(400, "tool_choice: the model chooses; say auto or none", param="tool_choice")
    if tools is None or choice == "none":
        return None
    listed = isinstance(tools, list) and len(tools) <= MOST_TOOLS
    named = listed and all(isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools)
    if not named:
        raise params.value_error("tools", f"expected up to {MOST_TOOLS} objects with a function", tools)
    if "<tool_call>" not in template.text or "tools" not in template.text:
        message = "tools: the chat template of this run does not offer tools in a form that can be read; leave them out"
        raise ApiError(400, message, param="tools", code="unsupported_parameter")
    if params.flag("stream"):
        raise ApiError(400, "tools: calls are read from the whole reply; leave out stream", param="tools")
    return tools


def read_calls(text: str, identity: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text without its tool calls, and the calls in OpenAI's form; what is no call stays text.

    A template says in its own words how a tool is called. Read is the form that most have: JSON with a name and
    arguments between <tool_call> and </tool_call>.

    >>> read_calls('So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "x")
    ('So: ', [{'id': 'call_x_0', 'type': 'function', 'function': {'name': 'add', 'arguments': '{"a": 1}'}}])
    """
    calls: list[dict[str, Any]] = []

    def read(match: re.Match[str]) -> str:
        try:
            call = json.loads(match[1])
            function = {"name": str(call["name"]), "arguments": json.dumps(call.get("arguments", {}))}
        except (ValueError, KeyError, RecursionError):
            return match[0]
        calls.append({"id": f"call_{identity}_{len(calls)}", "type": "function", "function": function})
        return ""

    return CALL.sub(read, text), calls
