"""/v1/translate: an encoder-decoder translates texts, by beam search or greedily."""

from typing import Any

from starlette.responses import Response

from clearhead.decoding.beam import Beam
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.sampling import Greedy
from clearhead.serve.api.attention import AttentionOptions, read_attention
from clearhead.serve.api.request import RunRequest
from clearhead.serve.api.sequences import Text, check_unread, follow, search, together, translation
from clearhead.serve.api.writing import Writing
from clearhead.serve.errors import ApiError
from clearhead.serve.events import Outgoing
from clearhead.training.answers import token_names
from clearhead.training.tasks import Translate
from clearhead.training.tasks.base import TraceInputs
from clearhead.training.tasks.translate import BEAM

MOST_BEAMS = 64
MOST_LOGPROBS = 20


async def translate(request: RunRequest) -> Response:
    """Answer /v1/translate. A blank text has a blank translation, and is not given to the model."""
    params, task = request.params, request.served.task
    assert isinstance(task, Translate)
    inputs = params.texts("input", most=request.limits.texts, longest=request.limits.text)
    beam = params.integer("beam", least=1, below=MOST_BEAMS + 1, default=BEAM)
    n_best = params.integer("n_best", least=1, below=beam + 1, default=1)
    penalty = params.number("length_penalty", default=1.0, least=-10, most=10)
    with_logprobs, top = (
        params.flag("logprobs"),
        params.integer("top_logprobs", least=0, below=MOST_LOGPROBS + 1, default=0),
    )
    if top and not with_logprobs:
        raise ApiError(400, "top_logprobs: they come with logprobs: true; add it", param="top_logprobs")
    stream, attention = params.flag("stream"), read_attention(params, request.served.run)
    if stream and beam > 1:
        message = 'stream: a beam may change its mind until the end; say "beam": 1, or leave out stream'
        raise ApiError(400, message, param="stream", code="unsupported_value")
    if stream and attention is not None:
        raise ApiError(400, "attention: the weights are of the whole text; leave out stream", param="attention")
    with params.naming("beam"):
        method = Greedy() if beam == n_best == 1 else Beam(width=beam, n_best=n_best, length_penalty=penalty)
    nonblank = [index for index, text in enumerate(inputs) if text.strip()]
    rows = await request.encode([inputs[index] for index in nonblank])
    texts = dict(zip(nonblank, (translation(task, row, method, candidates=top) for row in rows), strict=True))
    check_unread([*texts.values()], "input", truncate=params.flag("truncate"))
    memory = sum(request.served.cache_bytes(text.first, beam) for text in texts.values())
    request.served.worker.check_room(len(texts), memory)
    if stream:

        async def produce(out: Outgoing) -> None:
            with request.served.worker.taking(len(texts), memory):
                await stream_translations(request, len(inputs), texts, out)

        return request.stream(produce)

    async def work() -> dict[str, Any]:
        with request.served.worker.taking(len(texts), memory):
            return await whole_translations(
                request, len(inputs), texts, details=with_logprobs, n_best=n_best, attention_options=attention
            )

    return await request.reply(work())


def usage_of(request: RunRequest, texts: dict[int, Text], written: int) -> dict[str, int]:
    return request.usage(sum(text.prompt_tokens for text in texts.values()), written)


async def whole_translations(
    request: RunRequest,
    count: int,
    texts: dict[int, Text],
    *,
    details: bool,
    n_best: int,
    attention_options: AttentionOptions | None,
) -> dict[str, Any]:
    """Return the `n_best` translations of each text, the best first, with their scores."""
    hypotheses = dict(
        zip(texts, await together([search(request.served, text) for text in texts.values()]), strict=True)
    )
    usage = usage_of(request, texts, sum(len(hypothesis.tokens) for best in hypotheses.values() for hypothesis in best))
    data = []
    for index in range(count):
        translations = []
        for hypothesis in hypotheses.get(index, []):
            translations.append(tell_hypothesis(texts[index], hypothesis, details=details))
            if attention_options is not None:
                translations[-1]["attention"] = await request.attention(
                    trace_inputs(request, texts[index], hypothesis), attention_options
                )
        translations = translations or [{"text": "", "score": 0.0, "log_prob": 0.0, "finish_reason": "stop"}] * n_best
        data.append({"index": index, **translations[0], **({"n_best": translations} if n_best > 1 else {})})
    return {"object": "list", "model": request.served.name, "data": data, "usage": usage}


def tell_hypothesis(text: Text, hypothesis: Hypothesis, *, details: bool) -> dict[str, Any]:
    """Return a translation: its text, the score it was ranked by, its log-probability, and that of each token."""
    translation: dict[str, Any] = {
        "text": text.tokenizer.decode(hypothesis.tokens),
        "score": hypothesis.score,
        "log_prob": sum(hypothesis.log_probs, 0.0),
        "finish_reason": "stop" if hypothesis.ended else "length",
    }
    if details:
        writing = Writing(text.tokenizer, text.before, details=True)
        writing.add_all(hypothesis.tokens, hypothesis.log_probs, hypothesis.candidates)
        translation["tokens"] = [
            {
                "token": token.text,
                "log_prob": token.log_prob,
                **({"top": [{"token": name, "log_prob": value} for name, value in token.candidates]}),
            }
            for token in writing.written
        ]
    return translation


def trace_inputs(request: RunRequest, text: Text, hypothesis: Hypothesis) -> TraceInputs:
    """Return the source, and the target without its end token, as `clearhead.trace` reads them."""
    job = text.first
    target = [*(job.prefix or ()), *(token for token in hypothesis.tokens if token not in job.rules.end)]
    target = target[: request.served.task.context]
    tokenizers = request.served.task.tokenizers["source"], text.tokenizer
    ids = {"encoder": list(job.inputs), "decoder": target}
    return TraceInputs(ids, {side: token_names(of, ids[side]) for side, of in zip(ids, tokenizers, strict=True)})


async def stream_translations(request: RunRequest, count: int, texts: dict[int, Text], out: Outgoing) -> None:
    """Put the pieces of greedy translations as they come, and the usage at the end."""
    top = {"object": "translation.chunk", "model": request.served.name}
    first_token_seen = []

    async def write(index: int, text: Text) -> Writing:
        writing = Writing(text.tokenizer, text.before)
        async for piece in follow(request.served, text, writing, each_token=True):
            if not first_token_seen:
                first_token_seen.append(request.first_token())
            out.put({**top, "index": index, "text": piece, "finish_reason": None})
        log_prob = sum(writing.log_probs, 0.0)
        out.put({**top, "index": index, "text": "", "log_prob": log_prob, "finish_reason": writing.finish})
        return writing

    for index in set(range(count)) - set(texts):
        out.put({**top, "index": index, "text": "", "log_prob": 0.0, "finish_reason": "stop"})
    writings = await together([write(index, text) for index, text in texts.items()])
    out.put({**top, "usage": usage_of(request, texts, sum(len(writing.ids) for writing in writings))})
