"""The types of what requests to the API send. The names that a request may have, and /openapi.json, follow from them.

How large a number may be, or how long a text, is checked where it is read.
"""

from typing import Any, Literal, Required, TypedDict, get_type_hints

Texts = str | list[str]
Format = Literal["float", "base64"]


class AttentionBody(TypedDict, total=False):
    """The attention weights that an answer should have."""

    sites: list[str]
    heads: list[int]
    encoding_format: Format


class RunBody(TypedDict, total=False):
    """What every request to a run may have."""

    model: str
    truncate: bool
    attention: bool | AttentionBody
    user: str


class AnswerBody(RunBody, total=False):
    """A request to /v1/answer; and what others of one pass have too."""

    input: Required[Texts]


class ClassifyBody(RunBody, total=False):
    """A request to /v1/classify."""

    input: Required[Texts | list[tuple[str, str]]]


class FillBody(AnswerBody, total=False):
    """A request to /v1/fill."""

    shown: int


class EmbedBody(ClassifyBody, total=False):
    """A request to /v1/embeddings."""

    encoding_format: Format
    dimensions: int
    pooling: Literal["mean", "first"]
    normalize: bool


class TranslateBody(AnswerBody, total=False):
    """A request to /v1/translate."""

    beam: int
    n_best: int
    length_penalty: float
    logprobs: bool
    top_logprobs: int
    stream: bool


class StreamOptions(TypedDict, total=False):
    """What a stream has besides its text."""

    include_usage: bool
    include_obfuscation: bool


class WritingBody(RunBody, total=False):
    """What completions and chats share; some of it is OpenAI's, and refused unless it asks for nothing."""

    stream: bool
    stream_options: StreamOptions
    n: int
    seed: int
    stop: Texts
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    min_tokens: int
    max_tokens: int
    repetition_penalty: float
    no_repeat_ngram_size: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: dict[str, float]
    response_format: dict[str, Any]
    regex: str


class CompletionBody(WritingBody, total=False):
    """A request to /v1/completions."""

    prompt: Required[Texts | list[int] | list[list[int]]]
    logprobs: int
    best_of: int
    echo: bool
    suffix: str


class TextPart(TypedDict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(TypedDict):
    """What one side said."""

    role: str
    content: str | list[TextPart]


class ChatBody(WritingBody, total=False):
    """A request to /v1/chat/completions."""

    messages: Required[list[ChatMessage]]
    max_completion_tokens: int
    logprobs: bool
    top_logprobs: int
    tools: list[Any]
    tool_choice: str
    functions: list[Any]
    modalities: list[str]
    store: bool
    parallel_tool_calls: bool
    service_tier: str


BODIES: dict[str, Any] = {
    "/v1/translate": TranslateBody,
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/classify": ClassifyBody,
    "/v1/fill": FillBody,
    "/v1/embeddings": EmbedBody,
    "/v1/answer": AnswerBody,
}
"""The body of each address that takes one."""


def names_of_body(kind: Any) -> tuple[str, ...]:
    """Return the names that a body may have.

    >>> names_of_body(StreamOptions)
    ('include_usage', 'include_obfuscation')
    """
    return tuple(get_type_hints(kind))
