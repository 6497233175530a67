"""What requests to the API send: names, types and bounds. Reading a request, and /openapi.json, follow from them.

A bound that is a name is one of the server's limits. What is `unread` here is checked where it is used.
"""

from dataclasses import MISSING, dataclass
from typing import Any, Literal, TypedDict, get_type_hints

from clearhead.serve.params import bounded, unread
from clearhead.training.tasks.fill import CANDIDATES
from clearhead.training.tasks.translate import BEAM

Texts = str | list[str]
Format = Literal["float", "base64"]
MOST_LOGPROBS = 20


class AttentionBody(TypedDict, total=False):
    """The attention weights that an answer should have."""

    sites: list[str]
    heads: list[int]
    encoding_format: Format


@dataclass(frozen=True, kw_only=True)
class RunBody:
    """What every request to a run may have."""

    model: str | None = None
    truncate: bool = False
    attention: bool | AttentionBody | None = unread()
    user: str | None = unread()


@dataclass(frozen=True, kw_only=True)
class AnswerBody(RunBody):
    """A request to /v1/answer; and what others of one pass have too."""

    input: Texts = bounded(most="texts", longest="text")


@dataclass(frozen=True, kw_only=True)
class ClassifyBody(RunBody):
    """A request to /v1/classify."""

    input: Texts | list[tuple[str, str]] = unread(MISSING)


@dataclass(frozen=True, kw_only=True)
class FillBody(AnswerBody):
    """A request to /v1/fill."""

    shown: int = bounded(CANDIDATES, least=1, most=1000)


@dataclass(frozen=True, kw_only=True)
class EmbedBody(ClassifyBody):
    """A request to /v1/embeddings."""

    encoding_format: Format = "float"
    dimensions: int | None = bounded(None, least=1, most=2**31)
    pooling: Literal["mean", "first"] = "mean"
    normalize: bool = False


@dataclass(frozen=True, kw_only=True)
class TranslateBody(AnswerBody):
    """A request to /v1/translate."""

    beam: int = bounded(BEAM, least=1, most=64)
    n_best: int = bounded(1, least=1, most=64)
    length_penalty: float = bounded(1.0, least=-10, most=10)
    logprobs: bool = False
    top_logprobs: int = bounded(0, most=MOST_LOGPROBS)
    stream: bool = False


class StreamOptions(TypedDict, total=False):
    """What a stream has besides its text."""

    include_usage: bool
    include_obfuscation: bool


@dataclass(frozen=True, kw_only=True)
class WritingBody(RunBody):
    """What completions and chats share; some of it is OpenAI's, and refused unless it asks for nothing."""

    stream: bool = False
    stream_options: StreamOptions | None = unread()
    n: int = bounded(1, least=1, most="texts")
    seed: int | None = bounded(None, least=-(2**63), below=2**63)
    stop: Texts = unread(())
    temperature: float = bounded(1.0, least=0, most=100)
    top_p: float = bounded(1.0, least=1e-6, most=1)
    top_k: int | None = bounded(None, least=1, most=2**31)
    min_p: float = bounded(0.0, least=0, most=1)
    min_tokens: int = bounded(0, most="tokens")
    max_tokens: int | None = bounded(None, least=1, most="tokens")
    repetition_penalty: float = bounded(1.0, least=0.01, most=100)
    no_repeat_ngram_size: int = bounded(0, most=1000)
    frequency_penalty: float = bounded(0.0, least=-2, most=2)
    presence_penalty: float = bounded(0.0, least=-2, most=2)
    logit_bias: dict[str, float] | None = unread()
    response_format: dict[str, Any] | None = unread()
    regex: str | None = unread()


@dataclass(frozen=True, kw_only=True)
class CompletionBody(WritingBody):
    """A request to /v1/completions."""

    prompt: Texts | list[int] | list[list[int]] = unread(MISSING)
    logprobs: int | None = bounded(None, most=MOST_LOGPROBS)
    best_of: int | None = bounded(None, least=1, most="texts")
    echo: bool = False
    suffix: str | None = unread()


class TextPart(TypedDict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(TypedDict):
    """What one side said."""

    role: str
    content: str | list[TextPart]


@dataclass(frozen=True, kw_only=True)
class ChatBody(WritingBody):
    """A request to /v1/chat/completions."""

    messages: list[ChatMessage] = unread(MISSING)
    max_completion_tokens: int | None = bounded(None, least=1, most="tokens")
    logprobs: bool = False
    top_logprobs: int = bounded(0, most=MOST_LOGPROBS)
    tools: list[Any] | None = unread()
    tool_choice: str | None = unread()
    functions: list[Any] | None = unread()
    modalities: list[str] | None = unread()
    store: bool | None = unread()
    parallel_tool_calls: bool | None = unread()
    service_tier: str | None = unread()


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
