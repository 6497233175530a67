"""The tokeniser view: a text's tokens word by word, and how each came to be."""

import itertools
from typing import Any

from clearhead.serve.budget import JSON_OBJECT, Budget, Cost
from clearhead.serve.params import Params
from clearhead.text.merges import MergeRules
from clearhead.text.tokenizer import Span, Tokenizer
from clearhead.training.answers import token_names
from clearhead.training.run import Run

LONGEST = 20_000
"""Characters of a text: more than anyone looks at token by token."""


def tokenize_text(run: Run, params: Params, budget: Budget) -> dict[str, Any]:
    params.only("text", "field")
    fields = fields_of(run)
    field = params.one_of("field", tuple(fields)) if params.values.get("field") is not None else next(iter(fields))
    text, tokenizer = params.text("text", longest=LONGEST), fields[field]
    budget.check(Cost(memory=3 * len(text) * JSON_OBJECT), "the tokens of this text", "shorten it")
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
            token_id: [node._asdict() for node in tree] for token_id, tree in trees.items() if tree and len(tree) > 1
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


def describe(tokenizer: Tokenizer, rules: MergeRules, span: Span, text: str) -> dict[str, Any]:
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
