"""Grammars: outputs that are JSON, JSON of a schema, or text that matches a regular expression.

The package llguidance, which is not installed with Clearhead, says after each token which tokens may come next
(docs/decisions/0029-grammars.md says why it). A grammar is about text, so it needs the bytes of every token.
"""

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from clearhead.calls import CodeRepr, public
from clearhead.errors import OptionError
from clearhead.extras import check_extra
from clearhead.lru_cache import LRUCache

Kind = Literal["json_schema", "regex", "lark"]
WHITESPACE = "[ \\n]{0,16}"
"""Between the signs of JSON: a model that is unsure of what comes next would write spaces without end."""
COMPILED = 64
"""Grammars that are kept ready for the next output that asks for them."""
FUEL = 100_000
"""Work of llguidance on a grammar before its first token. A schema with a hundred patterns needs a fifth of it. Ten
times as much, which is llguidance's own bound, keeps a whole batch waiting for a second.
"""


def library() -> Any:
    check_extra("llguidance", extra="grammar", what="A grammar")
    return importlib.import_module("llguidance")


def make_matcher(tokenizer: Any, compiled: str) -> Any:
    """Return llguidance's matcher with a bound on its work: `is_error` says that it was passed."""
    limits = library().LLParserLimits(initial_lexer_fuel=FUEL, verbose_errors=False)
    return library().LLMatcher(tokenizer, compiled, log_level=0, limits=limits)


@final
class TokenBytes:
    """The bytes that each token adds to a text, for `Grammar`. A special token adds none and never fits a grammar.

    Args:
        spell: Returns the bytes of every token. It is called when a grammar first needs them, which takes half a second
            for a large vocabulary.

    >>> import clearhead as ch
    >>> tokens = ch.decoding.TokenBytes(lambda: [b"a", b"b", b"ab"])
    """

    def __init__(self, spell: Callable[[], Sequence[bytes]]) -> None:
        self.spell = spell
        self.ready = LRUCache[Grammar, Any](most=COMPILED)

    @cached_property
    def tokens(self) -> Sequence[bytes]:
        return self.spell()

    @cached_property
    def ids(self) -> dict[bytes, int]:
        return {token: token_id for token_id, token in enumerate(self.tokens) if token}

    def cut(self, text: bytes) -> Iterator[int]:
        """Yield tokens of a text, each the longest that fits: what llguidance asks for text that has no choice."""
        longest = max(map(len, self.ids), default=0)
        while text:
            size = next((n for n in range(min(longest, len(text)), 0, -1) if text[:n] in self.ids), 1)
            yield self.ids.get(text[:size], len(self.tokens))  # a byte that no token has: it cannot be written
            text = text[size:]

    @cached_property
    def tokenizer(self) -> Any:
        """Return llguidance's tokenizer of these tokens, with a token of its own for the end."""
        special = [token_id for token_id, token in enumerate(self.tokens) if not token]
        return library().LLTokenizer(LibraryTokens(self, [*special, len(self.tokens)]))

    def match(self, grammar: "Grammar", begun: Sequence[int]) -> "Matcher":
        """Return a matcher of outputs that begin with these tokens."""
        first = self.ready.get_or_make(grammar, lambda: make_matcher(self.tokenizer, grammar.compiled))
        matcher = Matcher(first.deep_copy(), len(self.tokens))
        for token in begun:
            matcher.take(token)
        return matcher


class LibraryTokens:
    """Tokens as llguidance asks for them."""

    is_tokenizer_wrapper, bos_token_id = True, None

    def __init__(self, token_bytes: TokenBytes, special: Sequence[int]) -> None:
        named = {token_id: f"<special {token_id}>".encode() for token_id in special}
        every = [*token_bytes.tokens, b""]
        self.tokens = [named.get(token_id, token) for token_id, token in enumerate(every)]
        self.eos_token_id, self.special_token_ids, self.token_bytes = len(every) - 1, list(special), token_bytes

    def __call__(self, text: str | bytes) -> list[int]:
        return list(self.token_bytes.cut(text.encode() if isinstance(text, str) else text))


