"""What the answers of all tasks share: batches of similar length, and the text that token ids stand for.

What a text is answered does not depend on the texts beside it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from clearhead.model.transformers import Transformer
from clearhead.text.tokenizer import Tokenizer

Result = TypeVar("Result")
ON_CPU, ON_GPU = 4096, 65_536
"""Tokens of a batch, hypotheses counted."""


class Written(NamedTuple):
    """A text, its log-probability, and the score it was ranked by: in a beam, that over a power of its length."""

    text: str
    log_prob: float
    score: float


def in_batches(
    lengths: Sequence[int],
    model: Transformer,
    answer: Callable[[list[int]], list[Result]],
    *,
    width: int = 1,
    apart: Callable[[int], int] = lambda length: 0,
) -> list[Result]:
    """Return the answers to rows of these lengths, in order. `answer` is asked for a few at a time, by number.

    Rows of similar length go together, and only those of lengths that `apart` makes the same of.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    tokens = (ON_GPU if next(model.parameters()).device.type == "cuda" else ON_CPU) // width
    answers: dict[int, Result] = {}
    for batch in cut(order, lengths, tokens, apart):
        answers |= zip(batch, answer(batch), strict=True)
    return [answers[i] for i in range(len(lengths))]


def cut(order: Sequence[int], lengths: Sequence[int], tokens: int, apart: Callable[[int], int]) -> Iterator[list[int]]:
    """Yield the numbers of rows in batches of about so many tokens."""
    batch: list[int] = []
    for i in order:
        full = (len(batch) + 1) * max(lengths[i], 16) > tokens
        if batch and (full or apart(lengths[i]) != apart(lengths[batch[0]])):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def continued(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text of tokens that follow others: a space between the two belongs to it."""
    first, joined = tokenizer.decode(before), tokenizer.decode([*before, *tokens])
    return joined[len(first) :] if joined.startswith(first) else tokenizer.decode(tokens)


def one_line(text: str) -> str:
    """Return the text with its ends of line as spaces.

    >>> one_line("to be,\\r\\nor not")
    'to be, or not'
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def token_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the pieces of text that tokens stand for, special tokens by their names.

    Those of an imported model have its own names, but for the mask: a blank is written `<mask>` everywhere.
    """
    special = {tokenizer.mask: "<mask>"}
    if tokenizer.imported is None:
        special |= {
            tokenizer.start: "<s>",
            tokenizer.end: "</s>",
            tokenizer.pad: "<pad>",
            tokenizer.unknown: "<unk>",
        }
    return [special.get(token) or tokenizer.pieces([token])[0] for token in ids]
