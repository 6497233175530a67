"""A text's tokens word by word, and how each came to be."""

import itertools
from dataclasses import dataclass
from typing import ClassVar, TypedDict

from clearhead.serve.budget import JSON_OBJECT, Cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import Params, bounded
from clearhead.serve.python_lines import load_lines
from clearhead.serve.questions.question import Question
from clearhead.text.merges import MergeRules
from clearhead.text.tokenizer import Span, Tokenizer
from clearhead.training.run import Run
from clearhead.training.tasks.answering import token_names

LONGEST = 20_000
"""Characters of a text: more than anyone looks at token by token."""


class MergePart(TypedDict):
    """A part of a token: a character or byte, or two parts that were merged."""

    text: str
    left: int | None
    right: int | None
    rank: int | None
    """Which merge it is, in the order in which they were learned."""


class TextToken(TypedDict):
    id: int
    text: str
    bytes: list[int]
    start: int
    stop: int
    """From which character of the text to which."""
    unknown: bool
    special: bool
    score: float | None
    """Its log-probability among the pieces of a Unigram tokeniser; null for other kinds."""


class TokenizedText(TypedDict):
    """A text and its tokens, word by word."""

    field: str
    fields: list[str]
    """The fields of the run that have a tokeniser of their own."""
    text: str
    words: list[list[TextToken]]
    trees: dict[str, list[MergePart]]
    """By the id of a token: its parts and how they were merged, itself last; not of every token."""
    model: str
    """How it cuts words: BPE, Unigram, WordPiece or WordLevel."""
    merges: int
    vocabulary: int
    lower: bool
    characters: int
    n_bytes: int
    tokens: int
    unknown: int


@dataclass(frozen=True, kw_only=True)
class AskTokenize(Question[TokenizedText]):
    """A text's tokens, by the tokeniser of a field; of the first where none is named."""

    sent: ClassVar = True
    text: str = bounded(longest=LONGEST)
    field: str | None = None

    def answer(self, explorer: "Explorer") -> TokenizedText:
        fields, text = fields_of(explorer.run), self.text
        field = Params({"field": self.field}).one_of("field", tuple(fields), default=next(iter(fields)))
        tokenizer = fields[field]
        explorer.budget.check(Cost(memory=3 * len(text) * JSON_OBJECT), "the tokens of this text", "shorten it")
        rules, spans = MergeRules.of(tokenizer), tokenizer.spans(text)
        # A token without a word, as a special one that stands in the text, is a word of its own.
        numbered = [(span.word if span.word is not None else -1 - index, span) for index, span in enumerate(spans)]
        words = [[span for _, span in group] for _, group in itertools.groupby(numbered, key=lambda pair: pair[0])]
        trees = {span.id: rules.tree(span.token) for span in spans if not is_special(tokenizer, span)}
        return {
            "field": field,
            "fields": list(fields),
            "text": text,
            "words": [[describe(tokenizer, rules, span, text) for span in word] for word in words],
            "trees": {
                str(token_id): [
                    {"text": node.text, "left": node.left, "right": node.right, "rank": node.rank} for node in tree
                ]
                for token_id, tree in trees.items()
                if tree and len(tree) > 1
            },
            "model": rules.model,
            "merges": len(rules.merges),
            "vocabulary": tokenizer.vocabulary,
            "lower": tokenizer.lower,
            "characters": len(text),
            "n_bytes": len(text.encode()),
            "tokens": len(spans),
            "unknown": sum(span.id == tokenizer.unknown for span in spans),
        }

    def python(self, explorer: "Explorer") -> list[str]:
        tokenizer = "run.tokenizer" if self.field is None else f"run.task.tokenizers[{self.field!r}]"
        return [*load_lines(explorer.run), f"{tokenizer}.encode({self.text!r})"]


def describe(tokenizer: Tokenizer, rules: MergeRules, span: Span, text: str) -> TextToken:
    unknown, special = span.id == tokenizer.unknown, is_special(tokenizer, span)
    covered = text[span.start : span.stop]
    return {
        "id": span.id,
        "text": covered if unknown else token_names(tokenizer, [span.id])[0],
        "bytes": list(covered.encode() if unknown or special else rules.bytes_of(span.token)),
        "start": span.start,
        "stop": span.stop,
        "unknown": unknown,
        "special": special,
        "score": None if unknown else rules.scores.get(span.token),
    }


def is_special(tokenizer: Tokenizer, span: Span) -> bool:
    return span.id in tokenizer.special


def fields_of(run: Run) -> dict[str, Tokenizer]:
    """Return the run's tokenisers by the fields that they cut; one that several share, by the first."""
    tokenizers: dict[str, Tokenizer] = {}
    for field, tokenizer in run.task.tokenizers.items():
        if not any(tokenizer.fingerprint() == earlier.fingerprint() for earlier in tokenizers.values()):
            tokenizers[field] = tokenizer
    return tokenizers