@final
@public
@dataclass(frozen=True)
class Grammar(CodeRepr):
    """A form that outputs must have: JSON of a schema, a match of a regular expression, or a context-free grammar.

    Args:
        kind: `json_schema`, `regex` or `lark`.
        text: The schema, expression or grammar.
        tokens: The bytes of the model's tokens; a server has them already.

    Raises:
        OptionError: If the kind is unknown, or the text is not valid.

    >>> import clearhead as ch
    >>> tokens = ch.decoding.TokenBytes(lambda: [b"a", b"b", b"ab"])
    >>> rules = ch.Rules(max_new=9, grammar=ch.decoding.Grammar("regex", "(ab)+", tokens))  # doctest: +SKIP
    """

    kind: Kind
    text: str
    tokens: TokenBytes | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise OptionError(f"Grammar: kind is one of {', '.join(get_args(Kind))}; came {self.kind!r:.60}")
        compiled = self.compiled
        if wrong := library().LLMatcher.validate_grammar(compiled) or find_excess(compiled):
            raise OptionError(f"Grammar: the {self.kind} cannot be followed: {' '.join(wrong.split()):.300}")

    def match(self, tokens: TokenBytes | None, begun: Sequence[int]) -> "Matcher":
        """Return a matcher of outputs that begin with these tokens; `tokens` are for a grammar that came without."""
        known = self.tokens or tokens
        if known is None:
            raise OptionError("Grammar: give it the model's tokens=TokenBytes(run.tokenizer.token_bytes)")
        return known.match(self, begun)

    @property
    def compiled(self) -> str:
        """Return the grammar as llguidance takes it."""
        matcher = library().LLMatcher
        options = {"defaults": {"whitespace_pattern": WHITESPACE}} if self.kind == "json_schema" else {}
        try:
            return getattr(matcher, f"grammar_from_{self.kind}")(self.text, **options)
        except ValueError as error:
            raise OptionError(f"Grammar: the {self.kind} cannot be read: {error}") from None


BYTES = TokenBytes(lambda: [bytes([byte]) for byte in range(256)])


def find_excess(compiled: str) -> str:
    """Return why a grammar cannot be followed by a single byte, or "": what is too large shows there."""
    matcher = make_matcher(BYTES.tokenizer, compiled)
    first = Matcher(matcher, len(BYTES.tokens)).allowed((), len(BYTES.tokens)).nonzero().flatten().tolist()
    if first:
        matcher.consume_token(first[0])
    return f"it is too large, or no text fits it ({matcher.get_error()})" if matcher.is_error() else ""


def json_grammar(schema: Mapping[str, Any] | None = None, tokens: TokenBytes | None = None) -> Grammar:
    """Return the grammar of JSON that fits a schema; of any JSON object where none is given."""
    return Grammar("json_schema", json.dumps({"type": "object"} if schema is None else dict(schema)), tokens)


class Matcher:
    """How far an output has come in its grammar."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self.matcher, self.vocabulary = matcher, vocabulary

    def allowed(self, end: Sequence[int], width: int) -> Bool[Tensor, "token"]:
        """Return which tokens may come next: those that end an output only where it is complete."""
        bits = np.unpackbits(np.frombuffer(self.matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = torch.zeros(width, dtype=torch.bool)
        allowed[: self.vocabulary] = torch.from_numpy(bits[: self.vocabulary]).bool()
        allowed[list(end)] = self.matcher.is_accepting()
        return allowed

    def take(self, token: int) -> None:
        if not self.is_stopped:
            self.matcher.consume_token(token)

    @property
    def is_stopped(self) -> bool:
        """Check whether nothing can follow: the output is complete, or the grammar has passed its bounds."""
        return self.matcher.is_stopped()

    @property
    def is_complete(self) -> bool:
        return self.is_stopped and not self.matcher.is_error()
