"""/v1/translate: an encoder-decoder translates texts, by beam search or greedily."""

from functools import partial
from typing import Any, cast

from starlette.responses import Response

from clearhead.decoding import Beam, Greedy, Hypothesis
from clearhead.serve.api.attention import WeightsOptions, read_attention
from clearhead.serve.api.request import RunRequest
from clearhead.serve.api.sequences import check_unread, follow, respond, search, together
from clearhead.serve.api.writing import OutputText
from clearhead.serve.bodies import TranslateBody
from clearhead.serve.errors import ApiError
from clearhead.serve.events import Outgoing
from clearhead.training.tasks.answering import Passage, WritingOptions


async def translate(request: RunRequest) -> Response:
    """Answer /v1/translate. A blank text has a blank translation, and is not given to the model."""
    params, task, body = request.params, request.served.task, request.read(TranslateBody)
    inputs, n_best = cast(list[str], body.input), params.integer("n_best", least=1, most=body.beam, default=1)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs: they come with logprobs: true; add it", param="top_logprobs")
    attention = read_attention(params, request.served.run)
    if body.stream and body.beam > 1:
        message = 'stream: a beam may change its mind until the end; say "beam": 1, or leave out stream'
        raise ApiError(400, message, param="stream", code="unsupported_value")
    if body.stream and attention is not None:
        raise ApiError(400, "attention: the weights are of the whole text; leave out stream", param="attention")
    with params.naming("beam"):
        beam = Beam(width=body.beam, n_best=n_best, length_penalty=body.length_penalty)
        method = Greedy() if body.beam == 1 else beam
    nonblank = [index for index, text in enumerate(inputs) if text.strip()]
    rows = await request.encode([inputs[index] for index in nonblank])
    options = WritingOptions(candidates=body.top_logprobs)
    texts = dict(zip(nonblank, (task.passage(row, method, options) for row in rows), strict=True))
    check_unread([*texts.values()], "input", truncate=body.truncate)
    streaming = partial(stream_translations, request, len(inputs), texts) if body.stream else None
    whole = partial(
        whole_translations,
        request,
        len(inputs),
        texts,
        details=body.logprobs,
        n_best=n_best,
        attention_options=attention,
    )
    return await respond(request, [*texts.values()], whole, streaming, width=body.beam)


def usage_of(request: RunRequest, texts: dict[int, Passage], written: int) -> dict[str, int]:
    return request.usage(sum(text.prompt_tokens for text in texts.values()), written)


async def whole_translations(
    request: RunRequest,
    count: int,
    texts: dict[int, Passage],
    *,
    details: bool,
    n_best: int,
    attention_options: WeightsOptions | None,
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
                traced = request.served.task.written_inputs(texts[index], hypothesis.tokens)
                translations[-1]["attention"] = await request.attention(traced, attention_options)
        translations = translations or [{"text": "", "score": 0.0, "log_prob": 0.0, "finish_reason": "stop"}] * n_best
        data.append({"index": index, **translations[0], **({"n_best": translations} if n_best > 1 else {})})
    return {"object": "list", "model": request.served.name, "data": data, "usage": usage}


def tell_hypothesis(text: Passage, hypothesis: Hypothesis, *, details: bool) -> dict[str, Any]:
    """Return a translation: its text, the score it was ranked by, its log-probability, and that of each token."""
    translation: dict[str, Any] = {
        "text": text.tokenizer.decode(hypothesis.tokens),
        "score": hypothesis.score,
        "log_prob": sum(hypothesis.log_probs, 0.0),
        "finish_reason": "stop" if hypothesis.ended else "length",
    }
    if details:
        writing = OutputText(text.tokenizer, text.before, details=True)
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


async def stream_translations(request: RunRequest, count: int, texts: dict[int, Passage], out: Outgoing) -> None:
    """Put the pieces of greedy translations as they come, and the usage at the end."""
    top = {"object": "translation.chunk", "model": request.served.name}

    async def write(index: int, text: Passage) -> OutputText:
        writing = OutputText(text.tokenizer, text.before)
        async for piece in follow(request.served, text, writing, each_token=True):
            request.first_token()
            out.put({**top, "index": index, "text": piece, "finish_reason": None})
        log_prob = sum(writing.log_probs, 0.0)
        out.put({**top, "index": index, "text": "", "log_prob": log_prob, "finish_reason": writing.finish})
        return writing

    for index in set(range(count)) - set(texts):
        out.put({**top, "index": index, "text": "", "log_prob": 0.0, "finish_reason": "stop"})
    writings = await together([write(index, text) for index, text in texts.items()])
    out.put({**top, "usage": usage_of(request, texts, sum(len(writing.ids) for writing in writings))})
