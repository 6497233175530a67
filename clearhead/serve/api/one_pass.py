"""/v1/classify, /v1/fill, /v1/embeddings and /v1/answer: answers of one pass through the model.

What several requests ask for at the same time is computed together, by the functions that answer offline.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from starlette.responses import Response

from clearhead.experiments.tracing import encode_inputs
from clearhead.serve.api.attention import WeightsOptions, encode_base64, read_attention
from clearhead.serve.api.request import RunRequest
from clearhead.serve.api.sequences import refuse_unread
from clearhead.serve.bodies import EmbedBody, FillBody
from clearhead.serve.errors import ApiError
from clearhead.serve.replies import as_json
from clearhead.training.tasks import Fill
from clearhead.training.tasks.answering import Pair
from clearhead.training.tasks.fill import BLANK

Item = str | Pair


async def classify(request: RunRequest) -> Response:
    """Answer /v1/classify: the class of each text with the probability of every label, or its labels.

    A blank text has a blank label and no probabilities, as on the command line, and is not given to the model.
    """
    run = request.served.run
    return await reply(request, "classify", lambda texts: map(run.task.entry, run.answer(texts)), read_items(request))


async def fill(request: RunRequest) -> Response:
    """Answer /v1/fill: each text with its blanks filled, and the likeliest pieces for each blank."""
    task, model = request.served.run.asked(Fill), request.served.run.model
    inputs, shown = read_items(request), request.read(FillBody).shown
    for index, text in enumerate(inputs):
        if not isinstance(text, str) or BLANK not in task.with_our_blanks(text):
            message = f"input[{index}]: there is no blank to fill: write {BLANK} where one is"
            raise ApiError(400, message, param="input", code="invalid_value")

    def compute(texts: list[Any]) -> Iterable[Any]:
        return map(task.entry, task.answer(model, texts, shown=shown))

    return await reply(request, ("fill", shown), compute, inputs)


async def answer(request: RunRequest) -> Response:
    """Answer /v1/answer: what the run's task answers, whatever task it is, as `clearhead answer --json` tells it."""
    inputs = read_items(request)
    if not all(isinstance(text, str) for text in inputs):
        raise ApiError(400, "input: expected texts; a pair is one text with a tab between", param="input")
    return await reply(request, "answer", request.served.run.answer, inputs)


async def embed(request: RunRequest) -> Response:
    """Answer /v1/embeddings, in OpenAI's form; `pooling` and `normalize` are those of `clearhead embed`."""
    run, inputs, body = request.served.run, read_items(request), request.read(EmbedBody)
    width = run.embed([]).shape[1]
    if body.dimensions not in (None, width):
        message = f"dimensions: the vectors of {request.served.name} have {width} numbers; leave it out"
        raise ApiError(400, message, param="dimensions", code="unsupported_value")
    for index, text in enumerate(inputs):
        if not "".join(text).strip():
            raise ApiError(400, f"input[{index}]: a blank text has no vector", param="input", code="invalid_value")

    exact = body.encoding_format == "float"

    def compute(texts: list[Item]) -> list[dict[str, Any]]:
        vectors = run.embed(texts, pooling=body.pooling, normalize=body.normalize)
        return [
            {"object": "embedding", "embedding": vector.tolist() if exact else encode_base64(vector)}
            for vector in vectors
        ]

    return await reply(request, ("embed", exact, body.pooling, body.normalize), compute, inputs)


def read_items(request: RunRequest) -> list[Item]:
    """Return the texts of a request; or pairs of them, as lists of two."""
    params, limits = request.params, request.limits
    value = params.values.get("input")
    if not isinstance(value, list) or not value or not all(isinstance(text, list) for text in value):
        return list(params.texts("input", most=limits.texts, longest=limits.text))
    params.check_count("input", len(value), limits.texts)
    pairs: list[Item] = []
    for index, pair in enumerate(value):
        if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise params.value_error(
                "input", "expected texts, or pairs of two texts as lists; token ids are not read", pair
            )
        first, second = (params.item("input", index, text, limits.text) for text in pair)
        pairs.append((first, second))
    return pairs


async def reply(
    request: RunRequest, key: Hashable, compute: Callable[[list[Any]], Iterable[Any]], inputs: list[Item]
) -> Response:
    """Check that the model reads all of every text, compute the answers, and send them with their attention."""
    counts = await request.apart(
        [text if isinstance(text, str) else " ".join(text) for text in inputs], counter(request)
    )
    pairs = not all(isinstance(text, str) for text in inputs)  # texts and pairs are computed apart
    reads, truncate = request.served.task.reads, request.params.flag("truncate")
    for index, count in enumerate(counts):
        if count > reads and not truncate:
            refuse_unread("input", index, len(counts), count - reads)
    attention_options = read_attention(request.params, request.served.run)

    async def work() -> dict[str, Any]:
        with request.served.worker.taking(len(inputs)):
            answers = await request.served.worker.compute((key, pairs), lambda texts: list(compute(texts)), inputs)
            data = [{"index": index, **entry} for index, entry in enumerate(answers)]
            if attention_options is not None:
                for entry, text in zip(data, inputs, strict=True):
                    entry["attention"] = await attention(request, text, attention_options)
            usage = request.usage(sum(min(count, reads) for count in counts))
            return {"object": "list", "model": request.served.name, "data": data, "usage": usage}

    return as_json(await request.in_time(work()))


def counter(request: RunRequest) -> Callable[[list[str]], list[int]]:
    """Return what counts the tokens of texts. A task may read nothing of one, which can be embedded all the same."""
    run = request.served.run
    return lambda texts: [
        count or len(run.tokenizer.encode(text))
        for text, count in zip(texts, run.task.count_tokens(texts), strict=True)
    ]


async def attention(request: RunRequest, text: Item, attention_options: WeightsOptions) -> dict[str, Any]:
    with request.params.naming("attention"):
        return await request.attention(encode_inputs(request.served.run, text), attention_options)
